"""langchain-openai: chat completions, and responses."""

from __future__ import annotations

from typing import Any

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
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


def model(url: str, name: str, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=f"{url}/v1", api_key="none", max_retries=0, **fields)


APIS: tuple[dict[str, Any], ...] = ({}, {"use_responses_api": True})


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@check("plain")
def plain() -> None:
    for api in APIS:
        expect_answer(str(model(REAL, REAL_MODEL, max_tokens=24, **api).invoke(QUESTION).text))


@check("stream")
def stream() -> None:
    for api in APIS:
        pieces = [str(chunk.text) for chunk in model(REAL, REAL_MODEL, max_tokens=24, **api).stream(QUESTION)]
        expect_answer("".join(pieces), len([piece for piece in pieces if piece]))


@check("schema")
def schema() -> None:
    for api in APIS:
        filled = model(REAL, REAL_MODEL, max_tokens=64, **api).with_structured_output(City).invoke(QUESTION)
        assert isinstance(filled, City)


@check("tools")
def tools() -> None:
    for api in APIS:
        bound = model(TALKER, TALKER_MODEL, **api).bind_tools([add])
        messages: list[Any] = [HumanMessage(CALL)]
        called: Any = bound.invoke(messages)
        (call,) = called.tool_calls
        messages += [called, add.invoke(call)]
        expect(str(bound.invoke(messages).text), RESULT)


@check("abort")
def abort() -> str:
    for api in APIS:
        chunks: Any = model(TALKER, TALKER_MODEL, **api).stream(COUNT)
        for _, _ in zip(range(5), chunks, strict=False):
            pass
        expect_running()
        chunks.close()
        idle = expect_idle()
    return idle


@check("resume")
def resume() -> None:
    llm = model(TALKER, TALKER_MODEL, use_responses_api=True)
    first: Any = llm.invoke(FIRST)
    second = llm.invoke(SECOND, previous_response_id=first.response_metadata["id"])
    expect(str(second.text), RECALLED)
