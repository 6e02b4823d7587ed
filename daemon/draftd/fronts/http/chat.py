"""POST /v1/chat/completions: OpenAI's chats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from draftd.errors import REQUIRED, InvalidRequest
from draftd.fronts.http import body as fields
from draftd.fronts.http.answer import (
    CollectedChoice,
    TokenBytes,
    deltas_of,
    is_success,
    prompt_logprobs,
    token_logprobs,
)
from draftd.fronts.http.body import Body, CommonBody, Int, Items, MostTokens, Parts, as_json, parse_body, text_of
from draftd.fronts.http.choices import FORMAT, ChoicesBody, ChoicesReply, finish, response_format
from draftd.fronts.http.errors import Names
from draftd.fronts.http.exchange import HttpExchange, ParsedBody, Scope
from draftd.fronts.http.structured_outputs import wanted_format
from draftd.service.messages import Chat, Message, Tool, ToolCall, ToolMode
from draftd.service.request import (
    AnswerEvent,
    ChoiceFinished,
    Chunk,
    Delta,
    ReasoningDelta,
    Request,
    RequestStarted,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
)

_TEXT = {"text": "text", "refusal": "refusal"}


class FunctionCall(Body):
    name: str
    arguments: str = "{}"


class CallOfMessage(Body):
    id: str = ""
    type: str = "function"
    function: FunctionCall | None = None


class ChatMessage(Body):
    role: str
    content: Parts | None = None
    name: str | None = None
    tool_calls: Items[CallOfMessage] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class Function(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolOfBody(Body):
    type: str
    function: Function | None = None


class ChatBody(ChoicesBody):
    messages: Items[ChatMessage]
    max_completion_tokens: MostTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: Items[ToolOfBody] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: Items[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
    echo: Any = None


def parse_request(call: HttpExchange, scope: Scope) -> ParsedBody:
    """Raises InvalidRequest, which names the body's field."""
    body = parse_body(ChatBody, call.body)
    model = scope.resolve_model(body.model)
    _check_unserved(body)
    wanted, called = wanted_format(body, response_format(body.response_format), *FORMAT)
    choice, allowed = tool_choice(body.tool_choice)
    offered = list(tools(body.tools or ()))
    check_allowed(allowed, [one.name for one, _ in offered])
    offered = [one for one in offered if allowed is None or one[0].name in allowed]
    request = Request(
        prompt=Chat(
            tuple(messages(body.messages)),
            tools=tuple(one for one, _ in offered),
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            template_arguments=template_arguments(body, body.reasoning_effort),
            continues=fields.continues(body.continue_final_message, body.add_generation_prompt),
        ),
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        response_format=wanted,
        **body.common_fields(call.client, call.identity),
    )
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    names = Names(
        body.field_names({**called, "max_tokens": limit, "logprobs": "top_logprobs"}),
        [f"messages[{i}]" for i in range(len(body.messages))],
        [place for _, place in offered],
        [(r"^(\.tool_calls\[\d+\])(\.name|\.arguments)$", r"\1.function\2")],
    )
    reply = ChatReply(model, scope.service.token_bytes, body)
    return ParsedBody((request,), reply, bool(body.stream), names, reply.progress)


def _check_unserved(body: ChatBody) -> None:
    for name in ("audio", "web_search_options", "functions", "function_call"):
        if getattr(body, name) is not None:
            instead = "; use tools and tool_choice" if name.startswith("function") else ""
            raise InvalidRequest(name, getattr(body, name), f"no value: draftd does not support this field{instead}")
    if body.echo:
        raise InvalidRequest("echo", body.echo, "false: only /v1/completions supports it")
    if any(modality != "text" for modality in body.modalities or ()):
        raise InvalidRequest("modalities", body.modalities, "text: only text is served")
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", body.top_logprobs, "only with logprobs true")


def messages(chat_messages: Sequence[ChatMessage]) -> Iterable[Message]:
    for i, message in enumerate(chat_messages):
        field = f"messages[{i}]"
        content = text_of(message.content, f"{field}.content", _TEXT, of_tool=message.role == "tool")
        if not content and message.refusal:
            content = message.refusal
        yield Message(
            message.role,
            content,
            tool_calls=tuple(_calls(message.tool_calls or (), f"{field}.tool_calls")),
            tool_call_id=message.tool_call_id or "",
            name=message.name or "",
            reasoning=message.reasoning_content or message.reasoning or "",
        )


def _calls(calls: Sequence[CallOfMessage], field: str) -> Iterable[ToolCall]:
    for i, call in enumerate(calls):
        if call.type != "function" or call.function is None:
            raise InvalidRequest(f"{field}[{i}].type", call.type, "function, with a field `function`")
        yield ToolCall(call.id, call.function.name, call.function.arguments or "{}")


def tools(offered: Sequence[ToolOfBody]) -> Iterable[tuple[Tool, str]]:
    """The offered tools, each with its place in the body. Raises InvalidRequest."""
    for i, entry in enumerate(offered):
        if entry.function is not None:
            yield tool(entry.function, f"tools[{i}].function"), f"tools[{i}].function"
        elif entry.type == "function":
            raise InvalidRequest(f"tools[{i}].function", None, REQUIRED)
        else:
            fields.leave_out(entry.type, f"tools[{i}]")


def tool(function: Function, field: str) -> Tool:
    parameters = "" if function.parameters is None else as_json(function.parameters, f"{field}.parameters")
    return Tool(function.name, function.description or "", parameters)


_MODES = {"any": ToolMode.REQUIRED} | {str(mode): mode for mode in ToolMode}


def tool_choice(choice: object) -> tuple[ToolMode | str, frozenset[str] | None]:
    """The mode or the chosen function's name, and the names of the allowed tools, None if all are allowed. Raises
    InvalidRequest."""
    if choice is None:
        return ToolMode.AUTO, None
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if isinstance(kind, str) and kind in _MODES:
        return _MODES[kind], None
    if isinstance(choice, dict) and kind == "allowed_tools":
        listed = choice.get("allowed_tools", choice)
        mode, members = (listed.get("mode"), listed.get("tools")) if isinstance(listed, dict) else (None, None)
        names = list(map(_name_of, members)) if isinstance(members, list) else []
        if isinstance(mode, str) and mode in _MODES and names and all(names):
            return _MODES[mode], frozenset(names)
    elif isinstance(choice, dict) and kind in ("function", "custom") and (name := _name_of(choice)):
        return name, None
    allowed = "none, auto, required, a function by its name, or allowed_tools with a mode and tools"
    raise InvalidRequest("tool_choice", choice, allowed)


def check_allowed(allowed: frozenset[str] | None, names: Collection[str]) -> None:
    """Raises InvalidRequest for an allowed tool that is not among `names`."""
    for name in sorted((allowed or frozenset()).difference(names)):
        raise InvalidRequest("tool_choice", name, ", ".join(sorted(names)) or "none or auto: there are no tools")


def _name_of(tool: object) -> str:
    """A function's name, from the tool or from its `function`; empty if there is none."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else ""


def template_arguments(body: CommonBody, effort: str | None) -> Mapping[str, Any]:
    arguments = dict(body.chat_template_kwargs or {})
    as_json(arguments, "chat_template_kwargs")  # raises for a value that JSON cannot express
    if effort is not None:
        arguments.setdefault("reasoning_effort", effort)
    return arguments


def _reasoning(text: str) -> dict[str, Any]:
    """The reasoning under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text}


class ChatReply(ChoicesReply):
    """The answer to a chat."""

    def __init__(self, model: str, token_bytes: TokenBytes, body: ChatBody) -> None:
        super().__init__(model, token_bytes, body)
        self._head["object"] = "chat.completion.chunk" if self._stream else "chat.completion"
        self._begun: set[int] = set()
        self._calls: dict[int, int] = {}  # by choice: the index of the latest call

    def take(self, event: AnswerEvent, prompt: int) -> bytes:
        if isinstance(event, RequestStarted):
            self._head["id"] = f"chatcmpl-{event.request_id}"
            return self._said(0, {}) if self._stream else b""
        choice = self._choices.setdefault(event.choice, CollectedChoice())
        if isinstance(event, ChoiceFinished):
            choice.finished = event
            return self._end_choice(event) if self._stream and is_success(event) else b""
        if self._stream:
            return self._chunk(event)
        if event.prompt:
            choice.prompt = {"prompt_logprobs": prompt_logprobs(event, self._token_bytes)}
        for delta in deltas_of(event):
            choice.add(delta)
        choice.logprobs += token_logprobs(event.emission, self._token_bytes)
        return b""

    def whole(self) -> Mapping[str, Any]:
        return {**super().whole(), **self._choices[0].prompt}

    def _choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.thoughts:
            message |= _reasoning(choice.reasoning)
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.calls
            ]
        logprobs = {"content": choice.logprobs, "refusal": None} if choice.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, **finish(choice.end)}

    def _chunk(self, chunk: Chunk) -> bytes:
        deltas = [piece for delta in deltas_of(chunk) if (piece := self._delta(chunk.choice, delta))]
        if not chunk.emission.logprobs:
            return b"".join(self._said(chunk.choice, delta) for delta in deltas)
        logprobs = {"content": list(token_logprobs(chunk.emission, self._token_bytes)), "refusal": None}
        first, *rest = deltas or [{"content": ""}]
        return b"".join(
            [self._said(chunk.choice, first, logprobs), *(self._said(chunk.choice, other) for other in rest)]
        )

    def _delta(self, choice: int, delta: Delta) -> dict[str, Any] | None:
        if isinstance(delta, TextDelta):
            return {"content": delta.text}
        if isinstance(delta, ReasoningDelta):
            return _reasoning(delta.text)
        if isinstance(delta, ToolCallBegun):
            self._calls[choice] = delta.index
            function = {"name": delta.name, "arguments": ""}
            return {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]}
        if isinstance(delta, ToolCallArguments):
            return {"tool_calls": [{"index": self._calls[choice], "function": {"arguments": delta.text}}]}
        return None

    def _said(self, choice: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> bytes:
        if choice not in self._begun:
            self._begun.add(choice)
            delta = {"role": "assistant", "content": "", **delta}
        return self._piece({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None})

    def _end_choice(self, event: ChoiceFinished) -> bytes:
        begun = b"" if event.choice in self._begun else self._said(event.choice, {})
        return begun + self._piece({"index": event.choice, "delta": {}, "logprobs": None, **finish(event)})
