"""A JSON schema without the keywords that demand nothing.

llguidance refuses a schema for every keyword that it does not enforce, whatever its value. Generators write many:
values that allow everything, annotations, and formats that llguidance does not know. The schema that is left means the
same.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from draftd.models.schemas import rebuilt

# What these values of a keyword allow is everything.
_IDLE: Mapping[str, Sequence[object]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "exclusiveMinimum": (False,),  # of drafts before 6, and OpenAPI 3.0
    "exclusiveMaximum": (False,),
    "minimum": (-sys.float_info.max,),
    "maximum": (sys.float_info.max,),
    "nullable": (False,),
    "minProperties": (0,),
}
# JSON Schema's and OpenAPI's, for people and for code that is generated. The values of some are of any size, which
# llguidance does not read.
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
    """Copies a schema without them. OpenAPI's `nullable: true` is the type null besides. Raises RecursionError for one
    that is nested very deeply."""
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
    if key == "$schema":  # a dialect that llguidance does not know, such as OpenAPI's
        return isinstance(value, str) and "json-schema.org" not in value
    if key == "format":
        return isinstance(value, str) and value not in _ENFORCED_FORMATS
    # True equals 1, and means something else.
    return any(type(value) is type(idle) and value == idle for idle in _IDLE.get(key, ()))
