"""Which keywords of a JSON schema demand nothing, and that what is left compiles."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
from llguidance import LLMatcher

from draftd.models.grammar import Grammars, json_schema
from draftd.models.idle_keywords import _ENFORCED_FORMATS, without_idle_keywords

STRING = {"type": "string"}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    from transformers import AutoTokenizer

    fast: Any = AutoTokenizer.from_pretrained(str(files("draftd.models.nano") / "target"))
    return Grammars(fast, [0], len(fast))


# Of pydantic, zod and OpenAPI generators.
@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": "object", "propertyNames": STRING, "additionalProperties": STRING}, {"additionalProperties": STRING}),
        ({"type": "array", "items": STRING, "uniqueItems": False}, {"items": STRING}),
        ({"type": "string", "format": "password"}, {}),
        ({"type": "integer", "format": "int64"}, {}),
        ({"type": "string", "format": "date-time"}, {"format": "date-time"}),
        ({"type": "string", "contentEncoding": "base64", "x-order": 1, "example": "a"}, {}),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": False}, {"minimum": 0}),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {}),
        ({"type": "integer", "default": 2**70, "examples": [-(2**70)]}, {}),
        ({"type": "object", "unevaluatedProperties": {}, "dependentRequired": {}}, {}),
        ({"type": "object", "$schema": "https://spec.openapis.org/oas/3.1/dialect/base"}, {}),
        ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}, {}),
    ],
)
def test_json_schema_keywords_without_effect_are_removed_at_every_depth(
    schema: dict[str, Any], left: dict[str, Any], grammars: Grammars
) -> None:
    expected = {"type": schema["type"], **left}
    for wrap in (
        lambda one: one,
        lambda one: {"type": "object", "properties": {"uniqueItems": one, "format": one}},
        lambda one: {"$ref": "#/components/schemas/A", "components": {"schemas": {"A": one}}},
        lambda one: {"anyOf": [one, {"type": "array", "items": one}], "$defs": {"x-a": one}},
    ):
        given = wrap(copy.deepcopy(schema))
        assert without_idle_keywords(given) == wrap(expected)
        assert given == wrap(schema), "what was given stays"
    grammars.compile(json_schema(json.dumps(schema)))


@pytest.mark.parametrize(
    "schema", [{"type": "array", "uniqueItems": True}, {"not": STRING}, {"propertyNames": {"format": "email"}}]
)
def test_unsupported_json_schema_keywords_are_not_removed_and_are_refused(
    schema: dict[str, Any], grammars: Grammars
) -> None:
    assert without_idle_keywords(schema) == schema
    with pytest.raises(ValueError, match="not|uniqueItems|propertyNames|Unimplemented"):
        grammars.compile(json_schema(json.dumps(schema)))


@pytest.mark.parametrize("name", _ENFORCED_FORMATS)
def test_retained_json_schema_formats_compile_to_grammars(name: str, grammars: Grammars) -> None:
    grammars.compile(json_schema(f'{{"type": "string", "format": "{name}"}}'))


@pytest.mark.parametrize("name", ["password", "int64", "binary", "regex", "iri"])
def test_removed_json_schema_formats_are_unsupported_by_grammar_compiler(name: str) -> None:
    assert "format" in str(
        LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema({"type": "string", "format": name}))
    )
