"""Where a JSON schema has others within it, and what a reference stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

# OpenAPI has schemas in `components.schemas`.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "schemas")  # have a schema for each name
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLE = ("items", "additionalItems", "additionalProperties", "contains", "components")
_ALSO_NAMED = (*NAMED, "dependentSchemas")
_ALSO_SINGLE = (*SINGLE, "propertyNames", "unevaluatedItems", "unevaluatedProperties", "not", "if", "then", "else")


def rebuilt(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Copies a schema, and changes each schema in it, the innermost first. `change` gets a copy. Raises RecursionError
    for one that is nested very deeply."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _ALSO_NAMED and isinstance(value, dict):
            value = {name: rebuilt(one, change) for name, one in value.items()}
        elif key in LISTED and isinstance(value, list):
            value = [rebuilt(one, change) for one in value]
        elif key in _ALSO_SINGLE:
            value = rebuilt(value, change)
        result[key] = value
    return change(result)


def referred(root: Any, reference: Any) -> Any:
    """The part of the document that a `$ref` names; None where there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and step.isdecimal() and int(step) < len(place):
            place = place[int(step)]
        else:
            place = place.get(step) if isinstance(place, dict) else None
    return place
