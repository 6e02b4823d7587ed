"""The documents come with the package, and messages name them by the command that prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftd
from tests.unit.cli.conftest import in_process

PACKAGE = Path(draftd.__file__).parent
DOCS = Path(__file__).parents[3] / "docs"


def test_docs_command_lists_every_document_with_its_title_and_the_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *listed, last = in_process(["docs"], monkeypatch, capsys).out.splitlines()
    assert {line.split()[0] for line in listed} == {path.stem for path in DOCS.glob("*.md")}
    assert re.search(r"choosing-a-draft +Choosing a draft model$", "\n".join(listed), re.MULTILINE)
    assert last.endswith(str(DOCS))


@pytest.mark.parametrize("name", ["choosing-a-draft", "docs/choosing-a-draft.md"])
def test_docs_command_prints_named_document_unchanged(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(["docs", name], monkeypatch, capsys).out == (DOCS / "choosing-a-draft.md").read_text()


def test_docs_command_refuses_unknown_document_and_lists_the_existing_documents(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = in_process(["docs", "../README"], monkeypatch, capsys)
    assert ran.code == 2
    assert ran.err.startswith("draftd: document: got '../README'; allowed: acceptance")


def test_cli_messages_refer_to_existing_documents_by_draftd_docs_command_not_by_path() -> None:
    """An installed wheel has no folder docs/."""
    texts = list(_texts())
    assert [text for text in texts if re.search(r"\bdocs/[a-z-]+\.md", text)] == []
    named = {name for text in texts for name in re.findall(r"draftd docs ([a-z-]+)", text)}
    assert "choosing-a-draft" in named
    assert named <= {path.stem for path in DOCS.glob("*.md")}


def _texts() -> Iterator[str]:
    """Returns the package's strings, without the docstrings of modules."""
    for path in PACKAGE.rglob("*.py"):
        if "docs" not in (source := path.read_text(encoding="utf-8")):
            continue
        module = ast.parse(source)
        about = ast.get_docstring(module, clean=False)
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != about:
                yield node.value
