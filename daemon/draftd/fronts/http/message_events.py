"""Writes the answers of /v1/messages: a block for each part of the answer, and the stream's events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from draftd.errors import DraftdError
from draftd.fronts.http.answer import deltas_of, is_success, metrics, usage
from draftd.fronts.http.errors import anthropic_error
from draftd.fronts.http.stream import event
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

# By kind of block: the kind of its deltas, and the field that has the text.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}

_Event = dict[str, Any]


class MessageReply:
    """The answer, as a stream or in one piece."""

    last, keep_alive = b"", event("ping", {"type": "ping"})

    def __init__(self, model: str, *, measured: bool) -> None:
        self._measured = measured
        self._message: dict[str, Any] = {
            "id": "",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._open = ""  # the kind of the open block
        self._texts: list[str] = []

    def take(self, emitted: AnswerEvent, prompt: int) -> bytes:
        if isinstance(emitted, Chunk):
            events = [item for delta in deltas_of(emitted) for item in self._delta(delta)]
        else:
            events = list(
                self._begin_answer(emitted) if isinstance(emitted, RequestStarted) else self._end_answer(emitted)
            )
        return b"".join(event(item["type"], item) for item in events)

    def whole(self) -> Mapping[str, Any]:
        return self._message

    def failure_event(self, error: DraftdError) -> bytes:
        return event("error", anthropic_error(error))

    def _begin_answer(self, start: RequestStarted) -> Iterator[_Event]:
        self._message["id"] = f"msg_{start.request_id}"
        self._message["usage"] = {
            "input_tokens": start.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,  # the end has the number
            "output_tokens": 0,
        }
        yield {"type": "message_start", "message": self._message}

    def _delta(self, delta: Delta) -> Iterator[_Event]:
        if isinstance(delta, TextDelta):
            yield from self._piece("text", delta.text)
        elif isinstance(delta, ReasoningDelta):
            yield from self._piece("thinking", delta.text)
        elif isinstance(delta, ToolCallBegun):
            yield from self._close()
            yield from self._begin("tool_use", {"id": delta.id, "name": delta.name, "input": {}})
        elif isinstance(delta, ToolCallArguments):
            yield from self._piece("tool_use", delta.text)
        elif isinstance(delta, ToolCallEnded):
            self._texts = [delta.call.arguments]
            yield from self._close()

    def _begin(self, kind: str, more: Mapping[str, Any]) -> Iterator[_Event]:
        self._open, self._texts = kind, []
        block = {"type": kind, **more}
        self._message["content"].append(block)
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _piece(self, kind: str, text: str) -> Iterator[_Event]:
        if self._open != kind:
            yield from self._close()
            yield from self._begin(kind, {"text": ""} if kind == "text" else {"thinking": "", "signature": ""})
        self._texts.append(text)
        name, field = _DELTAS[kind]
        yield {"type": "content_block_delta", "index": self._index, "delta": {"type": name, field: text}}

    def _close(self) -> Iterator[_Event]:
        """Ends the open block, if any."""
        if not self._open:
            return
        kind, text, block = self._open, "".join(self._texts), self._message["content"][-1]
        if kind == "tool_use":
            block["input"] = _object(text)
        else:
            block[kind] = text
        if kind == "thinking":  # clients expect it; nothing here is signed
            yield {
                "type": "content_block_delta",
                "index": self._index,
                "delta": {"type": "signature_delta", "signature": ""},
            }
        self._open = ""
        yield {"type": "content_block_stop", "index": self._index}

    def _end_answer(self, end: ChoiceFinished) -> Iterator[_Event]:
        yield from self._close()
        if not is_success(end):
            return
        token_usage = usage([end])
        cached = token_usage["prompt_tokens_details"]["cached_tokens"]
        counts = {
            "input_tokens": token_usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": token_usage["completion_tokens"],
        }
        ended = {"stop_reason": _reason(end), "stop_sequence": end.stop or None}
        self._message |= {**ended, "usage": counts}
        more = {"metrics": metrics([end])} if self._measured else {}
        self._message |= more
        yield {"type": "message_delta", "delta": ended, "usage": counts, **more}
        yield {"type": "message_stop"}

    @property
    def _index(self) -> int:
        return len(self._message["content"]) - 1


def _reason(end: ChoiceFinished) -> str:
    if end.outcome.reason.value == "length":
        return "max_tokens"
    if end.tool_calls:
        return "tool_use"
    return "stop_sequence" if end.stop else "end_turn"


def _object(text: str) -> dict[str, Any]:
    """The input of a call; empty for a call that was cut short."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
