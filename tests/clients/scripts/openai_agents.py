"""OpenAI Agents SDK: over responses, its default, and over chat completions."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import (
    CALL,
    COUNT,
    FIRST,
    QUESTION,
    REAL,
    REAL_MODEL,
    RECALLED,
    RESULT,
    SECOND,
    TALKER,
    TALKER_MODEL,
    City,
    check,
    expect,
    expect_answer,
    expect_idle,
    expect_running,
)
from openai import AsyncOpenAI

APIS = (OpenAIResponsesModel, OpenAIChatCompletionsModel)
set_tracing_disabled(True)  # traces go to OpenAI's own server


def agent(api: Any, url: str, name: str, most: int, **fields: Any) -> Agent:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return Agent("agent", model=api(name, client), model_settings=ModelSettings(max_tokens=most), **fields)


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def pieces_of(running: Agent, question: str) -> list[str]:
    result = Runner.run_streamed(running, question)
    return [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]


@check("plain")
def plain() -> None:
    for api in APIS:
        expect_answer(asyncio.run(Runner.run(agent(api, REAL, REAL_MODEL, 24), QUESTION)).final_output)


@check("stream")
def stream() -> None:
    for api in APIS:
        pieces = asyncio.run(pieces_of(agent(api, REAL, REAL_MODEL, 24), QUESTION))
        expect_answer("".join(pieces), len(pieces))


@check("schema")
def schema() -> None:
    for api in APIS:
        result = asyncio.run(Runner.run(agent(api, REAL, REAL_MODEL, 64, output_type=City), QUESTION))
        assert isinstance(result.final_output, City)


@check("tools")
def tools() -> None:
    for api in APIS:
        # A client cannot be used in two event loops, so each has an agent of its own.
        whole, streamed = (agent(api, TALKER, TALKER_MODEL, 200, tools=[add]) for _ in range(2))
        expect(asyncio.run(Runner.run(whole, CALL)).final_output, RESULT)
        expect("".join(asyncio.run(pieces_of(streamed, CALL))), RESULT)


async def begin_and_leave(api: Any) -> None:
    result = Runner.run_streamed(agent(api, TALKER, TALKER_MODEL, 4096), COUNT)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            break
    expect_running()
    result.cancel()
    await asyncio.to_thread(expect_idle)


@check("abort")
def abort() -> None:
    for api in APIS:
        asyncio.run(begin_and_leave(api))


async def resumed() -> str:
    running = agent(OpenAIResponsesModel, TALKER, TALKER_MODEL, 200)
    first = await Runner.run(running, FIRST)
    return str((await Runner.run(running, SECOND, previous_response_id=first.last_response_id)).final_output)


@check("resume")
def resume() -> None:
    expect(asyncio.run(resumed()), RECALLED)
