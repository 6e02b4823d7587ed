"""POST /v1/responses: OpenAI's newer protocol, which Codex uses. Parses the body; `response_events` writes the
answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftd.errors import REQUIRED, InvalidRequest
from draftd.fronts.http import body as fields
from draftd.fronts.http.body import Body, CommonBody, Int, Items, MostTokens, Parts, as_json, parse_body, text_of
from draftd.fronts.http.chat import Function, check_allowed, template_arguments, tool, tool_choice
from draftd.fronts.http.choices import FORMAT, Format, response_format
from draftd.fronts.http.errors import Names, ResponseNotFound
from draftd.fronts.http.exchange import HttpExchange, ParsedBody, Scope
from draftd.fronts.http.response_events import CUSTOM_INPUT, ResponseReply, ToolKind
from draftd.fronts.http.store import ResponseStore, StoredAnswer
from draftd.fronts.http.structured_outputs import wanted_format
from draftd.service.messages import Chat, Message, Tool, ToolCall
from draftd.service.request import Request, ResponseFormat

_TEXT = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_THOUGHT = {"reasoning_text": "text", "summary_text": "text", "text": "text"}
_OWN = ("function", "custom", "namespace")  # tools that the client runs
# The parameters of a free-text tool, written as a function's.
_CUSTOM = {"type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT]}
_LOGPROBS = "message.output_text.logprobs"


class Item(Body):
    """An item of the input: a message, a call of a tool, a tool's result, or a thought."""

    type: str = "message"
    role: str | None = None
    content: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Parts | None = None
    summary: Parts | None = None


class ResponsesTool(Body):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: Items[ResponsesTool] | None = None  # of a namespace


class TextOptions(Body):
    format: Format | None = None


class Reasoning(Body):
    effort: str | None = None


class Input(Body):
    input: Items[Item]


class ResponseBody(CommonBody):
    input: Any = None
    instructions: str | None = None
    max_output_tokens: MostTokens | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: Items[ResponsesTool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    response_format: Format | None = None
    reasoning: Reasoning | None = None
    include: Items[str] | None = None
    top_logprobs: Int | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    metadata: dict[str, Any] | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None


def parse_request(call: HttpExchange, scope: Scope, store: ResponseStore) -> ParsedBody:
    """Raises InvalidRequest, which names the body's field."""
    body = parse_body(ResponseBody, call.body)
    model = scope.resolve_model(body.model)
    _check_unserved(body)
    talk = _conversation(body, store)
    offered: dict[str, ToolKind] = {}
    choice, allowed = tool_choice(body.tool_choice)
    tools = list(_tools(body.tools or (), "tools", offered))
    check_allowed(allowed, [one.name for one in tools])
    tools = [one for one in tools if allowed is None or one.name in allowed]
    head = [] if body.instructions is None else [Message("system", body.instructions)]
    effort = body.reasoning.effort if body.reasoning is not None else None
    wants_logprobs = _LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    wanted, called = wanted_format(body, *_format(body))
    continues = fields.continues(body.continue_final_message, body.add_generation_prompt)
    request = Request(
        prompt=Chat(
            (*head, *talk.messages),
            tools=tuple(tools),
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            template_arguments=template_arguments(body, effort),
            continues=continues,
        ),
        max_tokens=body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        response_format=wanted,
        **body.common_fields(call.client, call.identity),
    )
    places = [*("instructions" for _ in head), *talk.places]
    names = _names(body, called, places, [offered[one.name].place for one in tools])
    reply = ResponseReply(
        _describe(body, model),
        scope.service.token_bytes,
        offered,
        measured=bool(body.include_metrics),
        store=None if body.store is False else store,
        messages=tuple(talk.messages),  # without the instructions
        items=talk.items,
        continues=continues,
    )
    return ParsedBody((request,), reply, bool(body.stream), names)


def _check_unserved(body: ResponseBody) -> None:
    for name in ("background", "conversation", "prompt"):
        if getattr(body, name):
            raise InvalidRequest(name, getattr(body, name), "no value: draftd does not support this field")


def _names(body: ResponseBody, called: Mapping[str, str], messages: Sequence[str], tools: Sequence[str]) -> Names:
    """Returns the body's names for the service's fields. `called`: those for the fields of the response format.
    `messages`, `tools`: the body's path of each message and each tool."""
    own = {"chat": "input", "chat.messages": "input", "max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
    calls = [(r"^\.tool_calls(\[\d+\])?", "")]  # calls are items of their own
    return Names(body.field_names({**called, **own}), messages, tools, calls)


def list_items(stored: StoredAnswer, query: Mapping[str, str]) -> dict[str, Any]:
    """The items of an answer's input, as OpenAI lists them: at most `limit` items after the item `after`. The latest is
    first unless `order` is asc. Raises InvalidRequest."""
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", order, "asc, desc")
    if not (limit.isdecimal() and limit.isascii() and len(limit) < 4 and 1 <= int(limit) <= 100):
        raise InvalidRequest("limit", limit, "1 to 100")
    items = list(stored.items if order == "asc" else reversed(stored.items))
    if after is not None:
        names = [one["id"] for one in items]
        if after not in names:
            raise InvalidRequest("after", after, "the id of an input item of this response")
        items = items[names.index(after) + 1 :]
    shown = items[: int(limit)]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": len(items) > len(shown)}


def _describe(body: ResponseBody, model: str) -> dict[str, Any]:
    """The fields that an answer repeats from its request."""
    text = {"type": "text"}
    if body.text is not None and body.text.format is not None:
        text = body.text.format.model_dump(by_alias=True, exclude_none=True)
    return {
        "id": "",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": text},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [one.model_dump(exclude_none=True) for one in body.tools or ()],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


@dataclass(slots=True)
class _Conversation:
    """Messages and their places in the body."""

    messages: list[Message] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    thought: str = ""  # of the assistant's next message
    items: list[Mapping[str, Any]] = field(default_factory=list)  # as the body has them

    def add(self, message: Message, place: str) -> None:
        self.messages.append(message)
        self.places.append(place)

    def call(self, call: ToolCall, place: str) -> None:
        """Adds a call to the assistant's message directly before it, or to a new one."""
        if self.messages and self.messages[-1].role == "assistant" and not self.thought:
            last = self.messages[-1]
            self.messages[-1] = last._replace(tool_calls=(*last.tool_calls, call))
        else:
            self.add(Message("assistant", "", (call,), reasoning=self.thought), place)
            self.thought = ""

    def name_of(self, call_id: str) -> str:
        calls = (call for message in reversed(self.messages) for call in message.tool_calls)
        return next((call.name for call in calls if call.id == call_id), "")


def _conversation(body: ResponseBody, store: ResponseStore) -> _Conversation:
    talk = _Conversation()
    if body.previous_response_id is not None:
        stored = store.get(body.previous_response_id)
        if stored is None:
            allowed = "the id of an answer that is still stored (server.http_stored_bytes)"
            raise ResponseNotFound("previous_response_id", body.previous_response_id, allowed)
        talk.messages += stored.messages
        talk.places += ["previous_response_id"] * len(stored.messages)
    if isinstance(body.input, str):
        talk.add(Message("user", body.input), "input")
        text = {"type": "input_text", "text": body.input}
        talk.items.append({"type": "message", "role": "user", "content": [text]})
        return talk
    if not isinstance(body.input, list):
        raise InvalidRequest("input", body.input, "a text, or a list of items")
    # Parsed separately from a plain text: the errors of a union would name its members.
    talk.items = [_resolve_reference(item, f"input[{i}]", store) for i, item in enumerate(body.input)]
    for i, item in enumerate(fields.checked_part(Input, {"input": talk.items}).input):
        _add(item, f"input[{i}]", talk)
    return talk


def _resolve_reference(item: Any, place: str, store: ResponseStore) -> Any:
    """The item, or the stored item that it refers to. A reference may omit its type."""
    if not isinstance(item, dict) or (item.get("type") != "item_reference" and set(item) != {"id"}):
        return item
    name = item.get("id")
    stored = store.item(name) if isinstance(name, str) else None
    if stored is None:
        allowed = "the id of an item of an answer that is still stored (server.http_stored_bytes)"
        raise InvalidRequest(f"{place}.id", name, allowed)
    return stored


def _add(item: Item, place: str, talk: _Conversation) -> None:
    if item.type == "message":
        if item.role is None:
            raise InvalidRequest(f"{place}.role", None, "system, developer, user, assistant")
        thought = talk.thought if item.role == "assistant" else ""
        talk.add(Message(item.role, text_of(item.content, f"{place}.content", _TEXT), reasoning=thought), place)
        talk.thought = ""
    elif item.type == "reasoning":
        thoughts = text_of(item.content, f"{place}.content", _THOUGHT)
        talk.thought = thoughts or text_of(item.summary, f"{place}.summary", _THOUGHT)
    elif item.type in ("function_call", "custom_tool_call"):
        name = _require(item.name, f"{place}.name")
        if item.type == "function_call":
            arguments = item.arguments or "{}"
        else:
            arguments = as_json({CUSTOM_INPUT: item.input or ""}, f"{place}.input")
        talk.call(ToolCall(_require(item.call_id, f"{place}.call_id"), name, arguments), place)
    elif item.type in ("function_call_output", "custom_tool_call_output"):
        call_id = _require(item.call_id, f"{place}.call_id")
        content = text_of(item.output, f"{place}.output", _TEXT, of_tool=True)
        talk.add(Message("tool", content, tool_call_id=call_id, name=talk.name_of(call_id)), place)
    else:
        allowed = "message, reasoning, function_call, function_call_output, custom_tool_call, custom_tool_call_output"
        allowed += ", item_reference"
        raise InvalidRequest(f"{place}.type", item.type, allowed)


def _require(value: str | None, field: str) -> str:
    if not value:
        raise InvalidRequest(field, value, REQUIRED)
    return value


def _tools(
    offers: Sequence[ResponsesTool], place: str, offered: dict[str, ToolKind], space: str = ""
) -> Iterable[Tool]:
    for i, entry in enumerate(offers):
        field = f"{place}[{i}]"
        if entry.type not in _OWN:
            fields.leave_out(entry.type, field)
            continue
        name = _require(entry.name, f"{field}.name")
        if entry.type == "namespace":
            yield from _tools(entry.tools or (), f"{field}.tools", offered, name)
            continue
        if entry.type == "function":
            yield tool(Function(name=name, description=entry.description, parameters=entry.parameters), field)
        else:
            yield Tool(name, entry.description or "", as_json(_CUSTOM, field))
        offered[name] = ToolKind(custom=entry.type == "custom", namespace=space, place=field)


def _format(body: ResponseBody) -> tuple[ResponseFormat | None, str, str]:
    """The format, its field in the body, and its schema's field. Clients also send the chat protocol's
    `response_format`."""
    own = None if body.text is None else body.text.format
    if own is None:
        return response_format(body.response_format), *FORMAT
    if body.response_format is not None:
        raise InvalidRequest("response_format", body.response_format.type, "no value if text.format is set")
    try:
        return response_format(own, "text.format"), "text.format", "schema"
    except InvalidRequest as error:
        raise InvalidRequest(error.field.replace(".json_schema", ""), error.value, error.allowed) from None
