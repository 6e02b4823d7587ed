"""The seeded generator of training documents: all families, and each one's weight in the mix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from training.generator.arithmetic import arithmetic
from training.generator.base import Document, Family
from training.generator.facts import facts
from training.generator.functions import classes, functions
from training.generator.records import csv, json_object, logs, sql
from training.generator.stories import scenes, stories
from training.generator.tools import tool_call, tool_calls, tool_question, tool_result
from training.generator.words import lists, summary, talk, words

# (family, weight in each stage), counted in documents; a story has six times as many tokens as a fact. In the first
# stage sums have no working. The second stage gives exact tasks more weight. The last has prose that does not repeat
# itself.
FAMILIES: dict[str, tuple[Family, tuple[float, float, float]]] = {
    "facts": (facts, (17, 20, 23)),
    "plain_arithmetic": (partial(arithmetic, worked=False), (20, 0, 0)),
    "arithmetic": (arithmetic, (0, 17, 17)),
    "words": (words, (7, 6, 6)),
    "lists": (lists, (5, 5, 5)),
    "talk": (talk, (3, 3, 3)),
    "summary": (summary, (1, 1, 1)),
    "functions": (functions, (15, 16, 16)),
    "classes": (classes, (6, 6, 6)),
    "tool_call": (tool_call, (13, 15, 16)),
    "tool_calls": (tool_calls, (2, 1.5, 1)),
    "plain_tool_question": (partial(tool_question, worked=False), (7, 0, 0)),
    "tool_question": (tool_question, (0, 8, 8)),
    "tool_result": (tool_result, (1, 0.5, 0.5)),
    "json": (json_object, (3, 2.5, 2)),
    "sql": (sql, (3, 2.5, 2)),
    "logs": (logs, (1.5, 0.5, 0.3)),
    "csv": (csv, (1.5, 0.5, 0.3)),
    "plain_stories": (partial(stories, varied=False), (5, 3.5, 0)),
    "stories": (stories, (0, 0, 4.5)),
    "plain_scenes": (partial(scenes, varied=False), (3, 1.5, 0)),
    "scenes": (scenes, (0, 0, 2.5)),
}
STAGES = (0, 1, 2)
LAST_STAGE = STAGES[-1]


def documents(
    seed: int, *, held_out: bool = False, families: list[str] | None = None, stage: int = LAST_STAGE
) -> Iterator[Document]:
    """Yields documents without end, drawn from the mix: the held-out ones or the others. The same seed gives the same
    documents."""
    rng = Random(seed)
    names = families or list(FAMILIES)
    weights = [FAMILIES[name][1][stage] for name in names]
    while True:
        document = FAMILIES[rng.choices(names, weights)[0]][0](rng)
        if document.held_out() == held_out:
            yield document
