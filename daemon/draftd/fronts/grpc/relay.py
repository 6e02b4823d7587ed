"""Sends requests to another daemon that answers them: converts requests to messages, and messages to events. The
counterpart of inference.py."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import grpc

from draftd.client import client
from draftd.core import FinishReason
from draftd.errors import DeadlineExceeded, DraftdError, QueueFull, RemoteDown, RemoteUnavailable
from draftd.outcome import Emission
from draftd.protocol import REASONS, RELAYED_KEY, draft_counts
from draftd.service.messages import Chat, Message, ToolCall, ToolMode
from draftd.service.request import (
    Chunk,
    Delta,
    FormatKind,
    RawText,
    ReasoningDelta,
    Request,
    ResponseFormat,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from draftd.service.text_relay import RelayFinished, RelayStarted
from draftd.settings import RemoteSettings
from draftd.strategies import Strategy, Verifier
from draftd.v1 import inference_pb2 as pb
from draftd.v1 import inference_pb2_grpc
from draftd.verifier_client.connection import credentials_of, metadata_of

# Fields that have the same name and form in the request and in the message.
_PASSED_ON = (
    *("max_tokens", "stop", "workload", "caller", "min_tokens", "ignore_eos", "include_stop", "special_tokens"),
    *("n", "echo", "priority", "skip_prefix_cache"),
)
_LONGEST_CALL_SECONDS = 86400.0
_RETRY_SECONDS = 1.0  # if the remote names no time


class GrpcAnswers:
    """The `RemoteAnswers` of the daemon at `remote.target`. Create and use it on one event loop. It connects at the
    first request."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._replaced = set[asyncio.Task[None]]()
        self._connect(settings)

    def reload(self, settings: RemoteSettings) -> None:
        """Uses these credentials for new calls; running calls keep the old ones. Raises OSError."""
        before = self._channel
        self._connect(settings)
        closing = asyncio.create_task(before.close(_LONGEST_CALL_SECONDS))
        self._replaced.add(closing)
        closing.add_done_callback(self._replaced.discard)

    def _connect(self, settings: RemoteSettings) -> None:
        assert settings.target is not None
        self._metadata = metadata_of(settings)
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 5_000)]
        if (credentials := credentials_of(settings)) is not None:
            self._channel = grpc.aio.secure_channel(settings.target, credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(settings.target, options)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def answer(self, request: Request, trace: str) -> AsyncGenerator[RelayStarted | Chunk | RelayFinished, None]:
        left = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
        metadata = (*self._metadata, (RELAYED_KEY, "1"), *((("traceparent", trace),) if trace else ()))
        call = self._stub.Generate(message_of(request), timeout=left, metadata=metadata)
        try:
            async for response in call:
                if (event := event_of(response)) is not None:
                    yield event
        except grpc.RpcError as error:
            raise _error_of(client.CallError(error)) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        for closing in self._replaced:
            closing.cancel()
        await self._channel.close(None)


def message_of(request: Request) -> pb.GenerateRequest:
    """Converts a request for the remote. Leaves out the fields that concern this daemon alone: drafting and
    strategy."""
    fields: dict[str, Any] = {
        **{name: getattr(request, name) for name in _PASSED_ON},
        "response_format": _format(request.response_format),
        "strategy": Strategy.LOCAL,  # the remote's own model answers: daemons cannot relay in a circle
        "sampling": replace(request.sampling, logit_bias=()),  # token ids mean nothing to the remote
    }
    chat = request.prompt
    if isinstance(chat, RawText):
        return client.message_of(chat.text, **fields)
    if not isinstance(chat, Chat):
        raise RemoteUnavailable("token ids mean nothing to a daemon with another tokenizer")
    choice = pb.ToolChoice(name=chat.tool_choice)
    if isinstance(chat.tool_choice, ToolMode):
        choice = pb.ToolChoice(mode=f"MODE_{chat.tool_choice.name}")
    return client.message_of(
        messages=list(map(_message, chat.messages)),
        tools=[pb.Tool(**tool._asdict()) for tool in chat.tools],
        tool_choice=choice,
        parallel_tool_calls=chat.parallel_tool_calls,
        template_arguments=chat.template_arguments,
        continue_final_message=chat.continues,
        **fields,
    )


def event_of(message: pb.GenerateResponse) -> RelayStarted | Chunk | RelayFinished | None:
    """Converts a message to an event; None for a message without one, such as load progress."""
    kind = message.WhichOneof("event")
    if kind == "started":
        return RelayStarted(message.started.prompt_tokens)
    if kind == "chunk":
        return _chunk(message.chunk)
    if kind != "finished":
        return None
    end = message.finished
    counts = draft_counts(end.counts, end.usage.output_tokens)
    prefill = end.timings.prefill.ToNanoseconds() / 1e9
    return RelayFinished(
        end.choice,
        REASONS.get(end.reason, FinishReason.ERROR),
        counts,
        cached_tokens=end.usage.cache_read_tokens,
        reasoning_tokens=end.usage.reasoning_tokens,
        queue_seconds=end.timings.queue.ToNanoseconds() / 1e9,
        target_seconds=prefill + counts.draft_seconds + counts.verify_seconds,
        stop=end.stop,
        stop_token_id=end.stop_token_id if end.HasField("stop_token_id") else None,
        tool_calls=int(end.tool_calls),
        warning=end.warning,
        degraded=end.degraded,
    )


def _chunk(message: pb.Chunk) -> Chunk:
    pieces, at = [], 0
    for length in message.text_lengths:
        pieces.append(message.text[at : at + length])
        at += length
    emission = Emission(tuple(message.token_ids), tuple(message.from_draft), (), Verifier.REMOTE)
    return Chunk(emission, pieces, message.text[at:], [_delta(delta) for delta in message.deltas], message.choice)


def _delta(message: pb.Delta) -> Delta:
    kind = message.WhichOneof("kind")
    if kind == "reasoning":
        return ReasoningDelta(message.reasoning)
    if kind == "tool_call_begun":
        begun = message.tool_call_begun
        return ToolCallBegun(begun.index, begun.id, begun.name)
    if kind == "tool_call_arguments":
        return ToolCallArguments(message.tool_call_arguments)
    if kind == "tool_call":
        return ToolCallEnded(ToolCall(message.tool_call.id, message.tool_call.name, message.tool_call.arguments))
    return TextDelta(message.text)


def _message(message: Message) -> pb.ChatMessage:
    calls = [pb.ToolCall(**call._asdict()) for call in message.tool_calls]
    return pb.ChatMessage(**message._asdict() | {"tool_calls": calls})


def _format(response_format: ResponseFormat | None) -> pb.ResponseFormat | None:
    if response_format is None:
        return None
    if response_format.kind is FormatKind.JSON_OBJECT:
        return pb.ResponseFormat(json_object=True)
    if response_format.kind is FormatKind.CHOICE:
        return pb.ResponseFormat(choices=pb.Choices(texts=json.loads(response_format.source)))
    message = pb.ResponseFormat()
    setattr(message, response_format.kind.value, response_format.source)
    return message


def _error_of(error: client.CallError) -> DraftdError:
    """The error for this daemon's client."""
    said = f"the remote daemon: {error.details}"
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(said)
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return QueueFull(said, retry_after=error.retry_after)
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED):
        return RemoteDown(said, retry_after=error.retry_after or _RETRY_SECONDS)
    return RemoteUnavailable(said)
