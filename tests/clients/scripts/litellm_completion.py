"""LiteLLM: its OpenAI and its Anthropic provider, and its responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
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

APIS = {"openai": "/v1", "anthropic": ""}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOLS: Any = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}]


def place(api: str, url: str, model: str) -> dict[str, Any]:
    return {"model": f"{api}/{model}", "api_base": url + APIS[api], "api_key": "none", "num_retries": 0}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def content(chunk: Any) -> str:
    return "".join(choice.delta.content or "" for choice in chunk.choices)


@check("plain")
def plain() -> None:
    for api in APIS:
        answer: Any = litellm.completion(**place(api, REAL, REAL_MODEL), messages=user(QUESTION), max_tokens=24)
        expect_answer(answer.choices[0].message.content)
    answer = litellm.responses(**place("openai", REAL, REAL_MODEL), input=QUESTION, max_output_tokens=24)
    expect_answer(answer.output_text)


@check("stream")
def stream() -> None:
    for api in APIS:
        chunks: Any = litellm.completion(
            **place(api, REAL, REAL_MODEL), messages=user(QUESTION), max_tokens=24, stream=True
        )
        pieces = [piece for chunk in chunks if (piece := content(chunk))]
        expect_answer("".join(pieces), len(pieces))


@check("schema")
def schema() -> None:
    answer: Any = litellm.completion(
        **place("openai", REAL, REAL_MODEL), messages=user(QUESTION), max_tokens=64, response_format=City
    )
    City.model_validate_json(answer.choices[0].message.content)


@check("tools")
def tools() -> None:
    for api in APIS:
        messages = user(CALL)
        first: Any = litellm.completion(
            **place(api, TALKER, TALKER_MODEL), messages=messages, tools=TOOLS, max_tokens=200
        )
        message = first.choices[0].message
        (call,) = message.tool_calls
        numbers = json.loads(call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": str(numbers["a"] + numbers["b"])}
        messages += [message.model_dump(exclude_none=True), result]
        end: Any = litellm.completion(
            **place(api, TALKER, TALKER_MODEL), messages=messages, tools=TOOLS, max_tokens=200
        )
        expect(end.choices[0].message.content, RESULT)


async def begin_and_leave(api: str) -> None:
    chunks: Any = await litellm.acompletion(
        **place(api, TALKER, TALKER_MODEL), messages=user(COUNT), max_tokens=4096, stream=True
    )
    async for chunk in chunks:
        if content(chunk):
            break
    expect_running()
    await chunks.aclose()
    await asyncio.to_thread(expect_idle)


@check("abort")
def abort() -> None:
    for api in APIS:
        asyncio.run(begin_and_leave(api))


@check("resume")
def resume() -> None:
    first: Any = litellm.responses(**place("openai", TALKER, TALKER_MODEL), input=FIRST)
    second: Any = litellm.responses(
        **place("openai", TALKER, TALKER_MODEL), input=SECOND, previous_response_id=first.id
    )
    expect(second.output_text, RECALLED)
