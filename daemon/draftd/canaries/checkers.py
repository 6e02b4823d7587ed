"""Is an answer right? Checks of the quality canaries: pure, and lenient where models differ only in manner.

A model may think aloud before, put its JSON into a fence, or say a word around it; how it calls a tool differs by
family. What is compared is what was said in the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

_MOST_CHARACTERS = 20_000  # of an answer that is looked at
_MOST_OBJECTS = 64  # places at which an object may begin that are tried
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
    """An object with at least `keys` (name to type), of which those in `values` have these values."""

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
            if type(document[key]) not in TYPES[kind]:  # Python has truth among the numbers; JSON has not
                return f"{key!r} is no {kind}: {shown(document[key])}"
        for key, wanted in self.values.items():
            if not _same(document.get(key), wanted):
                return f"{key!r} is {shown(document.get(key))}, not {shown(wanted)}"
        return ""


@dataclass(frozen=True, slots=True)
class ExpectedToolCall:
    """One call that parses, of an allowed function: of `name`, with exactly `arguments`."""

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
    """An answer in words that mentions one of `mentions`, and calls nothing, for no tool was asked for."""

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
    """The JSON objects in a text that are in no other, from the first. Never raises."""
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
    """The tool calls in a text, as (name, arguments), in the forms that models have for them. Never raises."""
    for document in objects(answer):
        inner = document.get("function")
        call = inner if isinstance(inner, dict) else document
        name = call.get("name", inner if isinstance(inner, str) else None)
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):  # OpenAI's form has them as JSON in a text
            arguments = next(objects(arguments), None)
        if isinstance(name, str) and isinstance(arguments, dict):
            yield name, arguments


def _said(answer: str) -> str:
    """What was said after all thinking."""
    return _THOUGHT.sub("", answer[:_MOST_CHARACTERS])


def _same(value: object, wanted: object) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def _alike(value: object, wanted: object) -> bool:
    """Whether a tool would take one for the other: 21, 21.0 and "21" are the same to it."""
    if isinstance(value, str) or isinstance(wanted, str):
        return str(value).strip().casefold() == str(wanted).strip().casefold()
    return _same(value, wanted)


def shown(value: object) -> str:
    """For messages: cut where it is long."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:59] + "…"
