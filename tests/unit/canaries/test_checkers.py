"""Checks of answers: right answers pass in any form, faults of wrong answers are named, and no answer raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.canaries.checkers import Check, ExpectedToolCall, JsonObject, NoToolCall, calls, objects

PERSON = JsonObject({"name": "string", "age": "integer"}, {"name": "Anna", "age": 34})
HEAT = ExpectedToolCall(frozenset({"set_heating", "stop"}), "set_heating", {"room": "kitchen", "temperature": 21})
CAPITAL = NoToolCall(frozenset({"set_heating"}), ("Paris", "Lutetia"))

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
json_objects = st.dictionaries(st.text(max_size=5), values, max_size=4)
plain_texts = st.text(st.characters(exclude_characters="{}<>", codec="utf-8"), max_size=30)


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "Anna", "age": 34}',
        '{\n  "age": 34,\n  "name": "Anna",\n  "extra": [1]\n}',
        'Here you are:\n```json\n{"name": "Anna", "age": 34}\n```',
        '<think>{"name": "Ben"}, no</think>{"name": "Anna", "age": 34}',
        'Of course {smiles}: {"name": "Anna", "age": 34}',
    ],
)
def test_json_object_checker_ignores_code_fence_prose_and_reasoning_around_right_object(answer: str) -> None:
    assert PERSON.complaint(answer) == ""


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("Anna is 34.", "no JSON object"),
        ('{"name": "Anna", "age": 34', "no JSON object"),
        ('{"name": "Anna"}', "no key 'age'"),
        ('{"name": "Anna", "age": "34"}', "'age' is no integer: '34'"),
        ('{"name": "Anna", "age": true}', "'age' is no integer: True"),
        ('{"name": "Ann", "age": 34}', "'name' is 'Ann', not 'Anna'"),
    ],
)
def test_json_object_checker_names_fault_of_wrong_answer(answer: str, complaint: str) -> None:
    assert PERSON.complaint(answer) == complaint


def test_json_object_checker_distinguishes_booleans_from_numbers() -> None:
    assert JsonObject({"a": "boolean"}, {"a": True}).complaint('{"a": true}') == ""
    assert JsonObject({"a": "boolean"}, {}).complaint('{"a": 1}') == "'a' is no boolean: 1"
    assert JsonObject({"a": "number"}, {"a": 1}).complaint('{"a": 1.0}') == ""
    assert JsonObject({}, {"a": 1}).complaint('{"a": true}') == "'a' is True, not 1"


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "set_heating", "arguments": {"room": "kitchen", "temperature": 21}}',
        '<tool_call>\n{"name": "set_heating", "parameters": {"room": "Kitchen ", "temperature": "21"}}\n</tool_call>',
        '[{"name": "set_heating", "arguments": {"temperature": 21.0, "room": "kitchen"}}]',
        '{"function": {"name": "set_heating", "arguments": "{\\"room\\": \\"kitchen\\", \\"temperature\\": 21}"}}',
        '{"function": "set_heating", "arguments": {"room": "kitchen", "temperature": 21}}',
    ],
)
def test_tool_call_checker_accepts_right_call_in_every_common_format(answer: str) -> None:
    assert HEAT.complaint(answer) == ""


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("I heat the kitchen to 21 degrees.", "no tool call"),
        ('{"name": "set_heating"}', "no tool call"),
        ('{"name": "explode", "arguments": {}}', "calls 'explode', which is not allowed"),
        ('{"name": "stop", "arguments": {}}', "calls stop, not set_heating"),
        ('{"name": "set_heating", "arguments": {"room": "kitchen"}}', "no argument 'temperature'"),
        (
            '{"name": "set_heating", "arguments": {"room": "cellar", "temperature": 21}}',
            "argument 'room' is 'cellar', not 'kitchen'",
        ),
        (
            '{"name": "set_heating", "arguments": {"room": "kitchen", "temperature": 21, "now": 1}}',
            "argument 'now' was not asked for",
        ),
    ],
)
def test_tool_call_checker_names_fault_of_wrong_answer(answer: str, complaint: str) -> None:
    assert HEAT.complaint(answer) == complaint


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("The capital of France is Paris.", ""),
        ("It is PARIS, {of course}", ""),
        ("I do not know.", "mentions none of Paris, Lutetia"),
        ("A comparison.", "mentions none of Paris, Lutetia"),
        ('Paris: {"name": "set_heating", "arguments": {}}', "calls 'set_heating', where a question was asked"),
        ('Paris: {"name": "anything", "arguments": {}}', "calls 'anything', where a question was asked"),
    ],
)
def test_no_tool_call_checker_requires_expected_word_in_answer_and_refuses_tool_call(
    answer: str, complaint: str
) -> None:
    assert CAPITAL.complaint(answer) == complaint


@given(json_objects, plain_texts, plain_texts)
def test_json_object_search_finds_object_anywhere_in_text(value: dict[str, Any], before: str, after: str) -> None:
    assert list(objects(f"{before}{json.dumps(value)}{after}")) == [value]


@given(st.text(min_size=1, max_size=8), json_objects, plain_texts)
def test_tool_call_search_finds_name_and_arguments_after_plain_text(
    name: str, arguments: dict[str, Any], before: str
) -> None:
    answer = before + json.dumps({"name": name, "arguments": arguments})
    assert list(calls(answer)) == [(name, arguments)]
    assert ExpectedToolCall(frozenset({name}), name, arguments).complaint(answer) == ""


@given(json_objects)
def test_json_object_checker_accepts_json_text_of_expected_object(value: dict[str, Any]) -> None:
    assert JsonObject({}, value).complaint(json.dumps(value)) == ""


@pytest.mark.parametrize("check", [PERSON, HEAT, CAPITAL])
@given(st.text() | st.text('{}[]":,0123456789\\ntruefalse<think>/name', max_size=200))
def test_canary_checkers_raise_no_error_on_arbitrary_answer(check: Check, answer: str) -> None:
    assert isinstance(check.complaint(answer), str)


@pytest.mark.parametrize("answer", ['{"a":' * 100_000, "{" * 100_000, '{"a": ' + "9" * 10_000 + "}", "[" * 50_000])
def test_json_object_checker_rejects_deeply_nested_json_and_huge_number(answer: str) -> None:
    assert PERSON.complaint(answer) == "no JSON object"
