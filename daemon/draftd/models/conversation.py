"""Shapes messages for a chat template. What a template accepts is found by rendering small conversations, because
templates differ and do not declare it.

Messages and tools are those of OpenAI's API, as all templates expect them. Arguments of calls are objects.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from draftd.models import generic_tools

Messages = Sequence[Mapping[str, Any]]

_PROBE, _ARGUMENT, _RESULT = "draftd_probe", "draftd_argument", "draftd_result"
_TOOL = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
_TOOLS = ({"type": "function", "function": _TOOL},)
_USER, _EMPTY_SYSTEM = {"role": "user", "content": "a"}, {"role": "system", "content": ""}
_ID = "call_0123456789abcdef01234567"
_END_OF_TEXT = "draftd_end_of_text"


class ToolsIgnored(ValueError):
    """The template ignores the tools that it is given."""


class CallShape(NamedTuple):
    """The form of messages with calls and results. `no_content`: without empty content; `text_arguments`: arguments as
    JSON text; `short_ids`: ids of nine letters and digits, as in Mistral's templates; `in_content`: calls as text, for
    templates that ignore calls; `as_user`: results as a user's text, for templates that ignore results."""

    text_arguments: bool = False
    no_content: bool = False
    short_ids: bool = False
    in_content: bool = False
    as_user: bool = False

    def of(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shaped_message = dict(message)
        if self.short_ids and "tool_call_id" in shaped_message:
            shaped_message["tool_call_id"] = _short(shaped_message["tool_call_id"])
        if self.as_user and shaped_message["role"] == "tool":
            shaped_message = {"role": "user", "content": generic_tools.result_text(shaped_message["content"])}
        if "tool_calls" not in shaped_message:
            return shaped_message
        if self.in_content:
            calls = [generic_tools.call_text(call["function"]) for call in shaped_message.pop("tool_calls")]
            shaped_message["content"] = "\n".join((*filter(None, [shaped_message["content"]]), *calls))
            return shaped_message
        if self.no_content and not shaped_message["content"]:
            shaped_message["content"] = None
        shaped_message["tool_calls"] = [self._call(call) for call in shaped_message["tool_calls"]]
        return shaped_message

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if self.text_arguments:
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "id": _short(call["id"]) if self.short_ids else call["id"], "function": function}


def render_unfinished(messages: Messages, render: Callable[[Messages], str]) -> str:
    """Returns the chat up to the end of the last message's text, for an answer that continues it. `render` adds no new
    message. Raises ValueError if the template changes that text."""
    last = messages[-1]
    text = str(last["content"])
    # The mark keeps white space before it, even if the template trims the text.
    marked = render([*messages[:-1], {**last, "content": text + _END_OF_TEXT}])
    rendered, separator, _ = marked.rpartition(_END_OF_TEXT)
    if not separator or not rendered.endswith(text.lstrip()):
        raise ValueError("the template changes or omits the last message's text, so the answer cannot continue it")
    return rendered


_GENERIC_CALLS = CallShape(in_content=True, as_user=True)


class TemplateShape:
    """The abilities of one template. Each question is answered once, when it first matters."""

    def __init__(
        self, render: Callable[[Messages, Messages], str], source: str | None, *, generic_tools: bool = False
    ) -> None:
        """`render` takes messages and tools and may raise anything. `source` None: code renders the messages.
        `generic_tools`: tools, calls and results become text, and the template gets none."""
        self._render, self._source, self._generic_tools = render, source, generic_tools
        self._systems: dict[bool, bool] = {}  # with tools, and without
        self._several_systems: dict[bool, bool] = {}  # with tools, and without
        self._call_shapes: dict[bool, CallShape] = {}
        self._twice: dict[tuple[str, bool], bool] = {}  # by role, with tools, and without

    def fit(self, messages: Messages, tools: Messages = ()) -> tuple[list[dict[str, Any]], Messages]:
        """Returns messages and tools in the form that the template accepts. Raises NotTaken."""
        if self._generic_tools:
            with_description = generic_tools.describe_tools(messages, tools) if tools else messages
            return self._fit([_GENERIC_CALLS.of(one) for one in with_description], ()), ()
        return self._fit(messages, tools), tools

    def _fit(self, messages: Messages, tools: Messages) -> list[dict[str, Any]]:
        shaped_messages, with_tools = [dict(message) for message in messages], bool(tools)
        if tools and not self._takes_tools:
            if not self._takes_tools_with_system:
                raise ToolsIgnored("the template ignores tools")
            if all(message["role"] not in ("system", "developer") for message in shaped_messages):
                shaped_messages.insert(0, _EMPTY_SYSTEM)
        if any(message["role"] == "developer" for message in shaped_messages) and not self._takes_developers:
            shaped_messages = [
                {**message, "role": "system"} if message["role"] == "developer" else message
                for message in shaped_messages
            ]
        systems = [i for i, message in enumerate(shaped_messages) if message["role"] == "system"]
        if systems not in ([], [0]):
            if with_tools not in self._several_systems:
                self._several_systems[with_tools] = self._takes_several_systems(_TOOLS if tools else ())
            if not self._several_systems[with_tools]:
                joined = "\n\n".join(shaped_messages[i]["content"] for i in systems)
                shaped_messages = [
                    {"role": "system", "content": joined},
                    *(message for message in shaped_messages if message["role"] != "system"),
                ]
                systems = [0]
        if systems and not self._takes_system(with_tools):
            shaped_messages = _with_instructions_of_user(shaped_messages)
        if any("tool_calls" in message for message in shaped_messages):
            if with_tools not in self._call_shapes:
                self._call_shapes[with_tools] = self._call_shape(_TOOLS if tools else ())
            shaped_messages = [self._call_shapes[with_tools].of(message) for message in shaped_messages]
        twice = {
            message["role"]
            for message, other in itertools.pairwise(shaped_messages)
            if message["role"] == other["role"]
        } - {"system"}
        return _join_roles(shaped_messages, {role for role in twice if not self._takes_twice(role, tools)})

    @cached_property
    def _takes_tools(self) -> bool:
        return self._shows([_USER], _TOOLS, _PROBE)

    @cached_property
    def _takes_tools_with_system(self) -> bool:
        """Whether the template describes tools if there is a system message: some do so only then."""
        return self._shows([_EMPTY_SYSTEM, _USER], _TOOLS, _PROBE)

    @cached_property
    def _takes_developers(self) -> bool:
        if self._source is not None:  # many templates write any role that they are given
            return "developer" in self._source
        return self._shows([{"role": "developer", "content": _PROBE}, _USER], (), _PROBE)

    def _takes_system(self, with_tools: bool) -> bool:
        """Whether the template accepts a system message: Gemma's raises, others ignore it."""
        if with_tools not in self._systems:
            probe = [{"role": "system", "content": _PROBE}, _USER]
            self._systems[with_tools] = self._shows(probe, _TOOLS if with_tools else (), _PROBE)
        return self._systems[with_tools]

    def _takes_several_systems(self, tools: Messages) -> bool:
        marks = [f"{_PROBE}_{i}" for i in range(3)]
        first, second, later = ({"role": "system", "content": mark} for mark in marks)
        return self._shows([first, second, _USER, {"role": "assistant", "content": "b"}, later, _USER], tools, *marks)

    def _takes_twice(self, role: str, tools: Messages) -> bool:
        """Whether two messages of one role may follow each other: Gemma's and Mistral's templates want user and
        assistant to alternate."""
        key = role, bool(tools)
        if key not in self._twice:
            marks = [f"{_PROBE}_{i}" for i in range(2)]
            probes: list[dict[str, Any]] = [{"role": role, "content": mark} for mark in marks]
            before: list[Mapping[str, Any]] = [] if role == "user" else [_USER]
            if role == "tool":
                function = {"name": _PROBE, "arguments": {_ARGUMENT: 1}}
                ids = [f"{_ID[:-1]}{i}" for i in range(2)]
                calls = [{"id": probe, "type": "function", "function": function} for probe in ids]
                before.append({"role": "assistant", "content": "", "tool_calls": calls})
                probes = [probe | {"tool_call_id": id, "name": _PROBE} for probe, id in zip(probes, ids, strict=True)]
            after = [] if role in ("user", "tool") else [_USER]
            shape = self._call_shapes.get(bool(tools), CallShape())
            self._twice[key] = self._shows([shape.of(probe) for probe in (*before, *probes, *after)], tools, *marks)
        return self._twice[key]

    def _shows(self, messages: Messages, tools: Messages, *marks: str) -> bool:
        try:
            text = self._render(messages, tools)
        except Exception:  # templates raise many kinds of errors
            return False
        return all(mark in text for mark in marks)

    def _call_shape(self, tools: Messages) -> CallShape:
        function = {"name": _PROBE, "arguments": {_ARGUMENT: 1}}
        probe: Messages = [
            *([] if not tools or self._takes_tools else [_EMPTY_SYSTEM]),
            _USER,
            {"role": "assistant", "content": "", "tool_calls": [{"id": _ID, "type": "function", "function": function}]},
            {"role": "tool", "content": _RESULT, "tool_call_id": _ID, "name": _PROBE},
        ]
        shapes = [
            *(CallShape(text, empty, short) for short, empty, text in itertools.product((False, True), repeat=3)),
            CallShape(in_content=True),
            CallShape(in_content=True, as_user=True),
        ]
        for shape in shapes:
            if self._shows([shape.of(one) for one in probe], tools, _ARGUMENT, _RESULT):
                return shape
        return CallShape()  # the template's own error says why


def _with_instructions_of_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Moves the text of system messages before the user's first, for templates without a system role."""
    instructions = "\n\n".join(one["content"] for one in messages if one["role"] == "system" and one["content"])
    others = [one for one in messages if one["role"] != "system"]
    if not instructions:
        return others
    first = next((i for i, one in enumerate(others) if one["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": instructions}, *others]
    others[first] = {**others[first], "content": "\n\n".join(filter(None, (instructions, others[first]["content"])))}
    return others


def _join_roles(messages: list[dict[str, Any]], roles: set[str]) -> list[dict[str, Any]]:
    """Returns the messages. Adjacent ones of the same role are joined if `roles` has the role, as Anthropic's API joins
    them to one turn."""
    if not roles:
        return messages
    joined_messages: list[dict[str, Any]] = []
    for message in messages:
        last = joined_messages[-1] if joined_messages else None
        if last is None or last["role"] != message["role"] or message["role"] not in roles:
            joined_messages.append(dict(message))
            continue
        for name in ("content", "reasoning_content"):
            if texts := [one[name] for one in (last, message) if one.get(name)]:
                last[name] = "\n\n".join(texts)
        if calls := [*last.get("tool_calls", ()), *message.get("tool_calls", ())]:
            last["tool_calls"] = calls
    return joined_messages


def _short(identifier: str) -> str:
    return hashlib.sha256(identifier.encode()).hexdigest()[:9]
