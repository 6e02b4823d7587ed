"""Writes the answers of /v1/responses: an item for each part of the answer, and the stream's events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from draftd.errors import DraftdError
from draftd.fronts.http.answer import TokenBytes, deltas_of, is_success, metrics, token_logprobs, usage
from draftd.fronts.http.errors import code_of
from draftd.fronts.http.store import ResponseStore, StoredAnswer
from draftd.fronts.http.stream import COMMENT, event
from draftd.models.answer_format import is_object
from draftd.service.messages import Message, ToolCall
from draftd.service.request import (
    AnswerEvent,
    ChoiceFinished,
    Chunk,
    Delta,
    ReasoningDelta,
    RequestStarted,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)

CUSTOM_INPUT = "input"  # the one argument of a tool that takes free text

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}  # the type of part, by the type of its item
_Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolKind:
    """How a tool was offered and how its calls are written. A `custom` tool takes free text. `place` is its place in
    the body."""

    custom: bool = False
    namespace: str = ""
    place: str = ""


@dataclass(slots=True)
class _Open:
    """The open item."""

    item: dict[str, Any]
    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        return {"item_id": self.item["id"], "output_index": self.index}


class ResponseReply:
    """The answer, as a stream or in one piece. `described`: fields that the answer repeats from its request. If there
    is a `store`, the input's `messages` and `items` are stored with the answer. If it `continues` the last message, the
    two are stored as one."""

    last, keep_alive = b"", COMMENT

    def __init__(
        self,
        described: dict[str, Any],
        token_bytes: TokenBytes,
        offered: Mapping[str, ToolKind],
        *,
        measured: bool,
        store: ResponseStore | None,
        messages: tuple[Message, ...],
        items: Sequence[Mapping[str, Any]],
        continues: bool = False,
    ) -> None:
        self._response, self._token_bytes, self._offered = described, token_bytes, offered
        self._measured, self._store, self._messages, self._items = measured, store, messages, items
        self._continues = continues
        self._open: _Open | None = None
        self._number = 0
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not been sent yet

    def take(self, event: AnswerEvent, prompt: int) -> bytes:
        if isinstance(event, Chunk):
            return self._said(self._chunk(event))
        return self._said(self._begin_answer(event) if isinstance(event, RequestStarted) else self._end_answer(event))

    def whole(self) -> Mapping[str, Any]:
        return self._response

    def failure_event(self, error: DraftdError) -> bytes:
        self._response["status"] = "failed"
        self._response["error"] = {"code": code_of(error) or "server_error", "message": error.message}
        return self._said([("response.failed", {"response": self._response})])

    def _said(self, events: Iterator[_Event] | list[_Event]) -> bytes:
        said = []
        for name, what in events:
            said.append(event(name, {"type": name, "sequence_number": self._number, **what}))
            self._number += 1
        return b"".join(said)

    def _begin_answer(self, start: RequestStarted) -> Iterator[_Event]:
        self._response["id"] = f"resp_{start.request_id}"
        yield "response.created", {"response": self._response}
        yield "response.in_progress", {"response": self._response}

    def _chunk(self, chunk: Chunk) -> Iterator[_Event]:
        self._logprobs += token_logprobs(chunk.emission, self._token_bytes)
        for delta in deltas_of(chunk):
            yield from self._delta(delta)

    def _delta(self, delta: Delta) -> Iterator[_Event]:
        if isinstance(delta, TextDelta | ReasoningDelta):
            kind = "message" if isinstance(delta, TextDelta) else "reasoning"
            if self._open is None or self._open.item["type"] != kind:
                yield from self._close()
                yield from self._begin_text(kind)
            yield from self._text(delta.text)
        elif isinstance(delta, ToolCallBegun):
            yield from self._close()
            yield from self._begin_call(delta)
        elif isinstance(delta, ToolCallArguments):
            assert self._open is not None
            self._open.texts.append(delta.text)
            if self._open.item["type"] == "function_call":
                yield "response.function_call_arguments.delta", {**self._open.place, "delta": delta.text}
        elif isinstance(delta, ToolCallEnded):
            yield from self._end_call(delta.call)

    def _begin(self, kind: str, prefix: str, **more: Any) -> Iterator[_Event]:
        index = len(self._response["output"])
        name = f"{prefix}_{self._response['id'].removeprefix('resp_')}{index}"
        item = {"id": name, "type": kind, "status": "in_progress", **more}
        self._open = _Open(item, index)
        yield "response.output_item.added", {"output_index": index, "item": item}

    def _begin_text(self, kind: str) -> Iterator[_Event]:
        if kind == "message":
            yield from self._begin(kind, "msg", role="assistant", content=[])
        else:
            yield from self._begin(kind, "rs", summary=[], content=[])
        assert self._open is not None
        yield "response.content_part.added", {**self._open.place, "content_index": 0, "part": _part(kind, "", [])}

    def _begin_call(self, delta: ToolCallBegun) -> Iterator[_Event]:
        kind = self._offered.get(delta.name, ToolKind())
        more = {"namespace": kind.namespace} if kind.namespace else {}
        if kind.custom:
            return self._begin("custom_tool_call", "ctc", call_id=delta.id, name=delta.name, input="", **more)
        return self._begin("function_call", "fc", call_id=delta.id, name=delta.name, arguments="", **more)

    def _text(self, text: str) -> Iterator[_Event]:
        opened = self._open
        assert opened is not None
        opened.texts.append(text)
        fields: dict[str, Any] = {**opened.place, "content_index": 0, "delta": text}
        if opened.item["type"] == "message":
            fields["logprobs"], self._logprobs = self._logprobs, []
            opened.logprobs += fields["logprobs"]
        yield f"response.{_PARTS[opened.item['type']]}.delta", fields

    def _end_call(self, call: ToolCall) -> Iterator[_Event]:
        opened = self._open
        assert opened is not None
        status = "completed" if is_object(call.arguments) else "incomplete"
        if opened.item["type"] == "function_call":
            done = {**opened.place, "name": call.name, "arguments": call.arguments}
            yield "response.function_call_arguments.done", done
            yield from self._done({"arguments": call.arguments}, status)
        else:
            text = _free_text(call.arguments)
            yield "response.custom_tool_call_input.delta", {**opened.place, "delta": text}
            yield "response.custom_tool_call_input.done", {**opened.place, "input": text}
            yield from self._done({"input": text}, status)

    def _close(self, status: str = "completed") -> Iterator[_Event]:
        """Ends the open item, if any."""
        opened = self._open
        if opened is None:
            return
        kind, text = opened.item["type"], "".join(opened.texts)
        if kind in _PARTS:
            place, part = {**opened.place, "content_index": 0}, _part(kind, text, opened.logprobs)
            logprobs = {"logprobs": opened.logprobs} if kind == "message" else {}
            yield f"response.{_PARTS[kind]}.done", {**place, "text": text, **logprobs}
            yield "response.content_part.done", {**place, "part": part}
            yield from self._done({"content": [part]}, status)
        else:  # a call that was cut short
            yield from self._done({"arguments" if kind == "function_call" else "input": text}, "incomplete")

    def _done(self, more: Mapping[str, Any], status: str = "completed") -> Iterator[_Event]:
        opened, self._open = self._open, None
        assert opened is not None
        item = {**opened.item, **more, "status": status}
        self._response["output"].append(item)
        yield "response.output_item.done", {"output_index": opened.index, "item": item}

    def _end_answer(self, end: ChoiceFinished) -> Iterator[_Event]:
        if not is_success(end):
            yield from self._close("incomplete")
            return
        whole = end.outcome.reason.value == "stop"
        yield from self._close("completed" if whole else "incomplete")
        self._response["status"] = "completed" if whole else "incomplete"
        if not whole:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._response["usage"] = _usage(end)
        if self._measured:
            self._response["metrics"] = metrics([end])
        self._keep()
        yield f"response.{self._response['status']}", {"response": self._response}

    def _keep(self) -> None:
        if self._store is None:
            return
        before, answer = self._messages, message_of_output(self._response["output"])
        if self._continues:
            before, begun = before[:-1], before[-1]
            whole = begun.content + answer.content
            answer = answer._replace(content=whole, reasoning=begun.reasoning + answer.reasoning)
        messages = (*before, answer)
        name = self._response["id"].removeprefix("resp_")
        items = tuple({"id": f"item_{name}{i}", **item} for i, item in enumerate(self._items))
        size = len(to_json(self._response)) + len(to_json(items)) + sum(map(_size, messages))
        self._store.put(self._response["id"], StoredAnswer(self._response, messages, size, items))


def _part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The only part of a text item."""
    part: dict[str, Any] = {"type": _PARTS[kind], "text": text}
    return {**part, "annotations": [], "logprobs": logprobs} if kind == "message" else part


def message_of_output(output: list[dict[str, Any]]) -> Message:
    """Converts the answer's items to the assistant's message of a conversation."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for item in output:
        if item["type"] in ("message", "reasoning"):
            (texts if item["type"] == "message" else thoughts).extend(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
        else:
            calls.append(ToolCall(item["call_id"], item["name"], json.dumps({CUSTOM_INPUT: item["input"]})))
    return Message("assistant", "".join(texts), tuple(calls), reasoning="".join(thoughts))


def _size(message: Message) -> int:
    calls = sum(len(call.arguments) + len(call.name) + 64 for call in message.tool_calls)
    return 4 * (len(message.content) + len(message.reasoning)) + calls + 256


def _free_text(arguments: str) -> str:
    """The text of a call of a free-text tool; the arguments themselves if they have another form."""
    try:
        values = json.loads(arguments)
    except ValueError:
        return arguments
    text = values.get(CUSTOM_INPUT) if isinstance(values, dict) else None
    return text if isinstance(text, str) else arguments


def _usage(end: ChoiceFinished) -> dict[str, Any]:
    token_usage = usage([end])
    return {
        "input_tokens": token_usage["prompt_tokens"],
        "input_tokens_details": {**token_usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": token_usage["completion_tokens"],
        "output_tokens_details": token_usage["completion_tokens_details"],
        "total_tokens": token_usage["total_tokens"],
    }
