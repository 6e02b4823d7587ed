"""Generates tool calls, and plain questions under the same system message, so that a question is not answered by a
call."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from training.generator import tables_tools as t
from training.generator import tables_words as w
from training.generator.arithmetic import problem
from training.generator.base import Document, Message, chat
from training.generator.facts import question
from training.generator.tables_tools import Tool

NO_TOOL = "I have no tool for that."
_INTRO = (
    "You can call these tools:",
    "You can call these tools:",
    "Tools:",
    "You have these tools:",
    "Answer questions, or call one of these tools:",
)


def _value(rng: Random, kind: str) -> Any:
    if kind in t.RANGES:
        low, high = t.RANGES[kind]
        return rng.randint(low, high)
    if kind == "time":
        return f"{rng.randrange(24):02d}:{rng.choice(('00', '15', '30', '45', f'{rng.randrange(60):02d}'))}"
    if kind == "email":
        return f"{rng.choice(w.NAMES).lower()}@example.{rng.choice(('com', 'org', 'net'))}"
    if kind == "query":
        return rng.choice(
            (
                f"{rng.choice(w.COLOURS)} {rng.choice(w.CLOTHES)}s",
                f"{rng.choice(w.SPORTS)} in {rng.choice(w.CITIES)}",
                f"how to repair a {rng.choice(w.VEHICLES)}",
                f"{rng.choice(t.CUISINES)} recipes",
            )
        )
    return rng.choice(t.VALUES[kind])


def _arguments(rng: Random, tool: Tool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, kind in tool.arguments:
        value = _value(rng, kind)
        while value in values.values():
            value = _value(rng, kind)
        values[name] = value
    return values


def call_text(call: dict[str, Any]) -> str:
    return json.dumps(call, ensure_ascii=False)


def system_message(rng: Random, must: list[Tool]) -> str:
    """Builds a system message that lists a few tools in a random order, those in `must` among them."""
    others = [x for x in t.TOOLS if x not in must]
    tools = must + rng.sample(others, rng.randrange(1, 5))
    rng.shuffle(tools)
    return rng.choice(_INTRO) + "\n" + "\n".join(tool.signature() for tool in tools)


def _request(rng: Random, tool: Tool) -> tuple[str, dict[str, Any]]:
    arguments = _arguments(rng, tool)
    asked = rng.choice(tool.requests).format(**arguments)
    if rng.random() < 0.25:
        imperative = asked.split()[0] not in ("What", "How", "Where", "Will", "When", "I", "On", "With")
        asked = f"Please {asked[0].lower()}{asked[1:]}" if imperative and rng.random() < 0.6 else f"Hi! {asked}"
    return asked, {"name": tool.name, "arguments": arguments}


def tool_call(rng: Random) -> Document:
    """Builds a request that one call answers."""
    tool = rng.choice(t.TOOLS)
    asked, call = _request(rng, tool)
    if rng.random() < 0.15:
        asked = rng.choice((f"Call {tool.name}: {asked}", f"Use the tool {tool.name}. {asked}"))
        return chat("tool_call", "tool_call", asked, call_text(call), expect=call)
    return chat("tool_call", "tool_call", asked, call_text(call), system=system_message(rng, [tool]), expect=call)


def tool_calls(rng: Random) -> Document:
    """Builds several requests in one message, answered by a list of calls."""
    tools = rng.sample(t.TOOLS, 2) if rng.random() < 0.6 else [rng.choice(t.TOOLS)] * 2
    if rng.random() < 0.25:
        tools.append(rng.choice(t.TOOLS))
    pairs = [_request(rng, tool) for tool in tools]
    asked = " ".join(text if text[-1] in ".?!" else text + "." for text, _ in pairs)
    calls = "[" + ",\n ".join(call_text(call) for _, call in pairs) + "]"
    unique = list({tool.name: tool for tool in tools}.values())
    return chat(
        "tool_calls", "tool_call", asked, calls, system=system_message(rng, unique), expect=[c for _, c in pairs]
    )


def tool_question(rng: Random, worked: bool = True) -> Document:
    """Builds a question under a system message with tools, answered in words; or a request that no listed tool can
    serve."""
    kind = rng.random()
    if kind < 0.12:
        tool = rng.choice(t.TOOLS)
        asked, _ = _request(rng, tool)
        others = rng.sample(
            [x for x in t.TOOLS if x.name.split("_")[0] != tool.name.split("_")[0]], rng.randrange(2, 5)
        )
        others = [x for x in others if not ({"weather", "forecast"} & {*x.name.split("_")})] or [
            t.BY_NAME["call_contact"]
        ]
        system = rng.choice(_INTRO) + "\n" + "\n".join(x.signature() for x in others)
        return chat("tool_question", "chat", asked, NO_TOOL, system=system)
    system = system_message(rng, rng.sample(t.TOOLS, rng.randrange(1, 3)))
    if kind < 0.3:
        p = problem(rng, worked)
        asked, short = f"What is {p.asked}?", str(p.result)
        return chat("tool_question", "chat", asked, p.answer, system=system, key=p.key, expect=short)
    asked, answer, short = question(rng)
    return chat("tool_question", "chat", asked, answer, system=system, expect=short)


def tool_result(rng: Random) -> Document:
    """Builds a conversation with a call, the tool's result, and an answer from it."""
    kind = rng.choice(("get_time", "get_stock_price", "get_weather"))
    tool = t.BY_NAME[kind]
    asked, call = _request(rng, tool)
    a = call["arguments"]
    if kind == "get_time":
        time = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
        result, answer = {"time": time}, f"It is {time} in {a['city']}."
    elif kind == "get_stock_price":
        price = rng.randrange(10, 900)
        result, answer = {"price": price}, f"The price of {a['symbol']} is {price} dollars."
    else:
        degrees, sky = rng.randrange(-5, 35), rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy"))
        result = {"temperature": degrees, "sky": sky}
        answer = f"It is {sky} in {a['city']} with {degrees} degrees {a['unit']}."
    messages: tuple[Message, ...] = (
        {"role": "system", "content": system_message(rng, [tool])},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": call_text(call)},
        {"role": "tool", "content": json.dumps(result)},
        {"role": "assistant", "content": answer},
    )
    return Document("tool_result", "chat", messages)
