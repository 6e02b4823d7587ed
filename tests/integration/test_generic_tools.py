"""Tools of a model whose chat template takes none, as the embedded one, over all fronts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types import ToolUseBlock
from openai import OpenAI

from draftd.engine.pair import load_models
from draftd.v1 import inference_pb2 as pb
from tests.conftest import NanoPair
from tests.in_process_daemon import Served, serving
from tests.integration.test_formats import SCHEMA, TOOLS, ask, calls_of

ASKED: Any = {"role": "user", "content": "Book a flight to Oslo."}
BOOK: Any = {"name": "book", "parameters": SCHEMA}
OFFERED: Any = [{"type": "function", "function": BOOK}]
MODES = ("speculative", "autoregressive")


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    def models() -> Any:
        """A tenth of the cost of the pair: what matters is the template, and that drafts are made."""
        return load_models(nano_pair.draft, nano_pair.draft, progress=lambda line: None)

    with serving(tmp_path_factory.mktemp("generic"), models, server={"http_port": 0}) as served:
        yield served


def check(name: str, arguments: dict[str, Any]) -> None:
    assert name == "book"
    assert arguments["to"] in ("Venice", "Oslo")
    assert 1 <= arguments["seats"] <= 9


def test_grpc_decode_plan_flags_tools_given_to_model_without_tool_template(served: Served) -> None:
    model = served.client.model()
    assert (model.tools, model.generic_tools) == (False, True)
    told = list[str]()
    for mode in (pb.DECODE_MODE_SPECULATIVE, pb.DECODE_MODE_AUTOREGRESSIVE):
        required = pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED)
        found = ask(served, tools=TOOLS[:1], tool_choice=required, parallel_tool_calls=False, mode=mode)
        assert found.started.plan.generic_tools
        assert found.started.plan.mode == mode
        (call,) = calls_of(found)
        check(call.name, json.loads(call.arguments))
        told.append(call.arguments)
    assert told[0] == told[1]
    assert not ask(served).started.plan.generic_tools


def test_model_without_tool_template_calls_tool_and_gets_result_over_chat_completions(served: Served) -> None:
    with OpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        for mode in MODES:
            more = {"draftd": {"mode": mode}, "include_metrics": True}
            asked: Any = {"model": "", "tools": OFFERED, "max_tokens": 96, "extra_body": more}
            first = client.chat.completions.create(messages=[ASKED], tool_choice="required", **asked)
            said = first.choices[0].message
            assert first.choices[0].finish_reason == "tool_calls"
            assert said.tool_calls is not None
            assert first.model_extra is not None
            assert first.model_extra["metrics"]["draftd"]["generic_tools"]
            (call,) = said.tool_calls
            assert call.type == "function"
            check(call.function.name, json.loads(call.function.arguments))
            result: Any = {"role": "tool", "tool_call_id": call.id, "content": "booked"}
            second = client.chat.completions.create(messages=[ASKED, said, result], **asked)
            assert second.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_model_without_tool_template_calls_tool_and_gets_result_over_responses_api(served: Served) -> None:
    with OpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        for mode in MODES:
            offered: Any = [{"type": "function", "strict": True, **BOOK}]
            asked: Any = {
                "model": "",
                "tools": offered,
                "max_output_tokens": 96,
                "extra_body": {"draftd": {"mode": mode}},
            }
            first = client.responses.create(input=[ASKED], tool_choice="required", **asked)
            (call,) = first.output
            assert call.type == "function_call"
            check(call.name, json.loads(call.arguments))
            result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "booked"}
            second = client.responses.create(input=[result], previous_response_id=first.id, **asked)
            assert second.output


def test_model_without_tool_template_calls_tool_and_gets_result_over_messages_api(served: Served) -> None:
    with Anthropic(base_url=served.daemon.url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        for mode in MODES:
            offered: Any = [{"name": "book", "input_schema": SCHEMA}]
            asked: Any = {"model": "", "tools": offered, "max_tokens": 96, "extra_body": {"draftd": {"mode": mode}}}
            first = client.messages.create(messages=[ASKED], tool_choice={"type": "any"}, **asked)
            assert first.stop_reason == "tool_use"
            (block,) = first.content
            assert isinstance(block, ToolUseBlock)
            check(block.name, block.input)
            result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": "booked"}
            turns: Any = [ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            assert client.messages.create(messages=turns, **asked).usage.output_tokens
