"""The seeded generator: every family of documents, and the share of each in the training mix."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from training.generator.arithmetic import arithmetic
from training.generator.base import Document, Family
from training.generator.facts import facts
from training.generator.functions import classes, functions
from training.generator.records import csv, json_object, logs, sql
from training.generator.stories import scenes, stories
from training.generator.tools import tool_call, tool_calls, tool_question, tool_result
from training.generator.words import lists, summary, talk, words

# Family and weight, in documents (not tokens: a story is six times as long as a fact).
FAMILIES: dict[str, tuple[Family, float]] = {
    "facts": (facts, 17),
    "arithmetic": (arithmetic, 20),
    "words": (words, 7),
    "lists": (lists, 5),
    "talk": (talk, 3),
    "summary": (summary, 1),
    "functions": (functions, 15),
    "classes": (classes, 6),
    "tool_call": (tool_call, 13),
    "tool_calls": (tool_calls, 2),
    "tool_question": (tool_question, 7),
    "tool_result": (tool_result, 1),
    "json": (json_object, 3),
    "sql": (sql, 3),
    "logs": (logs, 1.5),
    "csv": (csv, 1.5),
    "stories": (stories, 5),
    "scenes": (scenes, 3),
}


def documents(seed: int, *, held_out: bool = False, families: list[str] | None = None) -> Iterator[Document]:
    """An endless stream of documents, drawn from the mix, on one side of the hold-out.

    The same seed gives the same stream. With `held_out` only documents whose key is held out are given.
    """
    rng = Random(seed)
    names = families or list(FAMILIES)
    weights = [FAMILIES[name][1] for name in names]
    while True:
        document = FAMILIES[rng.choices(names, weights)[0]][0](rng)
        if document.held_out() == held_out:
            yield document
