"""POST /v1/messages: Anthropic's chats. Parses the body; `message_events` writes the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from draftd.errors import REQUIRED, InvalidRequest
from draftd.fronts.http import body as fields
from draftd.fronts.http.body import Body, CommonBody, Items, MostTokens, Parts, Texts, as_json, parse_body, text_of
from draftd.fronts.http.chat import template_arguments
from draftd.fronts.http.errors import Names, ThreadNotServed
from draftd.fronts.http.exchange import HttpExchange, ParsedBody, Scope
from draftd.fronts.http.message_events import MessageReply
from draftd.fronts.http.structured_outputs import wanted_format
from draftd.service.messages import Chat, Message, Tool, ToolCall, ToolMode
from draftd.service.request import FormatKind, Request, ResponseFormat

_TEXT = {"text": "text"}
# Claude Code writes its version and a hash of the request in the first part of the system's text. No two requests would
# begin alike, and nothing of an earlier one could be reused.
_ATTRIBUTION = "x-anthropic-billing-header:"


class Block(Body):
    """A part of a message: a text, a thought, a call of a tool, or a tool's result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Parts | None = None


class MessageItem(Body):
    role: str
    content: Annotated[Items[Block], BeforeValidator(fields.text_parts)]


class MessagesTool(Body):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Body):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: str


class OutputFormat(Body):
    type: str
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class OutputConfig(Body):
    format: OutputFormat | None = None
    effort: str | None = None


class Metadata(Body):
    user_id: str | None = None


class MessageBody(CommonBody):
    messages: Items[MessageItem]
    system: Parts | None = None
    max_tokens: MostTokens | None = None
    stop_sequences: Texts | None = None
    tools: Items[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    metadata: Metadata | None = None
    container: Any = None
    mcp_servers: Any = None
    compaction: Any = None
    thread: Any = None


def parse_request(call: HttpExchange, scope: Scope) -> ParsedBody:
    """Raises InvalidRequest, which names the body's field."""
    body = parse_body(MessageBody, call.body)
    model = scope.resolve_model(body.model)
    request, names = _request(body, call.client, call.identity)
    reply = MessageReply(model, measured=bool(body.include_metrics))
    return ParsedBody((request,), reply, bool(body.stream), names)


def _request(body: MessageBody, client: str, identity: str) -> tuple[Request, Names]:
    _check_unserved(body)
    read: list[tuple[Message, str]] = []
    values = [part for part in body.system or () if not (part.text or "").startswith(_ATTRIBUTION)]
    if system := text_of(values, "system", _TEXT):
        read.append((Message("system", system), "system"))
    names: dict[str, str] = {}  # of tools, by the ids of their calls
    for i, item in enumerate(body.messages):
        read += _messages(item, f"messages[{i}]", names)
    continues = _continues(read)
    choice = body.tool_choice
    shared = body.common_fields(client, identity)
    if not shared["caller"] and body.metadata is not None and body.metadata.user_id is not None:
        shared["caller"] = fields.beginning(body.metadata.user_id)
    config = body.output_config or OutputConfig()
    name = "output_config.format" if config.format is not None else "output_format"
    own_format = _format(config.format or body.output_format, name)
    if own_format is not None and continues:
        raise InvalidRequest(name, "json_schema", "no value if the answer continues the last message")
    wanted, called = wanted_format(body, own_format, name, "schema")
    request = Request(
        prompt=Chat(
            tuple(message for message, _ in read),
            tools=tuple(_tools(body.tools or ())),
            tool_choice=ToolMode.AUTO if choice is None else _choice(choice),
            parallel_tool_calls=choice is None or choice.disable_parallel_tool_use is not True,
            template_arguments=_template_arguments(body, config.effort),
            continues=continues,
        ),
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()),
        response_format=wanted,
        **shared,
    )
    table = body.field_names({**called, "stop": "stop_sequences"})
    parts = [
        (r"^\.parameters$", ".input_schema"),
        (r"^\.tool_calls.*", ".content"),
        (r"^\.tool_call_id$", ".tool_use_id"),
    ]
    places = [f"tools[{i}]" for i, one in enumerate(body.tools or ()) if not _is_server_tool(one)]
    return request, Names(table, [place for _, place in read], places, parts)


def _check_unserved(body: MessageBody) -> None:
    for name in ("container", "mcp_servers"):
        if getattr(body, name):
            raise InvalidRequest(name, getattr(body, name), "no value: draftd runs no tools itself")
    if body.compaction:
        raise InvalidRequest("compaction", body.compaction, "no value: draftd does not support this field")
    if body.thread is not None:
        raise ThreadNotServed(body.thread)


def _messages(item: MessageItem, place: str, names: dict[str, str]) -> Iterable[tuple[Message, str]]:
    """Converts an item to messages: first one for each tool's result, then one for the rest."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(item.content):
        field = f"{place}.content[{i}]"
        if block.type == "text":
            texts.append(_require(block.text, f"{field}.text"))
        elif block.type == "thinking":
            thoughts.append(_require(block.thinking, f"{field}.thinking"))
        elif block.type == "tool_use":
            name, arguments = _require(block.name, f"{field}.name"), as_json(block.input or {}, f"{field}.input")
            calls.append(ToolCall(_require(block.id, f"{field}.id"), name, arguments))
            names[calls[-1].id] = name
        elif block.type == "tool_result":
            call_id = _require(block.tool_use_id, f"{field}.tool_use_id")
            content = text_of(block.content, f"{field}.content", _TEXT, of_tool=True)
            yield Message("tool", content, tool_call_id=call_id, name=names.get(call_id, "")), field
        elif block.type != "redacted_thinking":
            raise InvalidRequest(
                f"{field}.type", block.type, "text, thinking, tool_use, tool_result: only text is served"
            )
    if texts or calls or thoughts or not item.content:
        yield Message(item.role, "\n".join(texts), tuple(calls), reasoning="\n".join(thoughts)), place


def _continues(read: list[tuple[Message, str]]) -> bool:
    """Whether the answer continues the last message: true if that is the assistant's and not empty. Removes an empty
    message of the assistant from the end of `read`. Raises InvalidRequest as Anthropic's API does."""
    last, place = read[-1] if read else (Message("user", ""), "")
    if last.role != "assistant":
        return False
    if not (last.content or last.tool_calls or last.reasoning):
        read.pop()
        return False
    if last.content != last.content.rstrip():
        allowed = "a last text without white space at its end, for the answer continues it"
        raise InvalidRequest(f"{place}.content", last.content[-20:], allowed)
    return True


def _require(value: str | None, field: str) -> str:
    if value is None:
        raise InvalidRequest(field, None, REQUIRED)
    return value


def _tools(offered: Sequence[MessagesTool]) -> Iterable[Tool]:
    for i, entry in enumerate(offered):
        if _is_server_tool(entry):
            fields.leave_out(entry.type or "", f"tools[{i}]")
            continue
        schema = "" if entry.input_schema is None else as_json(entry.input_schema, f"tools[{i}].input_schema")
        yield Tool(entry.name, entry.description or "", schema)


def _is_server_tool(tool: MessagesTool) -> bool:
    """Whether Anthropic's server would define or run the tool. The model here does not see such tools."""
    return tool.type not in (None, "custom")


def _choice(choice: ToolChoice) -> ToolMode | str:
    modes = {"auto": ToolMode.AUTO, "any": ToolMode.REQUIRED, "none": ToolMode.NONE}
    if choice.type in modes:
        return modes[choice.type]
    if choice.type != "tool":
        raise InvalidRequest("tool_choice.type", choice.type, "auto, any, none, tool")
    return _require(choice.name or None, "tool_choice.name")


def _template_arguments(body: MessageBody, effort: str | None) -> Mapping[str, Any]:
    arguments = dict(template_arguments(body, effort))
    if body.thinking is not None:
        if body.thinking.type not in ("enabled", "adaptive", "disabled"):
            raise InvalidRequest("thinking.type", body.thinking.type, "enabled, adaptive, disabled")
        arguments.setdefault("enable_thinking", body.thinking.type != "disabled")
    return arguments


def _format(wanted: OutputFormat | None, field: str) -> ResponseFormat | None:
    if wanted is None:
        return None
    if wanted.type != "json_schema" or wanted.schema_ is None:
        raise InvalidRequest(f"{field}.type", wanted.type, "json_schema, with a field `schema`")
    return ResponseFormat(FormatKind.JSON_SCHEMA, as_json(wanted.schema_, f"{field}.schema"))
