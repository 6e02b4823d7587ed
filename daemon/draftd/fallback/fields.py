"""Reads a JSON document that may hold anything: each wrong field is named, with what it was and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from draftd.core import FallbackLevel

Choice = TypeVar("Choice", bound=StrEnum)


class Fields:
    """The fields of one JSON object. `where` is its path, for messages. Everything raises ValueError."""

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, Mapping):
            raise wrong(where or "the document", value, "an object")
        self._values: Mapping[str, object] = value
        self._where = where

    def at(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def raw(self, name: str) -> object:
        return self._values.get(name)

    def fields(self, name: str) -> Fields:
        return Fields(self.raw(name), self.at(name))

    def optional(self, name: str) -> Fields | None:
        return None if self.raw(name) is None else self.fields(name)

    def items(self, name: str) -> list[tuple[str, Fields]]:
        """An object whose values are objects; empty where it is missing."""
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, Mapping):
            raise wrong(self.at(name), value, "an object")
        return [(str(key), Fields(one, f"{self.at(name)}.{key}")) for key, one in value.items()]

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float:
        value = self.raw(name)
        allowed = (
            "a number" if low == -math.inf else f"a number from {low:g}" + ("" if high == math.inf else f" to {high:g}")
        )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(self.at(name), value, allowed)
        try:
            found = float(value)
        except OverflowError:
            raise wrong(self.at(name), value, allowed) from None
        if not (math.isfinite(found) and low <= found <= high):
            raise wrong(self.at(name), value, allowed)
        return found

    def optional_number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        return None if self.raw(name) is None else self.number(name, low, high)

    def count(self, name: str, most: int) -> int:
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise wrong(self.at(name), value, f"a whole number from 0 to {most}")
        return value

    def text(self, name: str) -> str:
        value = self.raw(name)
        if not isinstance(value, str):
            raise wrong(self.at(name), value, "text")
        return value

    def truth(self, name: str) -> bool:
        value = self.raw(name)
        if not isinstance(value, bool):
            raise wrong(self.at(name), value, "true or false")
        return value

    def level(self, name: str) -> FallbackLevel:
        value = self.raw(name)
        for level in FallbackLevel:
            if value == level.label:
                return level
        raise wrong(self.at(name), value, ", ".join(level.label for level in reversed(FallbackLevel)))

    def choice(self, name: str, kind: type[Choice]) -> Choice:
        return chosen(self.raw(name), kind, self.at(name))


def chosen(value: object, kind: type[Choice], where: str) -> Choice:
    for one in kind:
        if value == one.value:
            return one
    raise wrong(where, value, ", ".join(one.value for one in kind))


def wrong(field: str, value: object, allowed: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{field}: got {shown if len(shown) <= 80 else shown[:77] + '…'}; allowed: {allowed}")
