"""Finds retired words (scripts/retired_words.toml) in identifiers, messages, comments and documents.

`python -m scripts.words` prints each as FILE:LINE: word, with the word to use, and exits with 1 if there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts" / "retired_words.toml"
READ = (".py", ".proto", ".md", ".toml", ".yaml", ".yml", ".sh", ".j2", "Makefile")
# The list itself, files that another tool writes or owns, and prompts and texts of models, which are data.
LEFT_OUT = (
    "scripts/retired_words.toml",
    "tests/unit/test_words.py",
    "daemon/draftd/v1/",
    "daemon/draftd/models/nano/",
    "daemon/draftd/canaries/",
    "daemon/draftd/client/prompt_sets/",
    "acceptance/draftd_acceptance/prompt_sets/",
    "training/",
    "docs/acceptance-report",
    "docs/acceptance-edit",
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def plain(line: str) -> str:
    """Returns the line in lower case with identifiers split into words: `parkedSteps`, `parked_steps` and
    `PARKED_STEPS` become the same."""
    return _CAMEL.sub(" ", line).replace("_", " ").lower()


@dataclass(frozen=True)
class Word:
    """A retired word: the pattern that finds it, the word to use, the contexts in which it is allowed (`right`), and
    the folders in which it is searched for (`only`)."""

    pattern: re.Pattern[str]
    use: str
    right: tuple[re.Pattern[str], ...] = ()
    only: tuple[str, ...] = ("",)


def read(path: Path) -> list[Word]:
    return [
        Word(
            re.compile(rf"(?<![a-z]){word['pattern']}(?![a-z])"),
            word["use"],
            tuple(re.compile(right) for right in word.get("right", ())),
            tuple(word.get("only", ("",))),
        )
        for word in tomllib.loads(path.read_text())["word"]
    ]


def found(name: str, text: str, words: list[Word]) -> Iterator[tuple[int, str, str]]:
    """Yields each retired word in the text of the file `name`: its line number from 1, the word, and the word to
    use."""
    words = [word for word in words if name.startswith(word.only)]
    for number, line in enumerate(text.splitlines(), 1):
        shown = plain(line)
        for word in words:
            rights = [r.span() for right in word.right for r in right.finditer(shown)]
            for match in word.pattern.finditer(shown):
                if not any(start <= match.start() < end for start, end in rights):
                    yield number, match[0], word.use


def files() -> list[str]:
    """Returns the files that git tracks and people read."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        name
        for name in listed.splitlines()
        if name.endswith(READ) and not name.startswith(LEFT_OUT) and (ROOT / name).exists()
    ]


def main() -> int:
    words, count = read(LIST), 0
    for name in files():
        for number, word, use in found(name, (ROOT / name).read_text(), words):
            count += 1
            print(f"{name}:{number}: {word!r}: use {use}")
    if count:
        print(f"{count} retired words: {LIST.relative_to(ROOT)} says where one is right", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
