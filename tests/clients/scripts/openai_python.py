"""openai-python: chat completions and responses."""

from __future__ import annotations

import json
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
from openai import OpenAI

real = OpenAI(base_url=f"{REAL}/v1", api_key="none", max_retries=0)
talker = OpenAI(base_url=f"{TALKER}/v1", api_key="none", max_retries=0)
PARAMETERS: Any = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def add(arguments: str) -> str:
    numbers = json.loads(arguments)
    return str(numbers["a"] + numbers["b"])


@check("plain")
def plain() -> None:
    chat = real.chat.completions.create(model=REAL_MODEL, messages=user(QUESTION), max_tokens=24)
    expect_answer(chat.choices[0].message.content)
    expect_answer(real.responses.create(model=REAL_MODEL, input=QUESTION, max_output_tokens=24).output_text)
    expect(real.models.retrieve(REAL_MODEL).id, REAL_MODEL)


@check("stream")
def stream() -> None:
    chunks = real.chat.completions.create(
        model=REAL_MODEL, messages=user(QUESTION), max_tokens=24, stream=True, stream_options={"include_usage": True}
    )
    *texts, last = list(chunks)
    pieces = [piece for chunk in texts for choice in chunk.choices if (piece := choice.delta.content)]
    expect_answer("".join(pieces), len(pieces))
    assert last.usage is not None
    with real.responses.stream(model=REAL_MODEL, input=QUESTION, max_output_tokens=24) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        expect("".join(pieces), events.get_final_response().output_text)
    expect_answer("".join(pieces), len(pieces))


@check("schema")
def schema() -> None:
    chat = real.chat.completions.parse(model=REAL_MODEL, messages=user(QUESTION), response_format=City, max_tokens=64)
    assert isinstance(chat.choices[0].message.parsed, City)
    answer = real.responses.parse(model=REAL_MODEL, input=QUESTION, text_format=City, max_output_tokens=64)
    assert isinstance(answer.output_parsed, City)


@check("tools")
def tools() -> None:
    chat_tools: Any = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS, "strict": True}}]
    messages = user(CALL)
    with talker.chat.completions.stream(model=TALKER_MODEL, messages=messages, tools=chat_tools) as events:
        deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        message = events.get_final_completion().choices[0].message
    assert deltas
    (call,) = message.tool_calls or ()
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)},
    ]
    end = talker.chat.completions.create(model=TALKER_MODEL, messages=messages, tools=chat_tools)
    expect(end.choices[0].message.content, RESULT)

    tools: Any = [{"type": "function", "name": "add", "parameters": PARAMETERS, "strict": True}]
    first = talker.responses.create(model=TALKER_MODEL, input=CALL, tools=tools)
    called: Any = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": called.call_id, "output": add(called.arguments)}
    items: Any = [*user(CALL), *(item.model_dump() for item in first.output), output]
    expect(talker.responses.create(model=TALKER_MODEL, input=items, tools=tools).output_text, RESULT)


@check("abort")
def abort() -> str:
    chunks = talker.chat.completions.create(model=TALKER_MODEL, messages=user(COUNT), stream=True)
    for _, _ in zip(range(3), chunks, strict=False):
        pass
    expect_running()
    chunks.close()
    expect_idle()
    events = talker.responses.create(model=TALKER_MODEL, input=COUNT, stream=True)
    next(event for event in events if event.type == "response.output_text.delta")
    expect_running()
    events.close()
    return expect_idle()


@check("resume")
def resume() -> None:
    first = talker.responses.create(model=TALKER_MODEL, input=FIRST)
    second = talker.responses.create(model=TALKER_MODEL, input=SECOND, previous_response_id=first.id)
    expect(second.output_text, RECALLED)
