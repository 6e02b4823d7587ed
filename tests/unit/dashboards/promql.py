"""Finds the metrics in PromQL, and the labels expected of them. It covers only the grammar that we write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_WORDS = {
    "and", "or", "unless", "by", "on", "without", "ignoring", "group_left", "group_right", "offset", "bool",
    "sum", "min", "max", "avg", "count", "count_values", "group",
}  # fmt: skip
_JOINED = re.compile(r"(?:\band|\bunless|[*/]) on \(([^)]*)\)(?: group_left \(\))? ")
_GROUPING = re.compile(r"\b(\w+) by \(([^)]*)\) \(")


@dataclass(frozen=True)
class Use:
    """A metric named in an expression, and the labels that the expression expects of it."""

    name: str
    labels: frozenset[str]


def uses(expression: str) -> Iterator[Use]:
    """Yields every use of a metric in an expression."""
    created = _made(expression)
    masked = _STRING.sub(lambda name: '"' + "_" * (len(name[0]) - 2) + '"', expression)
    grouped, joined = list(_groups(masked)), list(_joins(masked))
    for name in _NAME.finditer(masked):
        if not _is_metric(masked, name):
            continue
        labels = set(_matched(masked, name.end()))
        join = max((one for one in joined if one[0] <= name.start() < one[1]), default=(0, 0, set()))
        labels |= join[2]
        for start, end, by in grouped:
            if max(start, join[0]) == start and start <= name.start() < end:
                labels |= by
        yield Use(name[0], frozenset(labels - created))


def _is_metric(masked: str, found: re.Match[str]) -> bool:
    before, after = masked[: found.start()], masked[found.end() :]
    if found[0] in _WORDS or after.lstrip().startswith("("):
        return False
    if before.endswith("$") or (before and (before[-1].isdigit() or before[-1] == "[")):
        return False  # a variable, or the unit of a duration
    inside = before.count("{") > before.count("}") or before.count("[") > before.count("]") or before.count('"') % 2
    listed = re.search(r"\b(?:by|on|without|ignoring|group_left|group_right) \([^)]*$", before)
    return not inside and not listed


def _matched(masked: str, at: int) -> list[str]:
    """Returns the labels between the braces after a name."""
    if not masked.startswith("{", at):
        return []
    return re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", masked[at : masked.index("}", at)])


def _joins(masked: str) -> Iterator[tuple[int, int, set[str]]]:
    """Yields the bounds of each join's right-hand side: it needs the join's labels, and none from around it."""
    for join in _JOINED.finditer(masked):
        yield join.end(), closing(masked, join.end()), {one.strip() for one in join[1].split(",")}


def closing(masked: str, start: int) -> int:
    """Returns where the bracket that is open at `start` closes."""
    depth = 1
    for at in range(start, len(masked)):
        depth += {"(": 1, ")": -1}.get(masked[at], 0)
        if depth == 0:
            return at
    return len(masked)


def _groups(masked: str) -> Iterator[tuple[int, int, set[str]]]:
    """Yields the bounds of each aggregation's argument, and the labels that it keeps."""
    for grouping in _GROUPING.finditer(masked):
        yield grouping.end(), closing(masked, grouping.end()), {one.strip() for one in grouping[2].split(",")}


def _made(expression: str) -> set[str]:
    """Returns the labels that the expression itself creates."""
    replaced = re.findall(r'label_replace\(.*?, "(\w+)", "', expression, re.DOTALL)
    return {*replaced, *re.findall(r'count_values[^(]*(?:\([^)]*\) )?\("(\w+)"', expression)}
