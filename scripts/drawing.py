"""Draws docstrings, messages, test names and paragraphs at random, for a reader without the code to say what each
means.

`python -m scripts.drawing` prints so many of each kind as DRAWN says, numbered. A docstring is shown with its signature
and a paragraph with its heading, as a reader meets them. `--key` prints the place of each instead. The seed is the last
commit's hash, so that nobody chooses.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
CODE = ("daemon/draftd", "acceptance/draftd_acceptance", "benchmarks", "scripts")
LOG_CALLS = {"debug", "info", "warning", "error", "critical", "exception"}
MESSAGE_WORDS, PARAGRAPH_WORDS = 4, 25
PUT_IN = re.compile(r"\{[^{}]*\}|%[-+.\d]*[a-z]")  # values in a message
# Pages that a program writes, from a real session or from the code: they are not prose.
NO_PROSE = {
    "first-session.md",
    "telemetry.md",
    "configuration.md",
    "models.md",
    "acceptance-report.md",
    "acceptance-edit.md",
}

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Item:
    """A docstring, message, test name or paragraph, and its place as FILE:LINE."""

    text: str
    place: str


def docstrings() -> Iterator[Item]:
    for path, tree in _trees(CODE):
        yield from _docstrings(path, tree, path.stem)


def messages() -> Iterator[Item]:
    """Yields the texts of exceptions and log records. Expressions in an f-string are shown in braces."""
    for path, tree in _trees(CODE):
        for node in ast.walk(tree):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if isinstance(node, ast.Raise) and not ast.unparse(call.func).rpartition(".")[2][0].isupper():
                continue  # a function that makes the error, from texts of its own
            is_log = isinstance(call.func, ast.Attribute) and call.func.attr in LOG_CALLS
            if not (is_log or isinstance(node, ast.Raise)):
                continue
            texts = [_text(value) for value in call.args]
            # errors.FieldError takes the field, the value and what is allowed; other errors a status or a code first.
            shown = texts[0]
            if len(texts) == 3 and not is_log:
                is_field = not re.fullmatch(r"\{(\d+|LinkFailure\.\w+)\}", texts[0])
                shown = f"{texts[0]}: got …; allowed: {texts[2]}" if is_field else texts[2]
            own = shown.replace(": got …; allowed:", "")
            if len(PUT_IN.sub("", own).split()) >= MESSAGE_WORDS:
                yield Item(shown, f"{path.relative_to(ROOT)}:{call.lineno}")


def test_names() -> Iterator[Item]:
    for path, tree in _trees(("tests",)):
        for node in ast.walk(tree):
            if isinstance(node, Function) and node.name.startswith("test_"):
                yield Item(node.name, f"{path.relative_to(ROOT)}:{node.lineno}")


def paragraphs() -> Iterator[Item]:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name in NO_PROSE:
            continue
        heading = ""
        tokens = MarkdownIt("gfm-like").parse(path.read_text(encoding="utf-8"))
        for kind, token in zip(["", *(token.type for token in tokens)], tokens, strict=False):
            if kind == "heading_open":
                heading = token.content
            elif kind == "paragraph_open" and len(token.content.split()) >= PARAGRAPH_WORDS and token.map:
                place = f"{path.relative_to(ROOT)}:{token.map[0] + 1}"
                yield Item(f"[{path.name}, {heading}]\n{token.content}", place)


DRAWN: dict[str, tuple[Callable[[], Iterator[Item]], int]] = {
    "docstring": (docstrings, 40),
    "message": (messages, 20),
    "test": (test_names, 20),
    "paragraph": (paragraphs, 10),
}


def draw(seed: str) -> Iterator[tuple[str, Item]]:
    """Yields kind and item in the order of DRAWN. The same seed and tree give the same items."""
    chance = random.Random(seed)
    for kind, (items, count) in DRAWN.items():
        for item in chance.sample(sorted(items(), key=lambda item: (item.place, item.text)), count):
            yield kind, item


def _trees(folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.parent.name != "v1":
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def _docstrings(path: Path, owner: ast.AST, name: str) -> Iterator[Item]:
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, (ast.ClassDef, *Function)):
            inner = f"{name}.{node.name}"
            text = ast.get_docstring(node)
            if text:
                signature = f"class {inner}"
                if isinstance(node, Function):
                    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                    signature = f"def {inner}({ast.unparse(node.args)}){result}"
                else:
                    signature += "".join(
                        f"\n    {ast.unparse(field)}" for field in node.body if isinstance(field, ast.AnnAssign)
                    )
                yield Item(f"{signature}\n{text}", f"{path.relative_to(ROOT)}:{node.lineno}")
            yield from _docstrings(path, node, inner)


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(
            _text(part) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in value.values
            if isinstance(part, (ast.Constant, ast.FormattedValue))
        )
    return f"{{{ast.unparse(value)}}}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", action="store_true", help="print the places, not the sentences")
    key = parser.parse_args().key
    head = ["git", "rev-parse", "HEAD"]
    seed = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    for number, (kind, item) in enumerate(draw(seed), 1):
        print(f"{number}. {kind}: {item.place}" if key else f"{number}. {kind}\n{item.text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
