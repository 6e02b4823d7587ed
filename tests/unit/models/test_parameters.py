"""A call that is demanded has the arguments that its tool names. Formats of answers follow JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftd.engine.pair import load_tokenizer
from draftd.models import grammar, parameters
from draftd.models.grammar import Grammars
from tests.conftest import NanoPair

A: dict[str, Any] = {"a": {"type": "integer"}}
B: dict[str, Any] = {"b": {"type": "integer"}}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
DEFS = {"Base": {"type": "object", "properties": A}, "Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}}


@pytest.fixture(scope="module")
def grammars(nano_pair: NanoPair) -> Grammars:
    made = load_tokenizer(nano_pair.target).grammars(4096)
    assert made is not None
    return made


def allows(grammars: Grammars, source: str, value: object) -> bool:
    matcher = grammars.matcher(source)
    ids = grammars._fast.encode(json.dumps(value), add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


# Parameters, arguments that they allow, and invented ones.
CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({}, [{}], [{"a": 1}, 1]),
    ({"type": "object"}, [{}], [{"a": 1}]),
    (EMPTY, [{}], [{"a": 1}]),
    ({"type": "object", "properties": A}, [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    ({"type": "object", "properties": A, "required": ["a", "b"]}, [{"a": 1, "b": "x"}], [{"a": 1, "b": 1, "c": 1}]),
    ({"type": "object", "required": ["b"]}, [{"b": 1}], [{"b": 1, "a": 1}]),
    ({**EMPTY, "patternProperties": {"^x": {"type": "integer"}}}, [{}, {"x1": 1}], [{"a": 1}]),
    # What is said stays.
    ({**EMPTY, "additionalProperties": True}, [{}, {"a": 1}], []),
    ({"type": "object", "properties": A, "additionalProperties": {"type": "null"}}, [{"q": None}], [{"q": 1}]),
    ({"type": "object", "additionalProperties": True}, [{"a": 1}], []),
    # Within: an object is closed where it has properties, and may be a map where it has none.
    ({"type": "object", "properties": {"o": EMPTY}}, [{"o": {}}], [{"o": {"a": 1}}]),
    (
        {"type": "object", "properties": {"o": {"type": "array", "items": DEFS["Base"]}}},
        [{"o": [{"a": 1}]}],
        [{"o": [{"b": 1}]}],
    ),
    ({"type": "object", "properties": {"map": {"type": "object"}}}, [{"map": {"a": 1}}], [{"other": 1}]),
    # Schemas of one value are closed as one.
    ({"type": "object", "allOf": [{"properties": A}, {"properties": B}]}, [{"a": 1, "b": 1}, {}], [{"c": 1}]),
    (
        {"type": "object", "properties": B, "allOf": [{"$ref": "#/$defs/Base"}], "$defs": DEFS},
        [{"b": 1, "a": 1}],
        [{"c": 1}],
    ),
    (
        {"type": "object", "properties": {**A, **B}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"b": 1}],
        [{}],
    ),
    ({"type": "object", "properties": A, "anyOf": [{"properties": B}, {"required": ["a"]}]}, [{"a": 1}], [{"c": 1}]),
    ({"type": "object", "oneOf": [{"properties": A, "required": ["a"]}]}, [{"a": 1}], [{"a": 1, "b": 1}]),
    # References, to whole objects and in a circle.
    ({"type": "object", "$ref": "#/$defs/Base", "$defs": DEFS}, [{"a": 1}], [{"b": 1}]),
    (
        {"type": "object", "properties": {"n": {"anyOf": [{"$ref": "#/$defs/Base"}, {"type": "null"}]}}, "$defs": DEFS},
        [{"n": None}, {"n": {"a": 1}}],
        [{"n": {"b": 1}}],
    ),
    (
        {"type": "object", "properties": {"n": {"$ref": "#/$defs/Node"}}, "$defs": DEFS},
        [{"n": {"next": {"next": {}}}}],
        [{"n": {"next": {"b": 1}}}],
    ),
]


@pytest.mark.parametrize(("schema", "allowed", "invented"), CASES, ids=lambda v: json.dumps(v)[:60])
def test_tool_call_grammar_rejects_arguments_that_the_tool_does_not_name(
    grammars: Grammars, schema: dict[str, Any], allowed: list[Any], invented: list[Any]
) -> None:
    before = json.dumps(schema)
    source = grammar.arguments(before)
    assert [value for value in allowed if not allows(grammars, source, value)] == []
    assert [value for value in invented if allows(grammars, source, value)] == []
    parameters.close_schema(schema)
    assert json.dumps(schema) == before


def test_tool_without_parameters_accepts_only_empty_arguments(grammars: Grammars) -> None:
    assert allows(grammars, grammar.arguments(""), {})
    assert not allows(grammars, grammar.arguments(""), {"a": 1})


@pytest.mark.parametrize("schema", [{}, EMPTY, {"type": "object"}, {"type": "object", "properties": A}])
def test_json_schema_answer_format_permits_additional_properties_by_default(
    grammars: Grammars, schema: dict[str, Any]
) -> None:
    source = grammar.json_schema(json.dumps(schema))
    assert allows(grammars, source, {"b": 1})


def test_tool_parameters_with_a_list_for_properties_are_refused(grammars: Grammars) -> None:
    """PHP writes an empty object as a list."""
    with pytest.raises(ValueError, match="properties must be an object"):
        grammars.compile(grammar.arguments('{"type": "object", "properties": []}'))


def test_tool_parameter_schema_with_excessive_branches_or_depth_is_refused() -> None:
    """As when every object has all others for its branches."""
    every = [{"$ref": f"#/$defs/{i}"} for i in range(800)]
    attack = {"type": "object", "$defs": {str(i): {"properties": {}, "allOf": every} for i in range(800)}}
    with pytest.raises(ValueError, match="too many branches"):
        parameters.close_schema(attack)
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ValueError, match="too deeply"):
        parameters.close_schema(deep)
