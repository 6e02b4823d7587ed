"""langchain-anthropic: messages."""

from __future__ import annotations

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
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool


def model(url: str, name: str, **fields: Any) -> Any:
    return ChatAnthropic(model=name, base_url=url, api_key="none", max_retries=0, **fields)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@check("plain")
def plain() -> None:
    expect_answer(str(model(REAL, REAL_MODEL, max_tokens=24).invoke(QUESTION).text))


@check("stream")
def stream() -> None:
    pieces = [str(chunk.text) for chunk in model(REAL, REAL_MODEL, max_tokens=24).stream(QUESTION)]
    expect_answer("".join(pieces), len([piece for piece in pieces if piece]))


@check("schema")
def schema() -> None:
    llm = model(REAL, REAL_MODEL, max_tokens=64)
    assert isinstance(llm.with_structured_output(City, method="json_schema").invoke(QUESTION), City)


@check("tools")
def tools() -> None:
    bound = model(TALKER, TALKER_MODEL, max_tokens=200).bind_tools([add])
    messages: list[Any] = [HumanMessage(CALL)]
    called = bound.invoke(messages)
    (call,) = called.tool_calls
    messages += [called, add.invoke(call)]
    expect(str(bound.invoke(messages).text), RESULT)


@check("abort")
def abort() -> str:
    chunks = model(TALKER, TALKER_MODEL, max_tokens=4096).stream(COUNT)
    for _, _ in zip(range(5), chunks, strict=False):
        pass
    expect_running()
    chunks.close()
    return expect_idle()
