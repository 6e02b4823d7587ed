"""instructor: answers under a schema, as a format and as a call of a tool."""

from __future__ import annotations

import asyncio
from typing import Any

import instructor
from checks import (
    QUESTION,
    REAL,
    REAL_MODEL,
    TALKER,
    TALKER_MODEL,
    City,
    check,
    expect,
    expect_answer,
    expect_idle,
    expect_running,
)
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel


def client(url: str, mode: instructor.Mode) -> Any:
    return instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


class Text(BaseModel):
    text: str


LONG = 'SAY {"text": "' + " ".join(map(str, range(1500))) + '"}'


@check("plain")
def plain() -> None:
    answer = client(REAL, instructor.Mode.JSON_SCHEMA).chat.completions.create(
        model=REAL_MODEL, messages=user(QUESTION), response_model=None, max_tokens=24
    )
    expect_answer(answer.choices[0].message.content)


@check("stream")
def stream() -> None:
    filled = list(
        client(REAL, instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
            model=REAL_MODEL, messages=user(QUESTION), response_model=City, max_tokens=64, max_retries=0
        )
    )
    assert len(filled) > 2
    City.model_validate(filled[-1].model_dump())


@check("schema")
def schema() -> None:
    filled = client(REAL, instructor.Mode.JSON_SCHEMA).chat.completions.create(
        model=REAL_MODEL, messages=user(QUESTION), response_model=City, max_tokens=64, max_retries=0
    )
    assert isinstance(filled, City)


@check("tools")
def tools() -> None:
    filled = client(TALKER, instructor.Mode.TOOLS).chat.completions.create(
        model=TALKER_MODEL,
        messages=user('CALL City {"city": "Oslo", "is_capital": true}'),
        response_model=City,
        max_retries=0,
    )
    expect(filled.model_dump(), {"city": "Oslo", "is_capital": True})


async def begin_and_leave() -> None:
    async def read(begun: asyncio.Event) -> None:
        talker = AsyncOpenAI(base_url=f"{TALKER}/v1", api_key="none", max_retries=0)
        filled: Any = instructor.from_openai(talker, mode=instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
            model=TALKER_MODEL, messages=user(LONG), response_model=Text, max_retries=0
        )
        async for _ in filled:
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
    # Its synchronous client reads a whole stream before it gives the first part.
    asyncio.run(begin_and_leave())
