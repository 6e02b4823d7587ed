"""JSON schemas of growing difficulty, drawn from a seed, the same every time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

COUNT = 320
_WORDS = ("name", "city", "größe", "price_per_unit", "id", "tags", "note", "日付", "is_open", "country", "x-y", "level")
_PATTERNS = (("^[A-Z]{2}[0-9]{3}$", 5), ("^(red|green|blue)$", 5), ("^[a-f0-9]{8}$", 8), ('^[^"]{1,6}$', 6))
_FORMATS = (("date", 10), ("uuid", 36), ("ipv4", 15))  # a time may have any number of digits


class Drawn(NamedTuple):
    """A schema. `bound` is the number of characters of the longest text that it allows, or None if it is unlimited."""

    name: str
    schema: dict[str, Any]
    bound: int | None


def schemas() -> list[Drawn]:
    return [_drawn(number) for number in range(COUNT)]


def _drawn(number: int) -> Drawn:
    dice, depth = random.Random(f"schema {number}"), 1 + number * 4 // COUNT
    making = _Making(dice)
    schema, bound = making.value(depth, top=True)
    if making.shared:
        schema = {**schema, "$defs": making.shared}
    if number % 80 == 79:  # no end: a string as long as the model likes
        schema, bound = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}, None
        schema |= {"additionalProperties": False}
    return Drawn(f"{number:03d}", schema, bound)


class _Making:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.shared: dict[str, Any] = {}

    def value(self, depth: int, top: bool = False) -> tuple[dict[str, Any], int]:
        """Returns a schema, and the length of its longest text."""
        leaves = (self._string, self._pattern, self._format, self._integer, self._number, self._enum, self._constant)
        inner = (self._object, self._object, self._array, self._tuple, self._union, self._reference)
        makers: tuple[Callable[[int], tuple[dict[str, Any], int]], ...] = (
            inner[:2] if top else inner if depth else leaves
        )
        if depth and not top and self._dice.random() < 0.4:
            makers = leaves
        return self._dice.choice(makers)(depth)

    def _string(self, depth: int) -> tuple[dict[str, Any], int]:
        most = self._dice.choice((0, 1, 4, 12))
        return {"type": "string", "maxLength": most, "minLength": self._dice.randint(0, most)}, 2 + 6 * most

    def _pattern(self, depth: int) -> tuple[dict[str, Any], int]:
        pattern, most = self._dice.choice(_PATTERNS)
        return {"type": "string", "pattern": pattern}, 2 + 6 * most

    def _format(self, depth: int) -> tuple[dict[str, Any], int]:
        name, most = self._dice.choice(_FORMATS)
        return {"type": "string", "format": name}, 2 + most

    def _integer(self, depth: int) -> tuple[dict[str, Any], int]:
        low = self._dice.randint(-2000, 2000)
        found: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": low + self._dice.choice((0, 7, 300))}
        if self._dice.random() < 0.2:
            found = {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5}
        return found, 5

    def _number(self, depth: int) -> tuple[dict[str, Any], int]:
        # Digits after the point have no end, but a step has.
        return {"type": "number", "minimum": -10, "maximum": 10, "multipleOf": 0.25}, 6

    def _enum(self, depth: int) -> tuple[dict[str, Any], int]:
        values = self._dice.sample(["a", "Zürich", "東京", 'say "no"', 7, True, None, "tab\there", -1.5], 4)
        return {"enum": values}, 24

    def _constant(self, depth: int) -> tuple[dict[str, Any], int]:
        return self._dice.choice((({"const": {"k": [1, "é"]}}, 24), ({"type": "boolean"}, 5), ({"type": "null"}, 4)))

    def _object(self, depth: int) -> tuple[dict[str, Any], int]:
        names = self._dice.sample(_WORDS, self._dice.randint(1, 2 + depth))
        properties, bound = {}, 2
        for name in names:
            properties[name], length = self.value(depth - 1)
            bound += len(name) + 6 + length
        required = [name for name in names if self._dice.random() < 0.7]
        made = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return made, bound

    def _array(self, depth: int) -> tuple[dict[str, Any], int]:
        items, length = self.value(depth - 1)
        most = self._dice.randint(1, 3)
        made = {"type": "array", "items": items, "minItems": self._dice.randint(0, most), "maxItems": most}
        return made, 2 + most * (length + 2)

    def _tuple(self, depth: int) -> tuple[dict[str, Any], int]:
        parts = [self.value(depth - 1) for _ in range(2)]
        made = {"type": "array", "prefixItems": [part for part, _ in parts], "items": False, "minItems": 2}
        return made, 6 + sum(length for _, length in parts)

    def _union(self, depth: int) -> tuple[dict[str, Any], int]:
        parts = [self.value(depth - 1) for _ in range(2)]
        return {"anyOf": [part for part, _ in parts]}, max(length for _, length in parts)

    def _reference(self, depth: int) -> tuple[dict[str, Any], int]:
        name = f"part{len(self.shared)}"
        self.shared[name] = {}  # it has a place before what it refers to
        self.shared[name], length = self.value(depth - 1)
        return {"$ref": f"#/$defs/{name}"}, length
