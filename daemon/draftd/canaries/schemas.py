"""The JSON schema that a canary's check implies, and whether an answer is what such a schema says.

It is read here without the library that makes grammars of schemas, so that a grammar that is wrong shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from draftd.canaries.checkers import TYPES, Check, ExpectedToolCall, JsonObject, shown

Schema = Mapping[str, Any]

# With bounds every answer ends, whatever the model: none is cut by `max_tokens`.
_BOUNDS = {"minimum": -1_000_000, "maximum": 1_000_000}
_SIMPLE: Mapping[str, Schema] = {
    "string": {"type": "string", "maxLength": 32},
    "integer": {"type": "integer", **_BOUNDS},
    "number": {"type": "number", **_BOUNDS, "multipleOf": 0.01},
    "boolean": {"type": "boolean"},
}
_NAMES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(check: Check) -> Schema | None:
    """An object with exactly what is checked, by name and type. Of a tool call: which of the allowed functions is left
    to the model. None where nothing follows from the check, or no more than that a value is an array or an object."""
    if isinstance(check, JsonObject):
        return _object(check.keys)
    if isinstance(check, ExpectedToolCall):
        arguments = _object({name: _NAMES.get(type(value), "") for name, value in check.arguments.items()})
        if arguments is not None:
            return _closed_object({"name": {"enum": sorted(check.allowed)}, "arguments": arguments})
    return None


def mismatch(answer: str, schema: Schema) -> str:
    """What is wrong with an answer under a schema of `schema_of`; empty where nothing is. It is JSON and nothing else.
    Never raises."""
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
    raise ValueError(constant)  # NaN, Infinity: Python takes them


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
