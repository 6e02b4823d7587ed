"""The messages and tools of a chat: their checks, and their forms for the chat template, mlx-lm's parsers and
telemetry."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from draftd.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOOLS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_NAMES = "1 to 256 letters, digits, underscores, dashes and dots"
_DEEPEST = 64  # levels of JSON
# Names that the daemon gives to the template itself, or that control the rendering.
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "chat_template", "conversation", "conversations"}
    | {"continue_final_message", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize"}
    | {"tokenizer_kwargs", "padding", "truncation", "max_length", "add_special_tokens", "return_generation_indices"}
)


class ToolCall(NamedTuple):
    """A call that a model made. `arguments`: a JSON object; any text if the call was cut short or malformed."""

    id: str
    name: str
    arguments: str


class Message(NamedTuple):
    """One message of a chat. `tool_calls` and `reasoning` belong to an assistant's message. `tool_call_id` belongs to a
    tool's message: the call whose result it is. `name`: the tool, or one of several speakers."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""


class Tool(NamedTuple):
    """A function that the model may call. `parameters`: a JSON schema, as JSON; empty without parameters."""

    name: str
    description: str = ""
    parameters: str = ""


class ToolMode(enum.StrEnum):
    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages for the model's chat template. `tool_choice`: a mode, or the name of the tool that must be called.
    `template_arguments`: further JSON values for the template. `continues`: the answer continues the text of the last
    message, which is the assistant's."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolMode | str = ToolMode.AUTO
    parallel_tool_calls: bool = True
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False

    @property
    def text(self) -> str:
        """All text that is passed to the chat template: contents, arguments of calls, and tools. For estimates of the
        prompt's size."""
        calls = (call.arguments for message in self.messages for call in message.tool_calls)
        tools = (tool.description + tool.parameters for tool in self.shown_tools)
        return "".join((*(message.content for message in self.messages), *calls, *tools))

    @property
    def shown_tools(self) -> tuple[Tool, ...]:
        """The tools that the model sees."""
        return () if self.tool_choice is ToolMode.NONE else self.tools

    @property
    def demands_call(self) -> bool:
        """Whether the answer must contain a call: of any tool, or of the one that `tool_choice` names."""
        return self.tool_choice is ToolMode.REQUIRED or not isinstance(self.tool_choice, ToolMode)


def json_object(text: str, field: str) -> dict[str, Any]:
    """Parses a JSON object. Raises InvalidRequest if the text is not one, nests too deeply, or contains an
    unpaired surrogate."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
        if isinstance(value, dict) and _is_shallow(value):
            return value
    except (ValueError, RecursionError):
        pass
    raise InvalidRequest(field, text, f"a JSON object, at most {_DEEPEST} levels deep")


def check_chat(chat: Chat) -> None:
    """Raises InvalidRequest for the first field that is wrong."""
    if not chat.messages:
        raise InvalidRequest("chat.messages", "no messages", "at least one message")
    call_ids: set[str] = set()
    for i, message in enumerate(chat.messages):
        _check_message(message, f"chat.messages[{i}]", call_ids)
        call_ids |= {call.id for call in message.tool_calls}
    if not any(message.content or message.tool_calls for message in chat.messages):
        raise InvalidRequest("chat.messages", "only empty contents", "at least one message with content")
    if chat.continues:
        _check_continued(chat.messages[-1], f"chat.messages[{len(chat.messages) - 1}]")
    _check_tools(chat)
    for name in chat.template_arguments:
        if name in _RESERVED or not name.isidentifier():
            raise InvalidRequest("chat.template_arguments", name, "names that the daemon does not set itself")


def _check_message(message: Message, field: str, call_ids: set[str]) -> None:
    """`call_ids`: the ids of earlier calls."""
    role = message.role
    if role not in ROLES:
        raise InvalidRequest(f"{field}.role", role, ", ".join(ROLES))
    for name, value in (("tool_calls", message.tool_calls), ("reasoning", message.reasoning)):
        if value and role != "assistant":
            raise InvalidRequest(
                f"{field}.{name}", f"{name} in a message of the role {role}", "only in a message of the role assistant"
            )
    for i, call in enumerate(message.tool_calls):
        at = f"{field}.tool_calls[{i}]"
        if not call.id:
            raise InvalidRequest(f"{at}.id", "", "an id, for the tool's message to refer to")
        if not _NAME.fullmatch(call.name):
            raise InvalidRequest(f"{at}.name", call.name, _NAMES)
    if role == "tool" and message.tool_call_id not in call_ids:
        raise InvalidRequest(f"{field}.tool_call_id", message.tool_call_id, "the id of an earlier tool call")
    if role != "tool" and message.tool_call_id:
        raise InvalidRequest(f"{field}.tool_call_id", message.tool_call_id, "only in a message of the role tool")


def _check_continued(message: Message, field: str) -> None:
    if message.role != "assistant":
        raise InvalidRequest(f"{field}.role", message.role, "assistant, for a last message that the answer continues")
    if calls := len(message.tool_calls):
        allowed = "none in a last message that the answer continues: only text can be continued"
        raise InvalidRequest(f"{field}.tool_calls", f"{calls} tool calls", allowed)


def _check_tools(chat: Chat) -> None:
    if len(chat.tools) > MAX_TOOLS:
        raise InvalidRequest("chat.tools", f"{len(chat.tools)} tools", f"at most {MAX_TOOLS}")
    names: set[str] = set()
    for i, tool in enumerate(chat.tools):
        if not _NAME.fullmatch(tool.name):
            raise InvalidRequest(f"chat.tools[{i}].name", tool.name, _NAMES)
        if tool.name in names:
            raise InvalidRequest(f"chat.tools[{i}].name", tool.name, "a name that no other tool has")
        names.add(tool.name)
        schema = json_object(tool.parameters, f"chat.tools[{i}].parameters") if tool.parameters else {}
        if schema.get("type", "object") != "object":
            raise InvalidRequest(f"chat.tools[{i}].parameters", tool.parameters, "a schema of type object")
    choice = chat.tool_choice
    if choice is ToolMode.REQUIRED and not names:
        raise InvalidRequest("chat.tool_choice", choice.value, "none or auto: there are no tools")
    if not isinstance(choice, ToolMode) and choice not in names:
        allowed = ", ".join(sorted(names)) or "none or auto: there are no tools"
        raise InvalidRequest("chat.tool_choice", choice, allowed)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _is_shallow(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        inner = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
        level = [part for part in inner if isinstance(part, dict | list)]
        if not level:
            return True
    return False


# for the template and the parsers


def message_dict(message: Message) -> dict[str, Any]:
    """Returns the message in the form of OpenAI's API, without empty fields. Arguments are objects, as templates
    expect."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        fields["name"] = message.name
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return fields


def _arguments(text: str) -> dict[str, Any]:
    """Returns a call's arguments as an object, which templates expect. Any other text becomes the object's only
    value."""
    try:
        return json_object(text, "")
    except InvalidRequest:
        return {"arguments": text}


def tool_dicts(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Returns the tools in the form of OpenAI's API."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters or '{"type": "object", "properties": {}}'),
            },
        }
        for tool in tools
    ]


# for telemetry


def message_parts(message: Message) -> tuple[str, tuple[dict[str, str], ...]]:
    """Returns the message's role and parts, in the form of the GenAI conventions."""
    parts = [{"type": "reasoning", "content": message.reasoning}] if message.reasoning else []
    if message.tool_call_id:
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
    elif message.content or not message.tool_calls:
        parts.append(text_part(message.content))
    return message.role, (*parts, *map(call_part, message.tool_calls))


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


def call_part(call: ToolCall) -> dict[str, str]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
