"""Schemas of canaries: what they are made of, and that our reading of them is JSON Schema's."""

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

CANARIES = FrozenPrompts.shipped().canaries
SOLD = JsonObject({"fruit": "string", "count": "integer", "price": "number", "ripe": "boolean"}, {})
SCHEMA = schema_of(SOLD)
BOOK = schema_of(ExpectedToolCall(frozenset({"stop", "book"}), "book", {"to": "Oslo", "seats": 2}))


def test_canaries_that_want_json_have_a_schema() -> None:
    having = {canary.check.kind for canary in CANARIES if schema_of(canary.check) is not None}
    assert having == {"json_object", "tool_call"}
    assert schema_of(JsonObject({"fruits": "array"}, {})) is None
    assert schema_of(ExpectedToolCall(frozenset({"book"}), "book", {"seats": [1, 2]})) is None


some = st.none() | st.booleans() | st.integers() | st.decimals(-2e6, 2e6, places=2).map(float) | st.text(max_size=40)
inner = some | st.dictionaries(st.sampled_from(["to", "seats", "more"]), some)
near = {
    "fruit": st.just("fig") | inner,
    "count": st.just(3) | inner,
    "price": st.just(0.07) | inner,
    "ripe": st.just(True) | inner,
}


@given(st.fixed_dictionaries(near, optional={"more": inner}) | st.dictionaries(st.sampled_from([*near]), inner) | inner)
def test_an_object_is_read_as_the_library_reads_it(value: object) -> None:
    agree(value, SCHEMA)


@given(
    st.fixed_dictionaries({
        "name": st.sampled_from(["book", "stop", "go"]) | some,
        "arguments": st.fixed_dictionaries({"to": st.just("Oslo") | some, "seats": st.just(2) | some}) | inner,
    })
)  # fmt: skip
def test_a_call_is_read_as_the_library_reads_it(value: object) -> None:
    agree(value, BOOK)


def agree(value: object, schema: schemas.Schema | None) -> None:
    """But for two things: 2.0 is no integer here, and the library divides, with rounding, to find multiples."""
    assert schema is not None
    if not any(type(one) is float and one.is_integer() for one in leaves(value)):
        loose = json.loads(json.dumps(schema).replace(', "multipleOf": 0.01', ""))
        assert (mismatch(json.dumps(value), schema) == "") == jsonschema.Draft202012Validator(loose).is_valid(value)


def leaves(value: object) -> Iterator[object]:
    yield value
    for inside in value.values() if isinstance(value, dict) else ():
        yield from leaves(inside)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ('{"fruit": "fig", "count": 3, "price": 0.5, "ripe": true', "no JSON: '{"),
        ('Of course: {"fruit": "fig"}', "no JSON: 'Of course"),
        ('{"fruit": "fig", "count": 3, "price": NaN, "ripe": true}', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"fruit": "fig", "count": 3, "price": 0.005, "ripe": true}', "'price' has more than two decimals: 0.005"),
        ('{"fruit": "fig", "count": 3, "price": 0.5}', "no key 'ripe'"),
    ],
)
def test_value_that_breaks_its_schema_is_named(answer: str, what: str) -> None:
    assert SCHEMA is not None
    assert mismatch(answer, SCHEMA).startswith(what)


@pytest.mark.parametrize(
    ("broken", "what"), [("", "its schema accepts what is wrong"), ("no", "its schema rejects what is right: no")]
)
def test_a_check_that_is_broken_is_a_fault(broken: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "mismatch", lambda answer, schema: broken)
    found = selftest.faults(CANARIES)
    assert {one.prompt for one in found} == {one.id for one in CANARIES if schema_of(one.check) is not None}
    assert {one.what for one in found} >= {what}
