"""anthropic python: messages, and its loop over tools."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, beta_tool
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

real = Anthropic(base_url=REAL, api_key="none", max_retries=0)
talker = Anthropic(base_url=TALKER, api_key="none", max_retries=0)


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


@check("plain")
def plain() -> None:
    message = real.messages.create(model=REAL_MODEL, messages=user(QUESTION), max_tokens=24)
    expect_answer("".join(block.text for block in message.content if block.type == "text"))
    assert real.messages.count_tokens(model=REAL_MODEL, messages=user(QUESTION)).input_tokens > 5


@check("stream")
def stream() -> None:
    with real.messages.stream(model=REAL_MODEL, messages=user(QUESTION), max_tokens=24) as events:
        pieces = list(events.text_stream)
        expect("".join(pieces), events.get_final_text())
    expect_answer("".join(pieces), len(pieces))


@check("schema")
def schema() -> None:
    message = real.messages.parse(model=REAL_MODEL, messages=user(QUESTION), output_format=City, max_tokens=64)
    assert isinstance(message.parsed_output, City)


@beta_tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@check("tools")
def tools() -> None:
    for streams in (False, True):
        runner: Any = talker.beta.messages.tool_runner(
            model=TALKER_MODEL, messages=user(CALL), tools=[add], max_tokens=200, stream=streams
        )
        last = runner.until_done()
        expect([block.text for block in last.content], [RESULT])


@check("abort")
def abort() -> str:
    with talker.messages.stream(model=TALKER_MODEL, messages=user(COUNT), max_tokens=4096) as events:
        next(events.text_stream)
        expect_running()
    return expect_idle()
