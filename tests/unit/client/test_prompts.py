"""Prompts from files and from the command line."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from draftd.canaries.prompts import PromptError
from draftd.cli.options import parse_assignments
from draftd.client.prompts import EMBEDDED, from_file, from_texts, held_out, shorten, spread, suited_classes
from draftd.core import CLASSES, WorkloadClass
from draftd.errors import ConfigError
from tests.conftest import NanoPair


def test_text_prompt_file_has_one_prompt_per_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\nsecond\n")
    assert [prompt.messages for prompt in from_file(file)] == [(("user", "first"),), (("user", "second"),)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: got .*valid JSON"),
        ("[]", "line 1: got .*an object"),
        ('{"messages": []}', "messages"),
        ('{"messages": [{"role": "user"}]}', "messages"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "workload": "poetry"}',
            "workload: got .poetry.; .*'prose' or 'edit'",
        ),
        (
            '{"messages": [{"role": "user", "content": "x"}], "max_tokens": "9"}',
            "max_tokens: got .*integer",
        ),
    ],
)
def test_prompt_file_error_names_invalid_line_or_field(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(PromptError, match=message):
        from_file(file)


def test_empty_prompt_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n")
    with pytest.raises(PromptError, match="no prompt"):
        from_file(file)


def test_prompt_name_is_shortened_beginning_of_text() -> None:
    assert shorten("a  b\nc") == "a b c"
    assert from_texts(["x" * 99])[0].name == "x" * 23 + "…"


def test_prompt_spread_picks_evenly_spaced_prompts_starting_with_first() -> None:
    prompts = from_texts([str(i) for i in range(10)])
    assert [p.name for p in spread(prompts, 3)] == ["0", "3", "6"]
    assert spread(prompts, 20) == prompts


@pytest.mark.parametrize("workload", ["code", "tool_call", "chat", "prose"])
def test_package_has_50_uniquely_named_held_out_prompts_of_each_workload_class(
    nano_pair: NanoPair, workload: str
) -> None:
    prompts = held_out(WorkloadClass(workload))
    assert len(prompts) >= 50
    assert {p.workload for p in prompts} == {WorkloadClass(workload)}
    assert len({p.name for p in prompts}) == len(prompts)


def test_package_has_24_edit_prompts_of_three_kinds_with_unique_names() -> None:
    prompts = held_out(WorkloadClass.EDIT)
    assert {p.workload for p in prompts} == {WorkloadClass.EDIT}
    assert Counter(p.name.split("-")[1] for p in prompts) == {"function": 8, "paragraph": 8, "record": 8}
    assert len({p.name for p in prompts}) == len({p.messages for p in prompts}) == 24


def test_edit_prompts_are_unsuited_only_for_embedded_model() -> None:
    assert set(CLASSES) - set(suited_classes(EMBEDDED)) == {WorkloadClass.EDIT}
    assert suited_classes("SmolLM2-135M-Instruct") == CLASSES


def test_every_prompt_file_in_source_tree_is_declared_as_package_data() -> None:
    root = Path(__file__).parents[3]
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package in (root / "daemon" / "draftd", root / "acceptance" / "draftd_acceptance"):
        installed = {file for pattern in data[package.name] for file in package.glob(pattern)}
        assert set() < set(package.rglob("*.jsonl")) <= installed


def test_setting_assignment_on_the_command_line_without_equals_sign_is_refused() -> None:
    assert parse_assignments(["a.b=1", "c.d = x=y"]) == {"a.b": "1", "c.d": "x=y"}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parse_assignments(["a.b"])
