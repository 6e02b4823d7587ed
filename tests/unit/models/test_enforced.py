"""Schemas in words that llguidance enforces: which are the same, and that what is not is left as it is."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from draftd.models.enforced import _FORMATS, _WITHOUT_LOOKAHEAD, in_enforced_words
from draftd.models.grammar import json_schema

STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def variant(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": kind}, **more}, "required": ["kind"]}


DEFS = {"Cat": variant("cat"), "Dog": variant("dog"), "Pet": {"enum": ["cat", "dog"]}}


@pytest.mark.parametrize(
    "branches",
    [
        [STRING, {"type": "null"}, INTEGER],
        [variant("cat"), variant("dog")],
        [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}, variant("fish")],
        [{"allOf": [{"$ref": "#/$defs/Cat"}, {"required": ["name"]}]}, {"$ref": "#/$defs/Dog"}],
        [{"enum": ["a", 1]}, {"enum": ["b", 2]}],
        [{"type": "object", "required": ["a"]}, {"type": "object", "properties": {}, "additionalProperties": False}],
        [{"anyOf": [variant("cat"), variant("dog")]}, variant("fish")],
    ],
)
def test_json_schema_one_of_with_exclusive_branches_becomes_any_of(branches: list[Any]) -> None:
    schema = {"oneOf": branches, "$defs": DEFS}
    before = copy.deepcopy(schema)
    assert in_enforced_words(schema) == {"anyOf": branches, "$defs": DEFS}
    assert schema == before


@pytest.mark.parametrize(
    "branches",
    [
        [STRING, {"type": "string", "minLength": 2}],
        [{"type": "number"}, INTEGER],
        [{"enum": [1]}, {"const": 1.0}],
        [{"const": [1]}, {"const": [1.0]}],
        [variant("cat"), variant("cat")],
        [{"properties": {"kind": {"const": "a"}}}, {"properties": {"kind": {"const": "b"}}}],  # neither requires it
        [{**variant("a"), "type": ["object", "null"]}, {**variant("b"), "type": ["object", "null"]}],
        [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}],
        [{"$ref": "#/$defs/Nobody"}, STRING, {"$ref": "#"}],
        [True, STRING],
    ],
)
def test_json_schema_one_of_with_overlapping_branches_is_unchanged(branches: list[Any]) -> None:
    assert in_enforced_words({"oneOf": branches}) == {"oneOf": branches}


def test_json_schema_with_any_of_and_one_of_still_demands_both() -> None:
    schema = {"anyOf": [STRING, INTEGER], "oneOf": [STRING, {"type": "null"}]}
    assert in_enforced_words(schema) == {"anyOf": schema["anyOf"], "allOf": [{"anyOf": schema["oneOf"]}]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"enum": ["a", "b"], "type": "string"}, {"properties": {"a": INTEGER, "b": INTEGER}}),
        ({"const": "a", "title": "x"}, {"properties": {"a": INTEGER}}),
        ({"$ref": "#/$defs/Pet"}, {"properties": {"cat": INTEGER, "dog": INTEGER}}),
        ({"pattern": "^x"}, {"patternProperties": {"^x": INTEGER}}),
        ({"minLength": 2, "maxLength": 3}, {"patternProperties": {"^[\\s\\S]{2,3}$": INTEGER}}),
        ({"format": "date"}, {"patternProperties": {_FORMATS["date"]: INTEGER}}),
        ({"format": "email"}, None),
        ({"pattern": "^x", "minLength": 3}, None),
        ({"$ref": "#/$defs/Nobody"}, None),
        ({"not": {"const": "a"}}, None),
    ],
)
def test_json_schema_property_names_is_rewritten_as_listed_or_pattern_properties(
    names: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    schema = {"type": "object", "propertyNames": names, "additionalProperties": INTEGER, "$defs": DEFS}
    if expected is None:
        assert in_enforced_words(schema) == schema
    else:
        assert in_enforced_words(schema) == {
            "type": "object", **expected, "additionalProperties": False, "$defs": DEFS
        }  # fmt: skip


def test_json_schema_unevaluated_properties_false_becomes_additional_properties_false() -> None:
    parts = [{"properties": {"a": STRING}}, {"$ref": "#/$defs/Cat"}]
    schema = {"allOf": parts, "properties": {"b": STRING}, "unevaluatedProperties": False, "$defs": DEFS}
    closed = {"properties": {"b": STRING, "a": True, "kind": True}, "additionalProperties": False}
    assert in_enforced_words(schema) == {"allOf": parts, "$defs": DEFS, **closed}
    open_part = {"anyOf": [{"properties": {"c": STRING}}, True]}
    left = {"allOf": [*parts, open_part], "unevaluatedProperties": False, "$defs": DEFS}
    assert in_enforced_words(left) == left


def test_json_schema_that_allows_nothing_becomes_false() -> None:
    schema = {"properties": {"a": {"not": {}}, "b": {"not": {"not": {}}}}, "additionalProperties": {"not": True}}
    assert in_enforced_words(schema) == {"properties": {"a": False, "b": {}}, "additionalProperties": False}
    assert in_enforced_words({"not": STRING}) == {"not": STRING}
    with pytest.raises(ValueError, match="the keyword `not` "):
        json_schema('{"not": {}}')


@pytest.mark.parametrize(("old", "new"), _WITHOUT_LOOKAHEAD.items())
def test_rewriting_json_schema_format_patterns_without_lookahead_changes_no_match(old: str, new: str) -> None:
    texts = ["", "P", "PT", "P1W", "P1D", "P1Y2M3D", "P1M1D", "PT1H", "PT1M1S", "PT1,5S", "P1DT", "P1WT1H", "P1DT1H1S"]
    for local in ("a", "a.b", ".a", "a.", "a..b", "a'", "a-", "'.a", "", "a'b"):
        texts += [f"{local}@{domain}" for domain in ("b.de", "b", "b-.de", "-b.de", "b..de", "b.c.de", "b.d")]
    assert [text for text in texts if bool(re.match(old, text)) != bool(re.match(new, text))] == []


def test_json_schema_integer_bounds_are_clamped_to_64_bits_and_impossible_ones_refused() -> None:
    for kind in ("integer", ["integer", "null"]):
        for wide in (2**63, 2**64, 10**400):
            schema = {"type": kind, "minimum": -wide, "exclusiveMaximum": wide}
            within = {"minimum": -(2**63) + 1024, "exclusiveMaximum": 2**63 - 1}
            assert in_enforced_words(schema) == {**schema, **within}
    for key, value in (("minimum", 2**64), ("maximum", -(2**64))):
        with pytest.raises(ValueError, match=f"^{key}: "):
            json_schema(json.dumps({"type": "integer", key: value}))
    for number in ("1e19", "1" + "0" * 400):
        with pytest.raises(ValueError, match="^maximum: 1"):
            json_schema(f'{{"type": "number", "maximum": {number}}}')
    assert in_enforced_words({"type": "string", "minimum": 2**64}) == {"type": "string", "minimum": 2**64}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": 3, "allOf": 3, "anyOf": 3, "properties": 3, "required": 3, "propertyNames": 3, "type": 3, "enum": 3},
        {"unevaluatedProperties": False, "allOf": 3, "properties": []},
        {"oneOf": [{"type": [[]], "required": [[]]}, {"$ref": []}, 3], "anyOf": {}, "allOf": 3},
        {"oneOf": [], "pattern": 3, "minimum": "x"},
    ],
)
def test_json_schema_rewriting_ignores_malformed_keyword_values(schema: dict[str, Any]) -> None:
    in_enforced_words(schema)


def test_json_schema_rewriting_stops_early_on_huge_or_circular_schemas() -> None:
    many = [{"$ref": "#/$defs/Values"}] * 5000
    attack = {"oneOf": many, "$defs": {"Values": {"enum": list(range(30_000))}}}
    assert "oneOf" in in_enforced_words(attack)
    circle = {"unevaluatedProperties": False, "allOf": [{"$ref": "#"}]}
    assert "unevaluatedProperties" in in_enforced_words(circle)
    with pytest.raises(ValueError, match="too deeply"):
        json_schema('{"items": ' * 5000 + "{}" + "}" * 5000)


VALUES: list[Any] = [
    None, True, 0, 1, 1.0, 1.5, "a", "ab", [], [1], {}, {"a": 1}, {"b": 1}, {"a": 1, "b": "a"}, {"a": "b", "c": 1},
    {"c": None}, {"ab": 1}, {"a": {"a": 1}},
]  # fmt: skip
SIMPLE: list[Any] = [
    True, False, {}, {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": ["object", "null"]},
    {"const": 1.0}, {"enum": ["a", 1]}, {"enum": [{"a": 1}, None]}, {"not": {}}, {"not": {"type": "null"}},
]  # fmt: skip
NAMES: list[Any] = [{"enum": ["a", "b"]}, {"const": "a"}, {"pattern": "^a"}, {"minLength": 2}, {"$ref": "#/$defs/N"}]


def drawn(dice: random.Random, depth: int) -> Any:
    if not depth or dice.random() < 0.25:
        return dice.choice(SIMPLE)
    made: dict[str, Any] = {}
    if dice.random() < 0.6:
        made["properties"] = {name: drawn(dice, depth - 1) for name in dice.sample("abc", 2)}
        made["required"] = dice.sample("abc", dice.randint(0, 2))
    if dice.random() < 0.4:
        made["type"] = "object"
    if dice.random() < 0.3:
        made["additionalProperties"] = drawn(dice, depth - 1)
    if dice.random() < 0.2:
        made["propertyNames"] = dice.choice(NAMES)
    if dice.random() < 0.1:
        made["unevaluatedProperties"] = False
    for key in dice.sample(["oneOf", "anyOf", "allOf"], dice.choice((0, 1, 1, 2))):
        made[key] = [drawn(dice, depth - 1) for _ in range(dice.randint(1, 3))]
    return {"$ref": "#/$defs/X", **made} if dice.random() < 0.1 else made


def test_randomly_generated_json_schemas_allow_the_same_values_after_rewriting() -> None:
    changed = 0
    for number in range(600):
        dice = random.Random(f"schema {number}")
        schema = {"allOf": [drawn(dice, 3)], "$defs": {"N": {"enum": ["a", "ab"]}, "X": variant("a")}}
        made = in_enforced_words(schema)
        if made == schema or '"unevaluatedProperties"' in json.dumps(made):  # the second will be refused
            continue
        changed += 1
        before, after = Draft202012Validator(schema), Draft202012Validator(made)
        assert [one for one in VALUES if before.is_valid(one) != after.is_valid(one)] == [], schema
    assert changed > 100
