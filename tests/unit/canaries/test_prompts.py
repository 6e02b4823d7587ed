"""The daemon's own prompts: the shipped ones load, and faults in broken ones are named."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from typing import Any

import pytest

from draftd.canaries.prompts import MOST_PROMPTS, Canary, FrozenPrompt, FrozenPrompts, PromptError, parse
from draftd.core import WorkloadClass

PROMPT: dict[str, Any] = {
    "id": "one",
    "workload": "chat",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
    "max_tokens": 8,
}
CHECK: dict[str, Any] = {"kind": "tool_call", "allowed": ["ring"], "name": "ring", "arguments": {"times": 2}}


def test_shipped_probe_and_canary_prompts_load_in_expected_numbers() -> None:
    shipped = FrozenPrompts.of_package()
    assert Counter(prompt.workload for prompt in shipped.probe) == dict.fromkeys(
        (WorkloadClass.CODE, WorkloadClass.TOOL_CALL, WorkloadClass.CHAT, WorkloadClass.PROSE), 4
    )
    assert Counter(type(canary.check).__name__ for canary in shipped.canaries) == {
        "JsonObject": 8,
        "ExpectedToolCall": 10,
        "NoToolCall": 6,
    }
    assert all(prompt.max_tokens <= 64 for prompt in (*shipped.probe, *shipped.canaries))


def test_shipped_probe_and_canary_prompts_do_not_occur_among_benchmark_prompts() -> None:
    held_out = {
        json.loads(line)["messages"][-1]["content"]
        for file in (resources.files("draftd.models.nano") / "prompts").iterdir()
        for line in file.read_text(encoding="utf-8").splitlines()
    }
    shipped = FrozenPrompts.of_package()
    questions = {prompt.messages[-1].content for prompt in (*shipped.probe, *shipped.canaries)}
    assert not questions & held_out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": ""}, "f.jsonl, line 1: id: got ''; allowed: String should have at least 1 character"),
        ({"id": 7}, "f.jsonl, line 1: id: got 7"),
        (
            {"workload": "poem"},
            "line 1: workload: got 'poem'; allowed: 'unspecified', 'code', 'tool_call', 'chat', 'prose' or 'edit'",
        ),
        ({"max_tokens": 0}, "line 1: max_tokens: got 0; allowed: greater than or equal to 1"),
        ({"max_tokens": True}, "line 1: max_tokens: got True"),
        ({"max_tokens": "8"}, "line 1: max_tokens: got '8'"),
        ({"messages": []}, r"line 1: messages: got \[\]; allowed: Tuple should have at least 1 item"),
        ({"messages": ["Hello?"]}, r"line 1: messages\[0\]: got 'Hello\?'; allowed: an object"),
        ({"messages": [{"role": "user"}]}, r"line 1: messages\[0\]\.content: not set"),
        ({"messages": [{"role": "you", "content": "x"}]}, r"line 1: messages\[0\]\.role: got 'you'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "line 1: messages: got .*; allowed: messages that end"),
        ({"tokens": 8}, "line 1: tokens: got 8; allowed: no value: there is no field of this name"),
    ],
)
def test_prompt_parser_error_names_file_line_field_and_allowed_values(changed: dict[str, object], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        parse(json.dumps({**PROMPT, **changed}), "f.jsonl", FrozenPrompt)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "poem"}, r"line 1: check: got .*; allowed: .*'json_object', 'tool_call', 'no_tool_call'"),
        ({"name": "sing"}, r"line 1: check: got .*; allowed: one of the tools in `allowed`: ring"),
        ({"allowed": []}, r"line 1: check\.tool_call\.allowed: got \[\]"),
        ({"arguments": [2]}, r"line 1: check\.tool_call\.arguments: got \[2\]; allowed: an object"),
        (
            {"mentions": ["x"]},
            r"line 1: check\.tool_call\.mentions: got \['x'\]; allowed: no value|Unexpected keyword",
        ),
        (
            {"kind": "json_object", "keys": {"a": "text"}, "values": {}},
            r"line 1: check\.json_object\.keys\.a: got .text.",
        ),
    ],
)
def test_canary_parser_error_names_invalid_field_of_check(changed: dict[str, object], message: str) -> None:
    line = json.dumps({**PROMPT, "check": {**CHECK, **changed}})
    with pytest.raises(PromptError, match=message):
        parse(line, "f.jsonl", Canary)


def test_canary_parser_error_names_unknown_json_type_in_check() -> None:
    line = json.dumps({**PROMPT, "check": {"kind": "json_object", "keys": {"a": "text"}, "values": {}}})
    with pytest.raises(
        PromptError, match=r"line 1: check\.json_object\.keys\.a: got 'text'; allowed: 'string', 'integer'"
    ):
        parse(line, "f.jsonl", Canary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.jsonl: got '0 prompts'; allowed: 1 to 256"),
        ("{", "f.jsonl, line 1: got '{'; allowed: valid JSON"),
        ("[" * 100_000, "f.jsonl, line 1: got '.*…; allowed: valid JSON"),
        ("\n7", "f.jsonl, line 2: got 7; allowed: an object"),
        (
            f"{json.dumps(PROMPT)}\n\n{json.dumps(PROMPT)}",
            "f.jsonl, line 3: id: got 'one'; allowed: an id that no earlier line has",
        ),
    ],
)
def test_prompt_parser_refuses_empty_malformed_or_duplicate_lines_by_line_number(text: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        parse(text, "f.jsonl", FrozenPrompt)


def test_prompt_file_with_more_prompts_than_limit_is_refused() -> None:
    lines = [json.dumps({**PROMPT, "id": str(number)}) for number in range(MOST_PROMPTS + 1)]
    assert len(parse("\n".join(lines[:-1]), "f.jsonl", FrozenPrompt)) == MOST_PROMPTS
    with pytest.raises(PromptError, match="257 prompts"):
        parse("\n".join(lines), "f.jsonl", FrozenPrompt)
