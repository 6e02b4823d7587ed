"""POST /v1/chat/completions: OpenAI's chats."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from draftd.errors import DraftdError, InvalidRequest
from draftd.fronts.http import body as fields
from draftd.fronts.http.answer import (
    Collected,
    TokenBytes,
    deltas_of,
    metrics,
    prompt_logprobs,
    prompt_progress,
    succeeded,
    token_logprobs,
    usage,
)
from draftd.fronts.http.body import Body, Common, Int, Items, MostTokens, Parts, Texts, as_json, parsed, text_of
from draftd.fronts.http.errors import Names, openai_error
from draftd.fronts.http.exchange import Asked, Call, Scope
from draftd.fronts.http.stream import COMMENT, DONE, data
from draftd.service.request import (
    AnswerEvent,
    Chat,
    Chunk,
    Delta,
    Finished,
    FormatKind,
    Message,
    PromptProgress,
    ReasoningDelta,
    Request,
    ResponseFormat,
    Started,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolMode,
)

_TEXT = {"text": "text", "refusal": "refusal"}
FORMAT = ("response_format", "json_schema.schema")


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


class JsonSchema(Body):
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class Format(Body):
    type: str
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")  # llama.cpp's place for it


class StreamOptions(Body):
    include_usage: bool | None = None


class ChatBody(Common):
    messages: Items[ChatMessage]
    max_tokens: MostTokens | None = None
    max_completion_tokens: MostTokens | None = None
    n: Int | None = None
    stop: Texts | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    prompt_logprobs: Int | None = None
    tools: Items[ToolOfBody] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: Items[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
    echo: Any = None
    return_progress: bool | None = None


def asked(call: Call, scope: Scope) -> Asked:
    """Raises InvalidRequest, which names the body's field."""
    given = parsed(ChatBody, call.body)
    model = scope.served(given.model)
    _check_unserved(given)
    wanted, called = fields.wanted_format(given, response_format(given.response_format), *FORMAT)
    choice, allowed = tool_choice(given.tool_choice)
    offered = list(tools(given.tools or ()))
    check_allowed(allowed, [one.name for one, _ in offered])
    offered = [one for one in offered if allowed is None or one[0].name in allowed]
    request = Request(
        prompt=Chat(
            tuple(messages(given.messages)),
            tools=tuple(one for one, _ in offered),
            tool_choice=choice,
            parallel_tool_calls=given.parallel_tool_calls is not False,
            template_arguments=template_arguments(given, given.reasoning_effort),
            continues=fields.continues(given.continue_final_message, given.add_generation_prompt),
        ),
        max_tokens=given.max_tokens if given.max_completion_tokens is None else given.max_completion_tokens,
        stop=tuple(given.stop or ()),
        logprobs=(given.top_logprobs or 0) if given.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs(given.prompt_logprobs, given.stream),
        n=1 if given.n is None else given.n,
        response_format=wanted,
        return_progress=bool(given.stream and given.return_progress),
        **given.shared(call.client),
    )
    table = {
        **fields.FIELDS,
        **fields.caller_field(given),
        **called,
        "chat.messages": "messages",
        "chat.tools": "tools",
        "chat.tool_choice": "tool_choice",
        "chat.template_arguments": "chat_template_kwargs",
        "chat": "messages",
        "max_tokens": "max_tokens" if given.max_completion_tokens is None else "max_completion_tokens",
        "logprobs": "top_logprobs",
    }
    names = Names(
        table,
        [f"messages[{i}]" for i in range(len(given.messages))],
        [place for _, place in offered],
        [(r"^(\.tool_calls\[\d+\])(\.name|\.arguments)$", r"\1.function\2")],
    )
    made = ChatStream if given.stream else ChatWhole
    head = {"id": "", "created": int(time.time()), "model": model}
    counted = given.stream_options is not None and bool(given.stream_options.include_usage)
    reply = made(head, scope.token_bytes, counted=counted, measured=bool(given.include_metrics))
    progress = reply.progress if isinstance(reply, ChatStream) else None
    return Asked((request,), reply, bool(given.stream), names, progress)


def _check_unserved(given: ChatBody) -> None:
    for name in ("audio", "web_search_options", "functions", "function_call"):
        if getattr(given, name) is not None:
            instead = "; use tools and tool_choice" if name.startswith("function") else ""
            raise InvalidRequest(name, getattr(given, name), f"null: it is not served{instead}")
    if given.echo:
        raise InvalidRequest("echo", given.echo, "false: it is served in completions")
    if any(one != "text" for one in given.modalities or ()):
        raise InvalidRequest("modalities", given.modalities, "text: only text is served")
    if given.top_logprobs and not given.logprobs:
        raise InvalidRequest("top_logprobs", given.top_logprobs, "only with logprobs true")


def messages(given: Sequence[ChatMessage]) -> Iterable[Message]:
    for i, one in enumerate(given):
        field = f"messages[{i}]"
        content = text_of(one.content, f"{field}.content", _TEXT, of_tool=one.role == "tool")
        if not content and one.refusal:
            content = one.refusal
        yield Message(
            one.role,
            content,
            tool_calls=tuple(_calls(one.tool_calls or (), f"{field}.tool_calls")),
            tool_call_id=one.tool_call_id or "",
            name=one.name or "",
            reasoning=one.reasoning_content or one.reasoning or "",
        )


def _calls(given: Sequence[CallOfMessage], field: str) -> Iterable[ToolCall]:
    for i, one in enumerate(given):
        if one.type != "function" or one.function is None:
            raise InvalidRequest(f"{field}[{i}].type", one.type, "function, with its function")
        yield ToolCall(one.id, one.function.name, one.function.arguments or "{}")


def tools(given: Sequence[ToolOfBody]) -> Iterable[tuple[Tool, str]]:
    """Each with where the body has it."""
    for i, one in enumerate(given):
        if one.function is not None:
            yield tool(one.function, f"tools[{i}].function"), f"tools[{i}].function"
        elif one.type == "function":
            raise InvalidRequest(f"tools[{i}].function", None, "a function: it must be given")
        else:
            fields.leave_out(one.type, f"tools[{i}]")


def tool(given: Function, field: str) -> Tool:
    parameters = "" if given.parameters is None else as_json(given.parameters, f"{field}.parameters")
    return Tool(given.name, given.description or "", parameters)


_MODES = {"any": ToolMode.REQUIRED} | {str(mode): mode for mode in ToolMode}


def tool_choice(given: object) -> tuple[ToolMode | str, frozenset[str] | None]:
    """A mode, or the name of a function; and the names of those that are allowed, None where all are. Raises
    InvalidRequest."""
    if given is None:
        return ToolMode.AUTO, None
    kind = given.get("type") if isinstance(given, dict) else given
    if isinstance(kind, str) and kind in _MODES:
        return _MODES[kind], None
    if isinstance(given, dict) and kind == "allowed_tools":
        listed = given.get("allowed_tools", given)
        mode, members = (listed.get("mode"), listed.get("tools")) if isinstance(listed, dict) else (None, None)
        names = list(map(_name_of, members)) if isinstance(members, list) else []
        if isinstance(mode, str) and mode in _MODES and names and all(names):
            return _MODES[mode], frozenset(names)
    elif isinstance(given, dict) and kind in ("function", "custom") and (name := _name_of(given)):
        return name, None
    allowed = "none, auto, required, a function by its name, or allowed_tools with a mode and tools"
    raise InvalidRequest("tool_choice", given, allowed)


def check_allowed(allowed: frozenset[str] | None, names: Collection[str]) -> None:
    """Raises InvalidRequest for an allowed tool that is none of the tools by these names."""
    for name in sorted((allowed or frozenset()).difference(names)):
        raise InvalidRequest("tool_choice", name, ", ".join(sorted(names)) or "none or auto: there are no tools")


def _name_of(tool: object) -> str:
    """Finds a function's name, beside its type or within it; empty where there is none."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else ""


def response_format(given: Format | None, field: str = "response_format") -> ResponseFormat | None:
    """Raises InvalidRequest."""
    if given is None or given.type == "text":
        return None
    if given.type not in ("json_object", "json_schema"):
        raise InvalidRequest(f"{field}.type", given.type, "text, json_object, json_schema")
    if given.json_schema is None and given.schema_ is not None:
        return ResponseFormat(FormatKind.JSON_SCHEMA, as_json(given.schema_, f"{field}.schema"))
    if given.type == "json_object":
        return ResponseFormat(FormatKind.JSON_OBJECT)
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise InvalidRequest(f"{field}.json_schema.schema", None, "a JSON schema")
    return ResponseFormat(FormatKind.JSON_SCHEMA, as_json(given.json_schema.schema_, f"{field}.json_schema.schema"))


def template_arguments(given: Common, effort: str | None) -> Mapping[str, Any]:
    found = dict(given.chat_template_kwargs or {})
    as_json(found, "chat_template_kwargs")  # raises where it is none
    if effort is not None:
        found.setdefault("reasoning_effort", effort)
    return found


class ChatWhole:
    """The answer in one piece."""

    last = keep_alive = b""

    def __init__(self, head: Mapping[str, Any], token_bytes: TokenBytes, *, counted: bool, measured: bool) -> None:
        self._head, self._token_bytes, self._measured = dict(head), token_bytes, measured
        self._choices: dict[int, Collected] = {}
        self._prompt: dict[str, Any] = {}

    def take(self, told: AnswerEvent, prompt: int) -> bytes:
        if isinstance(told, Started):
            self._head["id"] = f"chatcmpl-{told.request_id}"
            return b""
        choice = self._choices.setdefault(told.choice, Collected())
        if isinstance(told, Chunk) and told.prompt:
            self._prompt = {"prompt_logprobs": prompt_logprobs(told, self._token_bytes)}
        elif isinstance(told, Finished):
            choice.finished = told
        else:
            for delta in deltas_of(told):
                choice.add(delta)
            choice.logprobs += token_logprobs(told.emission, self._token_bytes)
        return b""

    def whole(self) -> Mapping[str, Any]:
        finished = [one.end for one in self._choices.values()]
        choices = [_choice(i, one) for i, one in sorted(self._choices.items())]
        made = {**self._head, "object": "chat.completion", "choices": choices, "usage": usage(finished), **self._prompt}
        return {**made, "metrics": metrics(finished)} if self._measured else made

    def failed(self, error: DraftdError) -> bytes:
        raise AssertionError("an answer in one piece has no events") from error


def _choice(index: int, found: Collected) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": found.text, "refusal": None}
    if found.thoughts:
        message |= _reasoning(found.reasoning)
    if found.calls:
        message["content"] = found.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in found.calls
        ]
    logprobs = {"content": found.logprobs, "refusal": None} if found.logprobs else None
    return {"index": index, "message": message, "logprobs": logprobs, **finish(found.end)}


def _reasoning(text: str) -> dict[str, Any]:
    """Under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text}


def finish(told: Finished) -> dict[str, Any]:
    """`stop_reason`, vLLM's, says which string or token of the request's ended it."""
    reason = told.outcome.reason.value
    return {
        "finish_reason": "tool_calls" if told.tool_calls and reason == "stop" else reason,
        "stop_reason": told.stop or told.stop_token_id,
    }


class ChatStream:
    """The answer in pieces."""

    keep_alive = COMMENT

    def __init__(self, head: Mapping[str, Any], token_bytes: TokenBytes, *, counted: bool, measured: bool) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._token_bytes, self._counted, self._measured = token_bytes, counted, measured
        self._begun: set[int] = set()
        self._calls: dict[int, int] = {}  # of each choice: the call that was begun last
        self._finished: list[Finished] = []

    @property
    def last(self) -> bytes:
        more: dict[str, Any] = {"usage": usage(self._finished)} if self._counted else {}
        if self._measured:
            more["metrics"] = metrics(self._finished)
        return (data({**self._head, "choices": [], **more}) if more else b"") + DONE

    def take(self, told: AnswerEvent, prompt: int) -> bytes:
        if isinstance(told, Started):
            self._head["id"] = f"chatcmpl-{told.request_id}"
            return self._said(0, {})
        if isinstance(told, Finished):
            return self._ended(told)
        return self._chunk(told)

    def whole(self) -> Mapping[str, Any]:
        raise AssertionError("it was told in pieces")

    def failed(self, error: DraftdError) -> bytes:
        return data(openai_error(error))

    def progress(self, told: PromptProgress) -> bytes:
        """What the stream says of the prompt before the answer begins."""
        return data({**self._head, "choices": [], **prompt_progress(told)})

    def _chunk(self, told: Chunk) -> bytes:
        deltas = [found for delta in deltas_of(told) if (found := self._delta(told.choice, delta))]
        if not told.emission.logprobs:
            return b"".join(self._said(told.choice, delta) for delta in deltas)
        logprobs = {"content": list(token_logprobs(told.emission, self._token_bytes)), "refusal": None}
        first, *rest = deltas or [{"content": ""}]
        return b"".join([self._said(told.choice, first, logprobs), *(self._said(told.choice, one) for one in rest)])

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
        one = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._event([one])

    def _ended(self, told: Finished) -> bytes:
        if not succeeded(told):
            return b""
        self._finished.append(told)
        begun = b"" if told.choice in self._begun else self._said(told.choice, {})
        return begun + self._event([{"index": told.choice, "delta": {}, "logprobs": None, **finish(told)}])

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        made = {**self._head, "choices": choices}
        return data({**made, "usage": None} if self._counted else made)
