"""JSON schemas implied by canaries' checks, and a check of answers against them.

It does not use the library that turns schemas into grammars, so it detects wrong grammars.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from draftd.canaries.checkers import TYPES, Check, ExpectedToolCall, JsonObject, shown

Schema = Mapping[str, Any]

# With bounds every answer ends before `max_tokens`, whatever the model.
_BOUNDS = {"minimum": -1_000_000, "maximum": 1_000_000}
_SIMPLE: Mapping[str, Schema] = {
    "string": {"type": "string", "maxLength": 32},
    "integer": {"type": "integer", **_BOUNDS},
    "number": {"type": "number", **_BOUNDS, "multipleOf": 0.01},
    "boolean": {"type": "boolean"},
}
_NAMES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(check: Check) -> Schema | None:
    """Returns the JSON schema that an answer to the check must follow: an object with exactly the checked names and
    types. For a tool call, `name` may be any of the allowed functions, and `arguments` has the expected names and
    types. None for other checks, and if a type is an array or an object."""
    if isinstance(check, JsonObject):
        return _object(check.keys)
    if isinstance(check, ExpectedToolCall):
        arguments = _object({name: _NAMES.get(type(value), "") for name, value in check.arguments.items()})
        if arguments is not None:
            return _closed_object({"name": {"enum": sorted(check.allowed)}, "arguments": arguments})
    return None


def mismatch(answer: str, schema: Schema) -> str:
    """Returns how an answer violates a schema made by `schema_of`; empty if it does not. The answer must be JSON and
    nothing else. Never raises."""
    try:
        value = json.loads(answer, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return f"no JSON: {shown(answer)}"
    return next(_wrong(value, schema, "it"), "")


def _object(kinds: Mapping[str, str]) -> Schema | None:
    properties = {name: _SIMPLE[kind] for name, kind in kinds.items() if kind in _SIMPLE}
    return _closed_object(properties) if len(properties) == len(kinds) else None


def _closed_object(properties: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _no_json(constant: str) -> None:
    raise ValueError(constant)  # NaN, Infinity: accepted by Python


def _wrong(value: Any, schema: Schema, name: str) -> Iterator[str]:
    if "enum" in schema:
        if value not in schema["enum"]:
            yield f"{name} is {shown(value)}, none of {', '.join(schema['enum'])}"
        return
    if type(value) not in TYPES[schema["type"]]:
        yield f"{name} is no {schema['type']}: {shown(value)}"
    elif isinstance(value, dict):
        properties = schema["properties"]
        yield from (f"no key {key!r}" for key in schema["required"] if key not in value)
        for key, inner in value.items():
            if key in properties:
                yield from _wrong(inner, properties[key], repr(key))
            else:
                yield f"{shown(key)} is no key of the schema"
    elif isinstance(value, str):
        if len(value) > schema["maxLength"]:
            yield f"{name} is longer than {schema['maxLength']} characters: {shown(value)}"
    elif not isinstance(value, bool):
        if not schema["minimum"] <= value <= schema["maximum"]:
            yield f"{name} is out of bounds: {shown(value)}"
        if "multipleOf" in schema and abs(value - round(value, 2)) > 1e-9:
            yield f"{name} has more than two decimals: {shown(value)}"
