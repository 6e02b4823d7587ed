"""The check for retired words finds them in identifiers and texts, and leaves right contexts alone."""

from __future__ import annotations

import re

import pytest

from scripts.words import LIST, Word, found, read

WORDS = [
    Word(re.compile(r"(?<![a-z])rounds?(?![a-z])"), "step", (re.compile(r"round\("),)),
    Word(re.compile(r"(?<![a-z])tempo(?![a-z])"), "machine speed", only=("engine/",)),
]


@pytest.mark.parametrize("line", ["parked_rounds", "ParkedRounds", "PARKED_ROUNDS = 1", "each round of", "a Round,"])
def test_retired_word_check_finds_word_in_any_identifier_style(line: str) -> None:
    assert [use for _, _, use in found("a.py", line, WORDS)] == ["step"]


@pytest.mark.parametrize("line", ["round(3.7)", "around the ground", "background", "rounded up", "tempo"])
def test_retired_word_check_ignores_word_in_allowed_context(line: str) -> None:
    assert not list(found("a.py", line, WORDS))


def test_retired_word_check_finds_folder_specific_word_in_listed_folder() -> None:
    assert [number for number, _, _ in found("engine/a.py", "\ntempo", WORDS)] == [2]


def test_committed_retired_word_list_can_be_loaded() -> None:
    assert any(word.pattern.search("two rungs") for word in read(LIST))
