"""Schemas of canaries: which canaries have one, and that we read them as JSON Schema does."""

from __future__ import annotations

import json
from collections.abc import Iterator

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.canaries import schemas, selftest
from draftd.canaries.checkers import ExpectedToolCall, JsonObject
from draftd.canaries.prompts import FrozenPrompts
from draftd.canaries.schemas import mismatch, schema_of

CANARIES = FrozenPrompts.of_package().canaries
SOLD = JsonObject({"fruit": "string", "count": "integer", "price": "number", "ripe": "boolean"}, {})
SCHEMA = schema_of(SOLD)
BOOK = schema_of(ExpectedToolCall(frozenset({"stop", "book"}), "book", {"to": "Oslo", "seats": 2}))


def test_canary_schema_exists_for_json_object_and_tool_call_checks_except_arrays() -> None:
    kinds = {canary.check.kind for canary in CANARIES if schema_of(canary.check) is not None}
    assert kinds == {"json_object", "tool_call"}
    assert schema_of(JsonObject({"fruits": "array"}, {})) is None
    assert schema_of(ExpectedToolCall(frozenset({"book"}), "book", {"seats": [1, 2]})) is None


scalars = st.none() | st.booleans() | st.integers() | st.decimals(-2e6, 2e6, places=2).map(float) | st.text(max_size=40)
anything = scalars | st.dictionaries(st.sampled_from(["to", "seats", "more"]), scalars)
nearly_right = {
    "fruit": st.just("fig") | anything,
    "count": st.just(3) | anything,
    "price": st.just(0.07) | anything,
    "ripe": st.just(True) | anything,
}


@given(
    st.fixed_dictionaries(nearly_right, optional={"more": anything})
    | st.dictionaries(st.sampled_from([*nearly_right]), anything)
    | anything
)
def test_json_object_schema_check_agrees_with_jsonschema_library(value: object) -> None:
    assert_same_reading(value, SCHEMA)


@given(
    st.fixed_dictionaries({
        "name": st.sampled_from(["book", "stop", "go"]) | scalars,
        "arguments": st.fixed_dictionaries({"to": st.just("Oslo") | scalars, "seats": st.just(2) | scalars}) | anything,
    })
)  # fmt: skip
def test_tool_call_schema_check_agrees_with_jsonschema_library(value: object) -> None:
    assert_same_reading(value, BOOK)


def assert_same_reading(value: object, schema: schemas.Schema | None) -> None:
    """Asserts that draftd and the jsonschema library agree. Two differences are left out: draftd takes 2.0 for no
    integer, and the library checks `multipleOf` by an inexact division."""
    assert schema is not None
    if not any(type(leaf) is float and leaf.is_integer() for leaf in leaves(value)):
        loose = json.loads(json.dumps(schema).replace(', "multipleOf": 0.01', ""))
        assert (mismatch(json.dumps(value), schema) == "") == jsonschema.Draft202012Validator(loose).is_valid(value)


def leaves(value: object) -> Iterator[object]:
    yield value
    for inside in value.values() if isinstance(value, dict) else ():
        yield from leaves(inside)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ('{"fruit": "fig", "count": 3, "price": 0.5, "ripe": true', "no JSON: '{"),
        ('Of course: {"fruit": "fig"}', "no JSON: 'Of course"),
        ('{"fruit": "fig", "count": 3, "price": NaN, "ripe": true}', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"fruit": "fig", "count": 3, "price": 0.005, "ripe": true}', "'price' has more than two decimals: 0.005"),
        ('{"fruit": "fig", "count": 3, "price": 0.5}', "no key 'ripe'"),
    ],
)
def test_schema_check_names_fault_of_answer_that_violates_schema(answer: str, message: str) -> None:
    assert SCHEMA is not None
    assert mismatch(answer, SCHEMA).startswith(message)


@pytest.mark.parametrize(
    ("mismatch", "message"), [("", "its schema accepts what is wrong"), ("no", "its schema rejects what is right: no")]
)
def test_canary_self_check_reports_schema_check_that_accepts_or_rejects_wrongly(
    mismatch: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "mismatch", lambda answer, schema: mismatch)
    faults = selftest.faults(CANARIES)
    assert {one.prompt for one in faults} == {one.id for one in CANARIES if schema_of(one.check) is not None}
    assert {one.what for one in faults} >= {message}
