"""Messages in the shape that a chat template takes. What it takes is found out by rendering small conversations with
it: templates differ, and say nothing of it.

Messages and tools are those of OpenAI's API, as all templates expect them. Arguments of calls are objects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Convert = Callable[[Mapping[str, Any]], dict[str, Any]]  # of one message

_PROBE, _ARGUMENT = "draftd_probe", "draftd_argument"
_TOOL = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
_TOOLS = ({"type": "function", "function": _TOOL},)
_USER = {"role": "user", "content": "a"}
_ID = "call_0123456789abcdef01234567"


class NotTaken(ValueError):
    """The template leaves out what the conversation has. `field`: `tools`, or `messages` for the calls in them."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the template takes no {'tools' if field == 'tools' else 'tool calls'}")
        self.field = field


class TemplateShape:
    """What one template takes. Each question is asked when it first matters, and once."""

    def __init__(self, render: Callable[[Messages, Messages], str], source: str | None) -> None:
        """`render`, of messages and tools, raises whatever it likes. `source` None: code renders the messages."""
        self._render, self._source = render, source
        self._conversions: dict[bool, Convert] = {}

    def shaped(self, messages: Messages, tools: Messages = ()) -> list[dict[str, Any]]:
        """The messages as the template takes them. Raises NotTaken."""
        made = [dict(one) for one in messages]
        if tools and not self._takes_tools:
            if not self._takes_tools_with_system:
                raise NotTaken("tools")
            if all(one["role"] not in ("system", "developer") for one in made):
                made.insert(0, {"role": "system", "content": ""})
        if any(one["role"] == "developer" for one in made) and not self._takes_developers:
            made = [{**one, "role": "system"} if one["role"] == "developer" else one for one in made]
        systems = [i for i, one in enumerate(made) if one["role"] == "system"]
        if systems not in ([], [0]) and not self._takes_several_systems:
            joined = "\n\n".join(made[i]["content"] for i in systems)
            made = [{"role": "system", "content": joined}, *(one for one in made if one["role"] != "system")]
        if any("tool_calls" in one for one in made):
            convert = self._conversion(bool(tools))
            made = [convert(one) for one in made]
        return made

    @cached_property
    def _takes_tools(self) -> bool:
        return self._shows([_USER], _TOOLS, _PROBE)

    @cached_property
    def _takes_tools_with_system(self) -> bool:
        """Some tell of tools in a system message only."""
        return self._shows([{"role": "system", "content": ""}, _USER], _TOOLS, _PROBE)

    @cached_property
    def _takes_developers(self) -> bool:
        if self._source is not None:  # many write whatever role they are given
            return "developer" in self._source
        return self._shows([{"role": "developer", "content": _PROBE}, _USER], (), _PROBE)

    @cached_property
    def _takes_several_systems(self) -> bool:
        marks = [f"{_PROBE}_{i}" for i in range(3)]
        first, second, later = ({"role": "system", "content": mark} for mark in marks)
        return self._shows([first, second, _USER, {"role": "assistant", "content": "b"}, later, _USER], (), *marks)

    def _shows(self, messages: Messages, tools: Messages, *marks: str) -> bool:
        try:
            text = self._render(messages, tools)
        except Exception:  # templates raise on what they do not take, each in its own way
            return False
        return all(mark in text for mark in marks)

    def _conversion(self, with_tools: bool) -> Convert:
        """Of messages with calls: arguments as objects, or as text; ids as they are, or of nine characters."""
        if with_tools not in self._conversions:
            self._conversions[with_tools] = self._found_conversion(_TOOLS if with_tools else ())
        return self._conversions[with_tools]

    def _found_conversion(self, tools: Messages) -> Convert:
        function = {"name": _PROBE, "arguments": {_ARGUMENT: 1}}
        calls = [{"id": _ID, "type": "function", "function": function}]
        probe: Messages = [
            *([] if not tools or self._takes_tools else [{"role": "system", "content": ""}]),
            _USER,
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "c", "tool_call_id": _ID, "name": _PROBE},
        ]
        drops = False
        known: tuple[Convert, ...] = (dict, _short_ids, _text_arguments, _short_text)
        for convert in known:
            try:
                text = self._render([convert(one) for one in probe], tools)
            except Exception:  # see above
                continue
            if _ARGUMENT in text:
                return convert
            drops = True
        if drops:
            raise NotTaken("messages")
        return dict  # the template raises, and says why


def _text_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """With ids of nine letters and digits, as Mistral's templates want them."""
    made = dict(message)
    if "tool_call_id" in made:
        made["tool_call_id"] = _short(made["tool_call_id"])
    if "tool_calls" in made:
        made["tool_calls"] = [{**call, "id": _short(call["id"])} for call in made["tool_calls"]]
    return made


def _short_text(message: Mapping[str, Any]) -> dict[str, Any]:
    return _short_ids(_text_arguments(message))


def _short(identifier: str) -> str:
    return hashlib.sha256(identifier.encode()).hexdigest()[:9]
