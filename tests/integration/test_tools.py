"""A whole conversation with tools over gRPC, with a model that says what it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from draftd.client.client import CallError
from draftd.client.gathering import Answer, gather
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import Served, serving
from tests.reply_model import speaking_models

SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
TOOLS = [pb.Tool(name="weather", description="The weather of a city.", parameters=SCHEMA)]


def call(city: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


def reply(prompt: str) -> str:
    if "<tool>" in prompt:
        return f"<think>Sun.</think>\n\nIn Zürich: {prompt.rpartition('<tool>')[2]}."
    if "malformed" in prompt:
        return "Hm. <tool_call>{weather: Zürich}</tool_call> Sorry."
    if "both" in prompt:
        return f"<think>Two.</think>{call('Zürich')}\n{call('Bern')}"
    return f"<think>I ask.</think>\n\nI look.{call('Zürich')}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("tools"), lambda: speaking_models(reply)) as served:
        yield served


def ask(served: Served, *messages: pb.ChatMessage, **fields: Any) -> Answer:
    return gather(served.client.generate(messages=messages, tools=TOOLS, **{"max_tokens": 300, **fields}))


def user(text: str) -> pb.ChatMessage:
    return pb.ChatMessage(role="user", content=text)


def test_grpc_tool_call_and_its_result_round_trip(served: Served) -> None:
    first, heard = ask(served, user("Weather?")), list[str]()
    again = gather(served.client.generate(messages=[("user", "Weather?")], tools=TOOLS), on_reasoning=heard.append)
    assert ("".join(heard), again.text) == (first.reasoning, first.text)
    (made,) = first.tool_calls
    assert (first.reasoning, first.text) == ("I ask.", "I look.")
    assert (made.name, json.loads(made.arguments)) == ("weather", {"city": "Zürich"})
    assert first.finished.tool_calls
    assert first.finished.reason == pb.FINISH_REASON_STOP
    assert first.finished.usage.reasoning_tokens == len("I ask.</think>")
    assert first.finished.usage.output_tokens == len(first.tokens)
    assert first.finished.counts.accepted_tokens > 0
    said = pb.ChatMessage(role="assistant", content=first.text, reasoning=first.reasoning, tool_calls=[made])
    result = pb.ChatMessage(role="tool", content="20 °C", tool_call_id=made.id)
    second = ask(served, user("Weather?"), said, result)
    assert (second.reasoning, second.text, second.tool_calls) == ("Sun.", "In Zürich: 20 °C.", ())
    assert not second.finished.tool_calls


def test_grpc_stream_sends_reasoning_text_and_tool_call_in_order(served: Served) -> None:
    chunks = [
        response.chunk
        for response in served.client.generate(messages=[user("Weather?")], tools=TOOLS, max_tokens=300)
        if response.HasField("chunk")
    ]
    kinds = [delta.WhichOneof("kind") for chunk in chunks for delta in chunk.deltas]
    order = list(dict.fromkeys(kinds))
    assert order == ["reasoning", "text", "tool_call_begun", "tool_call_arguments", "tool_call"]
    assert kinds.count("tool_call_arguments") > 1
    assert sum(map(sum, (chunk.text_lengths for chunk in chunks))) == len("I look.")


def test_decoding_ends_after_the_first_call_without_parallel_tool_calls(served: Served) -> None:
    assert len(ask(served, user("both")).tool_calls) == 2
    one = ask(served, user("both"), parallel_tool_calls=False)
    assert len(one.tool_calls) == 1
    assert bytes(one.tokens).decode().endswith("}}")
    assert one.finished.reason == pb.FINISH_REASON_STOP


def test_malformed_or_truncated_tool_call_is_sent_as_text_with_a_warning(served: Served) -> None:
    malformed = ask(served, user("malformed"))
    assert malformed.text == "Hm. <tool_call>{weather: Zürich}</tool_call> Sorry."
    assert "malformed" in malformed.finished.warning
    cut = ask(served, user("Weather?"), max_tokens=60)
    assert cut.text == f"I look.{call('Zürich')}"[: len(cut.text)]
    assert cut.text.startswith("I look.<tool_call>\n{")
    assert (cut.tool_calls, cut.finished.tool_calls, cut.finished.reason) == ((), False, pb.FINISH_REASON_LENGTH)
    assert "the answer ends before the tool call is complete" in cut.finished.warning


def test_tool_choice_none_keeps_tools_out_of_the_prompt(served: Served) -> None:
    none = ask(served, user("Weather?"), tool_choice=pb.ToolChoice(mode=pb.ToolChoice.MODE_NONE))
    assert none.text == f"I look.{call('Zürich')}"
    shown = ask(served, user("Weather?"))
    assert shown.finished.usage.input_tokens > none.finished.usage.input_tokens + len(SCHEMA)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [*TOOLS, pb.Tool(name="?")]}, "chat.tools[1].name"),
        ({"tool_choice": pb.ToolChoice(name="clock")}, "chat.tool_choice"),
        ({"tool_choice": pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED)}, "chat.tool_choice"),
        ({"template_arguments": {"tools": 1}}, "chat.template_arguments"),
    ],
)
def test_invalid_tools_are_refused_naming_their_field(served: Served, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(CallError) as refused:
        gather(served.client.generate(messages=[user("hi")], **{"tools": TOOLS, **fields}))
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(refused.value.fields) == {field}
