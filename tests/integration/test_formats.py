"""What an answer must be, asked for over gRPC of the embedded pair."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftd.client.client import CallError
from draftd.engine.pair import LoadedModels, load_models
from draftd.v1 import inference_pb2 as pb
from tests.conftest import NanoPair
from tests.serving import Answer, Served, collect, serving

SCHEMA = {
    "type": "object",
    "properties": {"to": {"enum": ["Venice", "Oslo"]}, "seats": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["to", "seats"],
    "additionalProperties": False,
}


TOOLS = [
    pb.Tool(name="book", description="Books a flight.", parameters=json.dumps(SCHEMA)),
    pb.Tool(name="wait"),
]
_TEMPLATE = (
    "{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ '<|end|>' }}{% endfor %}<|assistant|>"
)


def with_tools(pair: NanoPair, folder: Path) -> Callable[[], LoadedModels]:
    """The embedded pair with a chat template that takes tools; calls are as Qwen writes them."""
    shutil.copytree(pair.target, folder / "target")
    told = json.loads((folder / "target" / "tokenizer_config.json").read_text())
    told |= {"chat_template": _TEMPLATE, "tool_parser_type": "json_tools"}
    (folder / "target" / "tokenizer_config.json").write_text(json.dumps(told))
    return lambda: load_models(str(folder / "target"), pair.draft, progress=lambda line: None)


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("formats")
    with serving(folder, with_tools(nano_pair, folder)) as served:
        yield served


def ask(served: Served, response_format: pb.ResponseFormat | None = None, **fields: Any) -> Answer:
    chat = {name: fields.pop(name) for name in ("tools", "tool_choice", "parallel_tool_calls") if name in fields}
    request = pb.GenerateRequest(max_tokens=96, response_format=response_format, chat=pb.ChatInput(**chat), **fields)
    request.chat.messages.add(role="user", content="Book a flight to Oslo.")
    return collect(served.client.generate_raw(request, timeout=60))


@pytest.mark.parametrize("mode", [pb.DECODE_MODE_AUTOREGRESSIVE, pb.DECODE_MODE_SPECULATIVE])
def test_answers_are_what_their_format_says(served: Served, mode: pb.DecodeMode) -> None:
    found = ask(served, pb.ResponseFormat(json_schema=json.dumps(SCHEMA)), mode=mode)
    assert found.finished.reason == pb.FINISH_REASON_STOP
    told = json.loads(found.text)
    assert told["to"] in ("Venice", "Oslo")
    assert 1 <= told["seats"] <= 9
    assert re.fullmatch("[A-F]{3}-[0-9]", ask(served, pb.ResponseFormat(regex="[A-F]{3}-[0-9]"), mode=mode).text)
    choices = pb.Choices(texts=["a flight", 'the "night" train'])
    assert ask(served, pb.ResponseFormat(choices=choices), mode=mode).text in choices.texts
    lark = 'start: "go " ("north" | "south")'
    assert ask(served, pb.ResponseFormat(grammar=lark), mode=mode).text in ("go north", "go south")
    gbnf = 'root ::= ("yes" | "no") "!"'
    assert ask(served, pb.ResponseFormat(grammar=gbnf), mode=mode).text in ("yes!", "no!")


def test_the_drafter_of_forced_tokens_can_be_asked_for(served: Served) -> None:
    found = ask(served, pb.ResponseFormat(json_schema=json.dumps(SCHEMA)), drafter="grammar")
    assert found.started.plan.drafter == "grammar"
    assert found.finished.counts.accepted_tokens > 0
    assert found.finished.counts.draft_forwards == 0


def calls_of(answer: Answer) -> list[pb.ToolCall]:
    return [delta.tool_call for chunk in answer.chunks for delta in chunk.deltas if delta.HasField("tool_call")]


def test_a_demanded_call_is_made_as_its_schema_says(served: Served) -> None:
    named = ask(served, tools=TOOLS, tool_choice=pb.ToolChoice(name="wait"))
    assert [(call.name, call.arguments) for call in calls_of(named)] == [("wait", "{}")]
    assert named.finished.tool_calls
    for sampling in (pb.SamplingParams(), pb.SamplingParams(temperature=1.5, seed=4)):
        any_of_them = ask(
            served,
            tools=TOOLS,
            tool_choice=pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED),
            parallel_tool_calls=False,
            sampling=sampling,
        )
        (call,) = calls_of(any_of_them)
        told = json.loads(call.arguments)
        assert told == {} if call.name == "wait" else told["to"] in ("Venice", "Oslo") and 1 <= told["seats"] <= 9
        assert not any_of_them.text
        assert not any_of_them.finished.warning


def test_with_tools_an_answer_is_a_call_or_its_format(served: Served) -> None:
    found = ask(served, pb.ResponseFormat(choices=pb.Choices(texts=["none"])), tools=TOOLS)
    assert found.text == "none" or calls_of(found)


BAD = {
    "unsupported keyword": (pb.ResponseFormat(json_schema='{"not": {"type": "null"}}'), "json_schema", '"not"'),
    "no JSON": (pb.ResponseFormat(json_schema='{"type": '), "json_schema", "no JSON"),
    "no object": (pb.ResponseFormat(json_schema="[1]"), "json_schema", "is an object"),
    "unknown type": (pb.ResponseFormat(json_schema='{"type": "text"}'), "json_schema", "text"),
    "nested too deeply": (pb.ResponseFormat(json_schema='{"a":' * 50_000), "json_schema", "deep"),
    "nothing satisfies it": (pb.ResponseFormat(json_schema='{"enum": []}'), "json_schema", "enum"),
    "bad expression": (pb.ResponseFormat(regex="(a"), "regex", "regex"),
    "unknown rule": (pb.ResponseFormat(grammar="start: nothing"), "grammar", "nothing"),
    "no choice": (pb.ResponseFormat(choices=pb.Choices()), "choices", "1 to 1024 texts"),
    "too large": (pb.ResponseFormat(regex="a" * 300_000), "regex", "262144 bytes"),
}


@pytest.mark.parametrize(("bad", "field", "said"), BAD.values(), ids=BAD)
def test_what_cannot_be_enforced_is_refused(served: Served, bad: pb.ResponseFormat, field: str, said: str) -> None:
    with pytest.raises(CallError) as refused:
        ask(served, bad)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refused.value.fields) == [f"response_format.{field}"]
    assert said in refused.value.details


def test_a_format_says_when_the_answer_ends(served: Served) -> None:
    for fields in ({"ignore_eos": True}, {"min_tokens": 4}):
        with pytest.raises(CallError) as refused:
            ask(served, pb.ResponseFormat(json_object=True), **fields)
        assert list(refused.value.fields) == list(fields)
