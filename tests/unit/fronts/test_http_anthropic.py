"""Anthropic's own Python client over a scripted service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from draftd.errors import EngineFailure, InvalidRequest
from draftd.service.messages import Chat, Message, ToolCall, ToolMode
from tests.http_front import Fronted, Says, call, fronted, said, thought

TOOL: Any = {"name": "weather", "description": "Tells it", "input_schema": {"type": "object"}}
OSLO = '{"city": "Oslo"}'
ASKED: Any = {"role": "user", "content": "Oslo?"}


@pytest.fixture
async def front() -> AsyncIterator[Fronted]:
    async with fronted() as front:
        yield front


@pytest.fixture
async def client(front: Fronted) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=front.url, api_key="none", max_retries=0) as client:
        yield client


async def test_anthropic_client_calls_a_tool_and_sends_its_result(front: Fronted, client: AsyncAnthropic) -> None:
    front.will_say(Says([*thought("hm"), *said("See:"), *call(0, "weather", OSLO)]), Says(said("Cold."), stop="!"))
    first = await client.messages.create(
        model="scripted", max_tokens=50, messages=[ASKED], tools=[TOOL], tool_choice={"type": "any"}, system="Be brief."
    )
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert (first.stop_reason, first.content[2].input) == ("tool_use", {"city": "Oslo"})  # type: ignore[union-attr]
    assert (first.usage.input_tokens, first.usage.cache_read_input_tokens) == (6, 4)
    assert isinstance(front.asked.prompt, Chat)
    assert front.asked.prompt.tool_choice is ToolMode.REQUIRED
    result: Any = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_0", "content": [{"type": "text", "text": "-3"}]},
            {"type": "text", "text": "So?"},
        ],
    }
    again: Any = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
    second = await client.messages.create(
        model="scripted", max_tokens=50, messages=[ASKED, again, result], tools=[TOOL], stop_sequences=["!"]
    )
    assert (second.stop_reason, second.stop_sequence) == ("stop_sequence", "!")
    assert front.asked.prompt.messages == (
        Message("user", "Oslo?"),
        Message("assistant", "See:", (ToolCall("call_0", "weather", '{"city":"Oslo"}'),), reasoning="hm"),
        Message("tool", "-3", tool_call_id="call_0", name="weather"),
        Message("user", "So?"),
    )
    assert front.asked.stop == ("!",)


async def test_anthropic_stream_assembles_thinking_text_and_tool_call(front: Fronted, client: AsyncAnthropic) -> None:
    front.will_say(Says([*thought("hm"), *said("See:"), *call(0, "weather", OSLO)]))
    async with client.messages.stream(model="scripted", max_tokens=50, messages=[ASKED], tools=[TOOL]) as stream:
        kinds = [event.type async for event in stream]
        done = await stream.get_final_message()
    main_kinds = [kind for kind in kinds if kind.startswith(("message", "content_block_st"))]
    blocks = ["content_block_start", "content_block_stop"] * 3
    assert main_kinds == ["message_start", *blocks, "message_delta", "message_stop"]
    thinking, text, used = done.content
    assert (thinking.thinking, text.text, used.input) == ("hm", "See:", {"city": "Oslo"})  # type: ignore[union-attr]
    assert (done.stop_reason, done.usage.output_tokens) == ("tool_use", 5)


async def test_anthropic_client_raises_typed_errors_with_the_server_message(
    front: Fronted, client: AsyncAnthropic
) -> None:
    picture: Any = {"role": "user", "content": [{"type": "image", "source": {}}]}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type: got 'image'"):
        await client.messages.create(model="scripted", max_tokens=5, messages=[picture])
    with pytest.raises(anthropic.NotFoundError, match="model: got 'other'"):
        await client.messages.create(model="other", max_tokens=5, messages=[ASKED])
    front.will_say(Says(text=["half"], error=EngineFailure("it broke")))
    with pytest.raises(anthropic.APIStatusError, match="it broke"):
        async with client.messages.stream(model="scripted", max_tokens=5, messages=[ASKED]) as stream:
            await stream.get_final_message()


async def test_anthropic_thread_field_is_refused_with_thread_unsupported_code(client: AsyncAnthropic) -> None:
    thread = {"type": "create"}
    with pytest.raises(anthropic.BadRequestError, match="thread: got .*allowed: null") as refused:
        await client.messages.create(model="", messages=[ASKED], max_tokens=8, extra_body={"thread": thread})
    body: Any = refused.value.body
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


async def test_unknown_tool_use_id_is_refused_by_its_anthropic_field_path(
    front: Fronted, client: AsyncAnthropic
) -> None:
    front.will_say(Says(error=InvalidRequest("chat.messages[0].tool_call_id", "call_1", "the id of an earlier call")))
    result: Any = {"type": "tool_result", "tool_use_id": "call_1", "content": "5"}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].tool_use_id: got 'call_1'"):
        await client.messages.create(model="", messages=[{"role": "user", "content": [result]}], max_tokens=8)


async def test_anthropic_trailing_assistant_message_is_continued(front: Fronted, client: AsyncAnthropic) -> None:
    async def prompt(content: Any) -> Chat:
        front.will_say(Says(said("cold.")))
        last: Any = {"role": "assistant", "content": content}
        message = await client.messages.create(model="scripted", max_tokens=5, messages=[ASKED, last])
        assert message.content[0].text == "cold."  # type: ignore[union-attr]
        assert isinstance(front.asked.prompt, Chat)
        return front.asked.prompt

    begun = await prompt("It is")
    assert (begun.continues, begun.messages[-1]) == (True, Message("assistant", "It is"))
    for empty in ("", []):
        fresh = await prompt(empty)
        assert (fresh.continues, fresh.messages) == (False, (Message("user", "Oslo?"),))
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[1\].content: got 'It is '; allowed: .*white space"):
        await prompt("It is ")
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    begun_json: Any = [ASKED, {"role": "assistant", "content": "{"}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"output_config.format: got .* no value if the answer continues"
    ):
        await client.messages.create(
            model="scripted", max_tokens=5, messages=begun_json, extra_body={"output_config": schema}
        )


async def test_anthropic_client_counts_tokens_and_lists_models(front: Fronted, client: AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model="scripted", messages=[ASKED])
    assert counted.input_tokens == 7
    assert [one.id async for one in await client.models.list()] == ["org/scripted", "scripted"]
