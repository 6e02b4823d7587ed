"""OpenAI's own Python client, and LangChain's, over a scripted service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel

from draftd.core import FinishReason, TokenLogprobs
from draftd.errors import EngineFailure
from draftd.service.messages import Chat, Message, ToolCall, ToolMode
from draftd.service.request import FormatKind
from tests.http_front import Fronted, Says, call, fronted, said, thought

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Tells it", "parameters": WEATHER}}
OSLO = '{"city": "Oslo"}'
ASKED: Any = {"role": "user", "content": "Oslo?"}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
async def front() -> AsyncIterator[Fronted]:
    async with fronted() as front:
        yield front


@pytest.fixture
async def client(front: Fronted) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat_of(front: Fronted) -> Chat:
    assert isinstance(front.asked.prompt, Chat)
    return front.asked.prompt


async def test_openai_client_calls_tools_and_sends_their_results(front: Fronted, client: AsyncOpenAI) -> None:
    front.will_say(Says([*thought("hm"), *call(0, "weather", OSLO), *call(1, "weather", "{}")]), Says(said("Cold.")))
    first = await client.chat.completions.create(model="scripted", messages=[ASKED], tools=[TOOL])
    chat = chat_of(front)
    assert [json.loads(tool.parameters) for tool in chat.tools] == [WEATHER]
    assert (chat.tools[0].name, chat.tool_choice, chat.parallel_tool_calls) == ("weather", ToolMode.AUTO, True)
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    calls = choice.message.tool_calls or []
    assert [(one.id, one.function.arguments) for one in calls if one.type == "function"] == [
        ("call_0", OSLO),
        ("call_1", "{}"),
    ]
    given: Any = {"role": "tool", "tool_call_id": "call_0", "content": "-3"}
    messages: Any = [ASKED, choice.message.model_dump(exclude_none=True), given]
    second = await client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL])
    assert second.choices[0].message.content == "Cold."
    both = (ToolCall("call_0", "weather", OSLO), ToolCall("call_1", "weather", "{}"))
    assert chat_of(front).messages == (
        Message("user", "Oslo?"),
        Message("assistant", "", both, reasoning="hm"),
        Message("tool", "-3", tool_call_id="call_0"),
    )


async def test_openai_chat_stream_assembles_text_reasoning_and_tool_call(front: Fronted, client: AsyncOpenAI) -> None:
    front.will_say(Says([*thought("hm"), *said("Let me see."), *call(0, "weather", OSLO)]))
    async with client.chat.completions.stream(
        model="scripted", messages=[ASKED], tools=[TOOL], stream_options={"include_usage": True}
    ) as stream:
        done = await stream.get_final_completion()
    (choice,) = done.choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.model_extra) == (
        "Let me see.",
        {"reasoning_content": "hm", "reasoning": "hm"},
    )
    (made,) = choice.message.tool_calls or []
    assert (made.id, made.function.name, made.function.arguments) == ("call_0", "weather", OSLO)
    assert done.usage is not None
    assert done.usage.prompt_tokens_details is not None
    assert (done.usage.prompt_tokens, done.usage.prompt_tokens_details.cached_tokens) == (10, 4)


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("none", ToolMode.NONE),
        ("required", ToolMode.REQUIRED),
        ({"type": "function", "function": {"name": "weather"}}, "weather"),
    ],
)
async def test_openai_tool_choice_reaches_the_service(
    front: Fronted, client: AsyncOpenAI, given: Any, understood: object
) -> None:
    front.will_say(Says(said("-")))
    await client.chat.completions.create(
        model="scripted", messages=[ASKED], tools=[TOOL], tool_choice=given, parallel_tool_calls=False
    )
    assert (chat_of(front).tool_choice, chat_of(front).parallel_tool_calls) == (understood, False)


async def test_openai_client_parses_structured_output(front: Fronted, client: AsyncOpenAI) -> None:
    ann = '{"name": "Ann", "age": 30}'
    front.will_say(*(Says(said(ann)) for _ in range(3)))
    done = await client.chat.completions.parse(model="scripted", messages=[ASKED], response_format=Person)
    assert done.choices[0].message.parsed == Person(name="Ann", age=30)
    wanted = front.asked.response_format
    assert wanted is not None
    assert wanted.kind is FormatKind.JSON_SCHEMA
    assert json.loads(wanted.source)["required"] == ["name", "age"]
    parsed = await client.responses.parse(model="scripted", input="Ann?", text_format=Person)
    assert parsed.output_parsed == Person(name="Ann", age=30)
    assert front.asked.response_format == wanted
    await client.chat.completions.create(
        model="scripted", messages=[ASKED], extra_body={"structured_outputs": {"regex": "a+"}}
    )
    assert front.asked.response_format is not None
    assert front.asked.response_format.source == "a+"


async def test_openai_endpoints_return_logprobs_with_token_texts(front: Fronted, client: AsyncOpenAI) -> None:
    logprobs = [TokenLogprobs(-0.5, ((104, -0.5), (255, float("-inf")))), TokenLogprobs(-1.0)]
    front.will_say(*(Says(text=["hi"], logprobs=logprobs) for _ in range(4)))
    done = await client.chat.completions.create(model="scripted", messages=[ASKED], logprobs=True, top_logprobs=2)
    assert front.asked.logprobs == 2
    assert done.choices[0].logprobs is not None
    first, second = done.choices[0].logprobs.content or []
    assert (first.token, first.bytes, first.logprob, second.logprob) == ("h", [104], -0.5, -1.0)
    assert [(one.token, one.logprob) for one in first.top_logprobs] == [("h", -0.5), ("\ufffd", -9999.0)]
    pieces = [
        piece
        async for piece in await client.chat.completions.create(
            model="scripted", messages=[ASKED], logprobs=True, stream=True
        )
    ]
    token_texts = [
        one.token for piece in pieces for c in piece.choices if c.logprobs for one in c.logprobs.content or []
    ]
    assert token_texts == ["h", "i"]
    older = await client.completions.create(model="scripted", prompt="x", logprobs=2)
    found = older.choices[0].logprobs
    assert found is not None
    assert (found.tokens, found.token_logprobs, found.text_offset) == (["h", "i"], [-0.5, -1.0], [0, 1])
    answer = await client.responses.create(
        model="scripted", input="x", include=["message.output_text.logprobs"], top_logprobs=2
    )
    (part,) = answer.output[0].content  # type: ignore[union-attr]
    assert [one.token for one in part.logprobs or []] == ["h", "i"]  # type: ignore[union-attr]


async def test_openai_choices_keep_their_index_in_unstreamed_and_streamed_answers(
    front: Fronted, client: AsyncOpenAI
) -> None:
    front.service.together = True
    front.will_say(Says(said("a")), Says(said("b"), choice=1, reason=FinishReason.LENGTH))
    done = await client.chat.completions.create(model="scripted", messages=[ASKED], n=2)
    assert front.asked.n == 2
    assert [(one.index, one.message.content, one.finish_reason) for one in done.choices] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (10, 2)
    stream = await client.chat.completions.create(model="scripted", messages=[ASKED], n=2, stream=True)
    pieces = [one async for piece in stream for one in piece.choices]
    assert [(one.index, one.delta.role) for one in pieces if one.delta.role] == [(0, "assistant"), (1, "assistant")]
    assert [one.index for one in pieces if one.finish_reason] == [0, 1]


async def test_responses_api_continues_from_a_stored_response(front: Fronted, client: AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}
    front.will_say(Says([*thought("hm"), *call(0, "weather", OSLO)]), Says(said("Cold.")), Says(said("-")))
    first = await client.responses.create(model="scripted", input="Oslo?", instructions="Be brief.", tools=[tool])
    assert [one.type for one in first.output] == ["reasoning", "function_call"]
    assert chat_of(front).messages[0] == Message("system", "Be brief.")
    given: Any = [{"type": "function_call_output", "call_id": "call_0", "output": "-3"}]
    second = await client.responses.create(
        model="scripted", input=given, previous_response_id=first.id, tools=[tool], store=False
    )
    assert second.output_text == "Cold."
    assert chat_of(front).messages == (
        Message("user", "Oslo?"),
        Message("assistant", "", (ToolCall("call_0", "weather", OSLO),), reasoning="hm"),
        Message("tool", "-3", tool_call_id="call_0", name="weather"),
    )
    with pytest.raises(openai.BadRequestError) as unstored:
        await client.responses.create(model="scripted", input="x", previous_response_id=second.id)
    assert (unstored.value.param, unstored.value.code) == ("previous_response_id", "previous_response_not_found")
    assert (await client.responses.retrieve(first.id)).output == first.output
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)


BEGUN: Any = [ASKED, {"role": "assistant", "content": "It is "}]
GOES_ON = {"continue_final_message": True}


async def test_continue_final_message_continues_the_assistant_message(front: Fronted, client: AsyncOpenAI) -> None:
    for more in (GOES_ON, GOES_ON | {"add_generation_prompt": False}):
        front.will_say(Says(said("cold.")), Says(said("cold.")))
        told = await client.chat.completions.create(model="scripted", messages=BEGUN, extra_body=more)
        assert told.choices[0].message.content == "cold."
        assert chat_of(front).continues
        response = await client.responses.create(model="scripted", input=BEGUN, extra_body=more)
        assert response.output_text == "cold."
        assert chat_of(front).continues
    front.will_say(Says(said("Why?")), Says(said("Cold.")))
    await client.responses.create(model="scripted", input="Sure?", previous_response_id=response.id)
    assert [one.content for one in chat_of(front).messages] == ["Oslo?", "It is cold.", "Sure?"]
    await client.chat.completions.create(model="scripted", messages=BEGUN, extra_body={"add_generation_prompt": True})
    assert not chat_of(front).continues


async def test_contradictory_continuation_flags_are_refused_by_name(front: Fronted, client: AsyncOpenAI) -> None:
    for wrong, param in (
        (GOES_ON | {"add_generation_prompt": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ):
        with pytest.raises(openai.BadRequestError) as chat:
            await client.chat.completions.create(model="scripted", messages=BEGUN, extra_body=wrong)
        with pytest.raises(openai.BadRequestError) as response:
            await client.responses.create(model="scripted", input=BEGUN, extra_body=wrong)
        assert chat.value.param == response.value.param == param


async def test_unknown_field_in_draftd_object_is_refused_by_name(front: Fronted, client: AsyncOpenAI) -> None:
    wrong = {"draftd": {"max_draft": 4}}
    with pytest.raises(
        openai.BadRequestError, match="draftd.max_draft: got 4; allowed: only the fields mode, max_draft_tokens, "
    ) as chat:
        await client.chat.completions.create(model="scripted", messages=BEGUN, extra_body=wrong)
    assert chat.value.param == "draftd.max_draft"


async def test_responses_stream_sends_its_events_in_protocol_order(front: Fronted, client: AsyncOpenAI) -> None:
    front.will_say(Says([*thought("hm"), *said("See:"), *call(0, "weather", OSLO)]))
    stream = await client.responses.create(model="scripted", input="Oslo?", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = events[-1].response  # type: ignore[union-attr]
    assert (done.status, done.output_text, len(done.output)) == ("completed", "See:", 3)
    assert (done.usage.input_tokens, done.usage.output_tokens_details.reasoning_tokens) == (10, 1)


async def test_engine_failure_mid_answer_reaches_openai_client_as_an_error(front: Fronted, client: AsyncOpenAI) -> None:
    front.will_say(*(Says(text=["half"], error=EngineFailure("it broke")) for _ in range(3)))
    stream = await client.chat.completions.create(model="scripted", messages=[ASKED], stream=True)
    with pytest.raises(openai.APIError, match="it broke"):
        _ = [piece async for piece in stream]
    events = [event async for event in await client.responses.create(model="scripted", input="x", stream=True)]
    assert events[-1].type == "response.failed"
    with pytest.raises(openai.InternalServerError, match="it broke"):
        await client.chat.completions.create(model="scripted", messages=[ASKED])


async def test_langchain_client_calls_tools_streams_and_parses_structured_output(front: Fronted) -> None:
    llm = ChatOpenAI(model="scripted", base_url=f"{front.url}/v1", api_key="none", max_retries=0)  # type: ignore[arg-type]
    front.will_say(Says(call(0, "weather", OSLO)), Says(text=["a", "b"]), Says(said('{"name": "Ann", "age": 30}')))
    called = await llm.bind_tools([TOOL]).ainvoke("Oslo?")
    assert called.tool_calls == [{"name": "weather", "args": {"city": "Oslo"}, "id": "call_0", "type": "tool_call"}]
    assert "".join([str(piece.content) async for piece in llm.astream("hi")]) == "ab"
    assert await llm.with_structured_output(Person).ainvoke("Ann?") == Person(name="Ann", age=30)
