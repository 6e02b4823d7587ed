"""Traversal of JSON schemas: nested schemas, and references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

# OpenAPI keeps schemas in `components.schemas`.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "schemas")  # keywords with a schema for each name
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLE = ("items", "additionalItems", "additionalProperties", "contains", "components")
_ALSO_NAMED = (*NAMED, "dependentSchemas")
_ALSO_SINGLE = (*SINGLE, "propertyNames", "unevaluatedItems", "unevaluatedProperties", "not", "if", "then", "else")


def rebuilt(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Returns a copy of a schema in which `change` has replaced each nested schema, the innermost first. `change`
    receives a copy. Raises RecursionError for very deep nesting."""
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


def resolve_reference(root: Any, reference: Any) -> Any:
    """Returns the part of the document that a `$ref` names; None if there is none."""
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
