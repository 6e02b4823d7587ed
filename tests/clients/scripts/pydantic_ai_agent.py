"""pydantic-ai: agents over chat completions, responses and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from anthropic import AsyncAnthropic
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
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def openai(url: str) -> OpenAIProvider:
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))


def anthropic(url: str) -> AnthropicProvider:
    return AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url, api_key="none", max_retries=0))


APIS: dict[str, Callable[[str, str], Any]] = {
    "chat completions": lambda url, name: OpenAIChatModel(name, provider=openai(url)),
    "responses": lambda url, name: OpenAIResponsesModel(name, provider=openai(url)),
    "messages": lambda url, name: AnthropicModel(name, provider=anthropic(url)),
}


def agent(api: str, url: str, name: str, most: int, **fields: Any) -> Any:
    return Agent(APIS[api](url, name), model_settings={"max_tokens": most}, retries=0, **fields)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@check("plain")
def plain() -> None:
    for api in APIS:
        expect_answer(asyncio.run(agent(api, REAL, REAL_MODEL, 24).run(QUESTION)).output)


async def pieces_of(api: str) -> list[str]:
    async with agent(api, REAL, REAL_MODEL, 24).run_stream(QUESTION) as answer:
        return [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]


@check("stream")
def stream() -> None:
    for api in APIS:
        pieces = asyncio.run(pieces_of(api))
        expect_answer("".join(pieces), len(pieces))


@check("schema")
def schema() -> None:
    for api in ("chat completions", "responses"):
        answer = asyncio.run(agent(api, REAL, REAL_MODEL, 64, output_type=NativeOutput(City)).run(QUESTION))
        assert isinstance(answer.output, City)


@check("tools")
def tools() -> None:
    for api in APIS:
        expect(asyncio.run(agent(api, TALKER, TALKER_MODEL, 200, tools=[add]).run(CALL)).output, RESULT)


async def begin_and_leave(api: str) -> None:
    running = agent(api, TALKER, TALKER_MODEL, 4096)

    async def read(begun: asyncio.Event) -> None:
        async with running.run_stream(COUNT) as answer:
            async for _ in answer.stream_text(delta=True, debounce_by=None):
                begun.set()

    begun = asyncio.Event()
    reading = asyncio.create_task(read(begun))
    await asyncio.wait_for(begun.wait(), 60)
    expect_running()
    reading.cancel()
    await asyncio.wait([reading])
    await asyncio.to_thread(expect_idle)


@check("abort")
def abort() -> None:
    for api in APIS:
        asyncio.run(begin_and_leave(api))


async def resumed(api: str) -> str:
    both = agent(api, TALKER, TALKER_MODEL, 200)
    first = await both.run(FIRST)
    return str((await both.run(SECOND, message_history=first.all_messages())).output)


@check("resume")
def resume() -> None:
    for api in APIS:
        expect(asyncio.run(resumed(api)), RECALLED)
