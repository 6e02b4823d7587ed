"""Tests of the checkers: one that accepts or rejects everything proves nothing.

From each check, right answers are composed, and wrong ones with a single fault each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftd.canaries.checkers import Check, ExpectedToolCall, JsonObject
from draftd.canaries.prompts import Canary
from draftd.canaries.schemas import mismatch, schema_of

_OF_TYPE: Mapping[str, object] = {
    "string": "word",
    "integer": 7,
    "number": 7.5,
    "boolean": True,
    "array": ["word"],
    "object": {"inner": 1},
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A checker's wrong verdict: the prompt, the answer, and how it is wrong."""

    prompt: str
    answer: str
    what: str


def faults(canaries: Sequence[Canary]) -> tuple[Fault, ...]:
    """Returns all wrong verdicts; empty if every checker is right."""
    faulty: list[Fault] = []
    for canary in canaries:
        for answer in right(canary.check):
            if said := canary.check.complaint(answer):
                faulty.append(Fault(canary.id, answer, f"rejects what is right: {said}"))
        for answer in spoilt(canary.check):
            if not canary.check.complaint(answer):
                faulty.append(Fault(canary.id, answer, "accepts what is wrong"))
        faulty += _schema_faults(canary)
    return tuple(faulty)


def _schema_faults(canary: Canary) -> Iterator[Fault]:
    schema = schema_of(canary.check)
    if schema is None:
        return
    whole = json.loads(next(right(canary.check)))
    if said := mismatch(json.dumps(whole), schema):
        yield Fault(canary.id, json.dumps(whole), f"its schema rejects what is right: {said}")
    wrong = [json.dumps(whole)[:-1], f"Here it is: {json.dumps(whole)}", *map(json.dumps, _misshapen(whole))]
    yield from (
        Fault(canary.id, answer, "its schema accepts what is wrong") for answer in wrong if not mismatch(answer, schema)
    )


def _misshapen(whole: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yields the object with one extra key, one key missing, or one value of another type; the same for nested
    objects."""
    yield {**whole, "not_asked_for": 1}
    for key, value in whole.items():
        yield {name: kept for name, kept in whole.items() if name != key}
        yield {**whole, key: None}
        if isinstance(value, Mapping):
            yield from ({**whole, key: inner} for inner in _misshapen(value))


def right(check: Check) -> Iterator[str]:
    """Yields correct answers in different styles."""
    if isinstance(check, JsonObject):
        said = json.dumps(_whole(check))
        yield from (said, f"<think>{{}}</think>{said}")
        yield f"Here it is:\n```json\n{json.dumps(_whole(check), indent=2)}\n```"
    elif isinstance(check, ExpectedToolCall):
        yield _call(check.name, check.arguments)
        yield f"<tool_call>\n{_call(check.name, check.arguments)}\n</tool_call>"
        yield json.dumps({"function": {"name": check.name, "arguments": json.dumps(dict(check.arguments))}})
    else:
        yield from (f"It is {word}." for word in check.mentions)


def spoilt(check: Check) -> Iterator[str]:
    """Yields wrong answers with one fault each."""
    yield from ("", "I would rather talk of the weather.")
    if isinstance(check, JsonObject):
        whole = _whole(check)
        yield json.dumps(whole)[:-1]
        for key in whole:
            yield json.dumps({name: value for name, value in whole.items() if name != key})
            yield json.dumps({**whole, key: None})
        for key, value in check.values.items():
            yield json.dumps({**whole, key: _other(value)})
    elif isinstance(check, ExpectedToolCall):
        arguments = dict(check.arguments)
        yield _call(check.name, arguments)[:-2]
        yield _call("no_such_function", arguments)
        yield from (_call(name, arguments) for name in sorted(check.allowed - {check.name}))
        yield _call(check.name, {**arguments, "not_asked_for": 1})
        for key, value in arguments.items():
            yield _call(check.name, {name: kept for name, kept in arguments.items() if name != key})
            yield _call(check.name, {**arguments, key: _other(value)})
    else:
        for name in sorted(check.allowed):
            yield f"It is {check.mentions[0]}. {_call(name, {})}"


def _whole(check: JsonObject) -> dict[str, object]:
    return {**{key: _OF_TYPE[kind] for key, kind in check.keys.items()}, **check.values}


def _call(name: str, arguments: Mapping[str, object]) -> str:
    return json.dumps({"name": name, "arguments": dict(arguments)})


def _other(value: object) -> object:
    """Returns a different value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}, or not" if isinstance(value, str) else [value]
