"""A JSON object from a file, read field by field: what is wrong is said with the file, the line and the field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftd.errors import FieldError


class FrozenPromptError(FieldError):
    """A file of frozen prompts is not as it should be: says which file, line and field."""


@dataclass(frozen=True, slots=True)
class Fields:
    """`place`: file and line, and the field it is in, where it is not a line's own object."""

    entry: Mapping[str, object]
    place: str

    def only(self, *names: str) -> Fields:
        """Itself, where it has exactly these fields."""
        for name in names:
            if name not in self.entry:
                raise self.wrong(name, None, "it must be there")
        for name, value in self.entry.items():
            if name not in names:
                raise self.wrong(name, value, f"no such field; there are {', '.join(sorted(names))}")
        return self

    def text(self, name: str) -> str:
        value = self.entry[name]
        if not isinstance(value, str) or not value:
            raise self.wrong(name, value, "a text that is not empty")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.entry[name]
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
            raise self.wrong(name, value, "a list of texts that are not empty")
        return tuple(value)

    def number(self, name: str, most: int) -> int:
        value = self.entry[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.wrong(name, value, f"a whole number from 1 to {most}")
        return value

    def one_of(self, name: str, allowed: Sequence[str]) -> str:
        value = self.entry.get(name)
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong(name, value, ", ".join(allowed))
        return value

    def inner(self, name: str) -> Fields:
        """The object in this field."""
        value = self.entry[name]
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return Fields(value, f"{self._named(name)}.")

    def each(self, name: str) -> tuple[Fields, ...]:
        """The objects of the list in this field: at least one."""
        value = self.entry[name]
        if not isinstance(value, list) or not value:
            raise self.wrong(name, value, "a list of at least one object")
        for number, one in enumerate(value):
            if not isinstance(one, dict):
                raise self.wrong(f"{name}[{number}]", one, "an object")
        return tuple(Fields(one, f"{self._named(name)}[{number}].") for number, one in enumerate(value))

    def wrong(self, name: str, value: object, allowed: str) -> FrozenPromptError:
        return FrozenPromptError(self._named(name), value, allowed)

    def _named(self, name: str) -> str:
        return f"{self.place}{name}"


def lines(text: str, source: str) -> Iterator[Fields]:
    """The objects of a file with one a line; empty lines are skipped."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{source}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FrozenPromptError(place, line, f"a JSON object ({error})") from None
        if not isinstance(entry, dict):
            raise FrozenPromptError(place, entry, "a JSON object")
        yield Fields(entry, f"{place}: ")
