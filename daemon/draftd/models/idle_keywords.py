"""Removes keywords without effect from a JSON schema.

llguidance refuses a schema for every keyword that it does not enforce, whatever the value. Generators write many:
values that allow everything, annotations, and formats unknown to llguidance. The remaining schema means the same.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from draftd.models.schemas import rebuilt

# Values of keywords that allow everything.
_IDLE: Mapping[str, Sequence[object]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "exclusiveMinimum": (False,),  # in drafts before 6, and OpenAPI 3.0
    "exclusiveMaximum": (False,),
    "minimum": (-sys.float_info.max,),
    "maximum": (sys.float_info.max,),
    "nullable": (False,),
    "minProperties": (0,),
}
# Annotations of JSON Schema and OpenAPI, for people and code generators. Some values may have any size, which
# llguidance refuses.
_ANNOTATIONS = (
    "default",
    "examples",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "discriminator",
    "xml",
    "externalDocs",
    "example",
)
_ENFORCED_FORMATS = (
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"
)  # fmt: skip


def without_idle_keywords(schema: Any) -> Any:
    """Returns a copy of a schema without keywords that have no effect. OpenAPI's `nullable: true` adds the type null.
    Raises RecursionError for very deep nesting."""
    return rebuilt(schema, _without_own)


def _without_own(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if not _is_idle(key, value)}
    if kept.pop("nullable", None) is True and isinstance(kept.get("type"), str):
        kept["type"] = [kept["type"], "null"]
        if isinstance(kept.get("enum"), list) and None not in kept["enum"]:
            kept["enum"] = [*kept["enum"], None]
    return kept


def _is_idle(key: str, value: Any) -> bool:
    if key in _ANNOTATIONS or key.startswith("x-"):
        return True
    if key == "$schema":  # a dialect unknown to llguidance, such as OpenAPI's
        return isinstance(value, str) and "json-schema.org" not in value
    if key == "format":
        return isinstance(value, str) and value not in _ENFORCED_FORMATS
    # In Python True equals 1, but it means something else here.
    return any(type(value) is type(idle) and value == idle for idle in _IDLE.get(key, ()))
