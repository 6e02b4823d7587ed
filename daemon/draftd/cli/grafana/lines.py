"""A JSON value as sorted lines `path = value`, so that two can be compared, and the difference read by a person.

An item of a list is named by what names it (a panel by its title, a query by its refId) where that is unique, so that a
new panel does not rename all that follow it. What is empty or false counts as absent: Grafana fills such values in.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any

_NAMES = ("uid", "refId", "title", "name")


def lines(value: Any) -> list[str]:
    return sorted(_walk(value, ""))


def diff(before: Sequence[str], after: Sequence[str], name: str) -> list[str]:
    """Unified, from what the Grafana has to what it will have."""
    made = difflib.unified_diff(before, after, f"grafana/{name}", f"draftd/{name}", lineterm="", n=1)
    return list(made)


def _walk(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for label, item in zip(_labels(value), value, strict=True):
            yield from _walk(item, f"{path}[{label}]")
    elif not _absent(value):
        yield f"{path} = {json.dumps(value, ensure_ascii=False)}"


def _absent(value: Any) -> bool:
    return value is None or value is False or value == ""


def _labels(items: list[Any]) -> list[str]:
    for name in _NAMES:
        found = [item.get(name) for item in items if isinstance(item, dict)]
        if len(found) == len(items) and all(found) and len(set(map(str, found))) == len(items):
            return [json.dumps(str(label), ensure_ascii=False) for label in found]
    return [str(i) for i in range(len(items))]
