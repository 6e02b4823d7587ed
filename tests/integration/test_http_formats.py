"""Tools, formats and choices as clients' own libraries ask for them, of the embedded pair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from anthropic import Anthropic, BadRequestError
from anthropic.types import ToolUseBlock
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.conftest import NanoPair
from tests.in_process_daemon import Served, serving
from tests.integration.test_formats import SCHEMA, with_tools

ASKED: Any = {"role": "user", "content": "Book a flight to Oslo."}
BOOK: Any = {"type": "function", "function": {"name": "book", "parameters": SCHEMA}}
OFFERED: Any = [BOOK, {"type": "function", "function": {"name": "wait"}}]


class Seat(BaseModel):
    row: int = Field(ge=1, le=9)
    side: Literal["window", "aisle"]


class Leg(BaseModel):
    to: Literal["Venice", "Oslo"]
    back: bool | None


class Trip(BaseModel):
    to: Literal["Venice", "Oslo"]
    seats: list[Seat] = Field(min_length=1, max_length=2)
    back: bool | None


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("http")
    with serving(folder, with_tools(nano_pair, folder), server={"http_port": 0}) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic(served: Served) -> Iterator[Anthropic]:
    url = served.daemon.url.removesuffix("/v1")
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_client_libraries_parse_structured_answers_into_pydantic_models(
    served: Served, client: OpenAI, anthropic: Anthropic
) -> None:
    chat = client.chat.completions.parse(model="", messages=[ASKED], response_format=Trip, max_tokens=96)
    assert chat.choices[0].message.parsed is not None
    answer = client.responses.parse(model="", input="Book a flight to Oslo.", text_format=Trip, max_output_tokens=96)
    assert chat.choices[0].message.parsed == answer.output_parsed
    # This client takes bounds out of a schema, since Anthropic's server knows none.
    message = anthropic.messages.parse(model="", messages=[ASKED], output_format=Leg, max_tokens=96)
    assert isinstance(message.parsed_output, Leg)
    llm = ChatOpenAI(model="", base_url=served.daemon.url, api_key="none", max_retries=0, max_tokens=96)  # type: ignore[arg-type,call-arg]
    assert llm.with_structured_output(Trip).invoke([HumanMessage(ASKED["content"])]) == chat.choices[0].message.parsed
    assert isinstance(llm.with_structured_output(Trip, method="function_calling").invoke("Oslo"), Trip)


def is_allowed(name: str, arguments: dict[str, Any]) -> bool:
    if name == "wait":
        return arguments == {}
    return arguments["to"] in ("Venice", "Oslo") and 1 <= arguments["seats"] <= 9


def test_chat_completions_demanded_tool_call_and_result_round_trip(client: OpenAI) -> None:
    first = client.chat.completions.create(
        model="", messages=[ASKED], tools=OFFERED, tool_choice="required", max_tokens=96, parallel_tool_calls=False
    )
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert is_allowed(call.function.name, json.loads(call.function.arguments))
    given: Any = {"role": "tool", "tool_call_id": call.id, "content": "Booked."}
    messages: Any = [ASKED, first.choices[0].message.model_dump(exclude_none=True), given]
    second = client.chat.completions.create(
        model="", messages=messages, tools=OFFERED, tool_choice="none", max_tokens=8
    )
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None


def test_chat_completions_stream_tool_call_arguments_in_pieces(client: OpenAI) -> None:
    book: Any = {"type": "function", "function": {"name": "book"}}
    with client.chat.completions.stream(
        model="", messages=[ASKED], tools=OFFERED, tool_choice=book, max_tokens=96
    ) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (choice,) = stream.get_final_completion().choices
    (call,) = choice.message.tool_calls or ()
    assert choice.finish_reason == "tool_calls"
    assert len(pieces) > 1
    assert "".join(pieces) == call.function.arguments
    assert is_allowed("book", json.loads(call.function.arguments))


def test_responses_api_demanded_tool_call_and_result_round_trip(client: OpenAI) -> None:
    tool: Any = {"type": "function", "name": "book", "parameters": SCHEMA, "strict": True}
    first = client.responses.create(
        model="", input=ASKED["content"], tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = first.output
    assert call.type == "function_call"
    assert is_allowed(call.name, json.loads(call.arguments))
    given: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Booked."}]
    second = client.responses.create(model="", input=given, previous_response_id=first.id, max_output_tokens=8)
    assert second.output_text


def test_messages_api_demanded_tool_call_and_result_round_trip(anthropic: Anthropic) -> None:
    tools: Any = [{"name": "book", "input_schema": SCHEMA}, {"name": "wait", "input_schema": {"type": "object"}}]
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "book"}):
        asked: Any = {"model": "", "messages": [ASKED], "tools": tools, "tool_choice": choice, "max_tokens": 96}
        first = anthropic.messages.create(**asked)
        with anthropic.messages.stream(**asked) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            told = stream.get_final_message()
        (used,), (again,) = first.content, told.content
        assert isinstance(used, ToolUseBlock)
        assert isinstance(again, ToolUseBlock)
        assert (first.stop_reason, told.stop_reason) == ("tool_use", "tool_use")
        assert (used.name, used.input) == (again.name, again.input) == (again.name, json.loads("".join(pieces)))
        assert is_allowed(used.name, used.input)
    given: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "Booked."}]}
    back: Any = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
    second = anthropic.messages.create(model="", messages=[ASKED, back, given], max_tokens=8)
    assert second.content[0].type == "text"


def test_anthropic_schema_refusal_names_the_field_that_was_sent(anthropic: Anthropic) -> None:
    schema: Any = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    tools: Any = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": schema}]
    with pytest.raises(BadRequestError, match=r"tools\[1\].input_schema: got .*not.* allowed: .*enforced"):
        anthropic.messages.create(
            model="", messages=[ASKED], tools=tools, tool_choice={"type": "tool", "name": "f"}, max_tokens=9
        )
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    with pytest.raises(BadRequestError, match=r"output_config.format.schema: got .*not"):
        anthropic.messages.create(model="", messages=[ASKED], output_config=config, max_tokens=9)


def test_langchain_demanded_tool_call_and_result_round_trip(served: Served) -> None:
    llm = ChatOpenAI(model="", base_url=served.daemon.url, api_key="none", max_retries=0, max_tokens=96)  # type: ignore[arg-type,call-arg]
    said: list[Any] = [HumanMessage(ASKED["content"])]
    called = llm.bind_tools([BOOK], tool_choice="any", parallel_tool_calls=False).invoke(said)
    assert isinstance(called, AIMessage)
    (call,) = called.tool_calls
    assert is_allowed(call["name"], call["args"])
    said += [called, ToolMessage("Booked.", tool_call_id=call["id"])]
    assert llm.bind(max_tokens=8).invoke(said).content
