"""LlamaIndex: its class for servers like OpenAI's, and an agent on it."""

from __future__ import annotations

import asyncio
from typing import Any

from checks import (
    CALL,
    COUNT,
    QUESTION,
    REAL,
    REAL_MODEL,
    RESULT,
    TALKER,
    TALKER_MODEL,
    City,
    check,
    expect,
    expect_answer,
    expect_idle,
    expect_running,
)
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def model(url: str, name: str, most: int, **fields: Any) -> OpenAILike:
    return OpenAILike(
        model=name,
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
        max_tokens=most,
        max_retries=0,
        **fields,
    )


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@check("plain")
def plain() -> None:
    expect_answer(model(REAL, REAL_MODEL, 24).chat([ChatMessage(QUESTION)]).message.content)


@check("stream")
def stream() -> None:
    chunks = model(REAL, REAL_MODEL, 24).stream_chat([ChatMessage(QUESTION)])
    pieces = [chunk.delta for chunk in chunks if chunk.delta]
    expect_answer("".join(pieces), len(pieces))


@check("schema")
def schema() -> None:
    llm = model(REAL, REAL_MODEL, 64, should_use_structured_outputs=True)
    assert isinstance(llm.as_structured_llm(City).chat([ChatMessage(QUESTION)]).raw, City)


async def agents_answer() -> str:
    return str(await FunctionAgent(tools=[add], llm=model(TALKER, TALKER_MODEL, 200)).run(CALL))


@check("tools")
def tools() -> None:
    expect(asyncio.run(agents_answer()), RESULT)


async def begin_and_leave() -> None:
    async def read(begun: asyncio.Event) -> None:
        async for _ in await model(TALKER, TALKER_MODEL, 4096).astream_chat([ChatMessage(COUNT)]):
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
    # Its synchronous stream keeps the connection open when it is left.
    asyncio.run(begin_and_leave())
