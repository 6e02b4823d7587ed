"""Checks of the quality canaries' answers: pure functions that ignore differences of style.

A model may think aloud first, put its JSON into a fence, or add words; tool calls differ by family. Only the final
content is compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

_MOST_CHARACTERS = 20_000  # characters of an answer that are checked
_MOST_OBJECTS = 64  # possible beginnings of an object that are tried
_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_Type = Literal["string", "integer", "number", "boolean", "array", "object"]
TYPES: Mapping[_Type, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


Functions = Annotated[frozenset[str], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Requires an object with at least `keys` (name to type), with the given `values`."""

    keys: Mapping[str, _Type]
    values: Mapping[str, object]
    kind: Literal["json_object"] = "json_object"

    def complaint(self, answer: str) -> str:
        document = next(objects(answer), None)
        if document is None:
            return "no JSON object"
        for key, kind in self.keys.items():
            if key not in document:
                return f"no key {key!r}"
            if type(document[key]) not in TYPES[kind]:  # in Python, bool is a number; in JSON it is not
                return f"{key!r} is no {kind}: {shown(document[key])}"
        for key, wanted in self.values.items():
            if not _same(document.get(key), wanted):
                return f"{key!r} is {shown(document.get(key))}, not {shown(wanted)}"
        return ""


@dataclass(frozen=True, slots=True)
class ExpectedToolCall:
    """Requires exactly one parseable tool call of an allowed function, `name`, with exactly `arguments`."""

    allowed: Functions
    name: str
    arguments: Mapping[str, object]
    kind: Literal["tool_call"] = "tool_call"

    def complaint(self, answer: str) -> str:
        call = next(calls(answer), None)
        if call is None:
            return "no tool call"
        name, arguments = call
        if name not in self.allowed:
            return f"calls {shown(name)}, which is not allowed"
        if name != self.name:
            return f"calls {name}, not {self.name}"
        for key in (*self.arguments, *arguments):
            if key not in arguments:
                return f"no argument {key!r}"
            if key not in self.arguments:
                return f"argument {shown(key)} was not asked for"
            if not _alike(arguments[key], self.arguments[key]):
                return f"argument {key!r} is {shown(arguments[key])}, not {shown(self.arguments[key])}"
        return ""


@dataclass(frozen=True, slots=True)
class NoToolCall:
    """Requires an answer in words that contains one of `mentions`, without tool calls."""

    allowed: Functions
    mentions: Annotated[tuple[str, ...], Field(min_length=1)]
    kind: Literal["no_tool_call"] = "no_tool_call"

    def complaint(self, answer: str) -> str:
        call = next(calls(answer), None)
        if call is not None:
            return f"calls {shown(call[0])}, where a question was asked"
        said = _said(answer).casefold()
        if not any(re.search(rf"\b{re.escape(word.casefold())}\b", said) for word in self.mentions):
            return f"mentions none of {', '.join(self.mentions)}"
        return ""


Check = JsonObject | ExpectedToolCall | NoToolCall
"""What an answer must be. `complaint` says what is wrong with one; empty where nothing is. It never raises."""


def objects(answer: str) -> Iterator[dict[str, object]]:
    """Yields a text's outermost JSON objects, in order. Never raises."""
    said, decoder = _said(answer), json.JSONDecoder()
    at = said.find("{")
    for _ in range(_MOST_OBJECTS):
        if at < 0:
            return
        try:
            document, end = decoder.raw_decode(said, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield document
        at = said.find("{", end)


def calls(answer: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields a text's tool calls as (name, arguments), in the known models' formats. Never raises."""
    for document in objects(answer):
        inner = document.get("function")
        call = inner if isinstance(inner, dict) else document
        name = call.get("name", inner if isinstance(inner, str) else None)
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):  # OpenAI's format has them as a JSON string
            arguments = next(objects(arguments), None)
        if isinstance(name, str) and isinstance(arguments, dict):
            yield name, arguments


def _said(answer: str) -> str:
    """Returns the answer after any thinking."""
    return _THOUGHT.sub("", answer[:_MOST_CHARACTERS])


def _same(value: object, wanted: object) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def _alike(value: object, wanted: object) -> bool:
    """Whether a tool would treat two values alike, such as 21 and 21.0, or 21 and "21"."""
    if isinstance(value, str) or isinstance(wanted, str):
        return str(value).strip().casefold() == str(wanted).strip().casefold()
    return _same(value, wanted)


def shown(value: object) -> str:
    """Returns a value for messages, shortened if long."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:59] + "…"
