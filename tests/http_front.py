"""The HTTP front over a scripted service, for answers that no model gives on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftd.core import DecodeMode, DecodePlan, DepthMode, FallbackLevel, FinishReason, TokenLogprobs
from draftd.counts import DraftCounts
from draftd.errors import DraftdError
from draftd.fronts.http.server import HttpServer
from draftd.model_info import ModelInfo
from draftd.outcome import Emission, Outcome, RequestStats
from draftd.service.messages import ToolCall
from draftd.service.request import (
    ChoiceFinished,
    Chunk,
    Delta,
    ReasoningDelta,
    Request,
    RequestStarted,
    Send,
    ServedModel,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    validate_request,
)
from draftd.settings import ServerSettings
from draftd.telemetry.setup import Telemetry

INFO = ModelInfo("org/scripted", "draft", 4096, 256, ("draft_model",), 0, 0, "cpu", tools=True, thinking=True)
PLAN = DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test")


@dataclass
class Says:
    """One answer: chunks of deltas, or of `text` without any; `error` comes last."""

    deltas: Sequence[Sequence[Delta]] = ()
    text: Sequence[str] = ()
    reason: FinishReason = FinishReason.STOP
    stop: str = ""
    logprobs: Sequence[TokenLogprobs] = ()  # of the bytes of the text
    error: DraftdError | Exception | None = None
    pause: float = 0.0  # before the first chunk
    calls: int = 0
    choice: int = 0

    def chunks(self) -> list[Chunk]:
        if self.deltas:
            return [Chunk(Emission((1,), (False,)), ("",), deltas=deltas, choice=self.choice) for deltas in self.deltas]
        made, logprobs, at = [], list(self.logprobs), 0
        for text in self.text:
            ids = tuple(text.encode())
            emission = Emission(ids, (False,) * len(ids), tuple(logprobs[: len(ids)]))
            del logprobs[: len(ids)]
            made.append(Chunk(emission, tuple(text), choice=self.choice, offsets=range(at, at + len(text))))
            at += len(text)
        return made


def call(index: int, name: str, arguments: str) -> list[list[Delta]]:
    """Returns a tool call in the pieces in which a model writes it."""
    half = len(arguments) // 2
    return [
        [ToolCallBegun(index, f"call_{index}", name)],
        [ToolCallArguments(arguments[:half])],
        [ToolCallArguments(arguments[half:]), ToolCallEnded(ToolCall(f"call_{index}", name, arguments))],
    ]


def thought(text: str) -> list[list[Delta]]:
    return [[ReasoningDelta(text)]]


def said(text: str) -> list[list[Delta]]:
    return [[TextDelta(text)]]


@dataclass
class ScriptedService:
    """An InferenceService for the front. Each request takes the next answer, or with `together` all of them as its
    choices. `obliging`: there is always an answer. `checks`: requests are validated, as by the real service."""

    answers: list[Says] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    together: bool = False
    obliging: bool = False
    checks: bool = False
    draining: bool = False
    load_progress: str = ""
    cancelled: int = 0

    def model(self) -> ServedModel:
        return ServedModel(INFO, 256, 4, DepthMode.AUTOMATIC, True)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    async def count(self, request: Request) -> int:
        self._take(request)
        return 7

    def _take(self, request: Request) -> None:
        if self.checks:
            validate_request(request, self.model())
        self.requests.append(request)
        if self.obliging:
            self.answers.append(Says(said("ok")))

    async def generate(self, request: Request, send: Send) -> None:
        self._take(request)
        answers = self.answers if self.together else [self.answers.pop(0)]
        try:
            for i, answer in enumerate(answers):
                await self._say(answer, send, first=i == 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _say(self, answer: Says, send: Send, *, first: bool) -> None:
        if first:
            await send(RequestStarted(f"r{len(self.requests)}", INFO, 10, PLAN))
        await asyncio.sleep(answer.pause)
        chunks = answer.chunks()
        for chunk in chunks:
            await send(chunk)
        counts = DraftCounts(emitted=len(chunks))
        reason = FinishReason.ERROR if answer.error is not None else answer.reason
        outcome = Outcome(reason, RequestStats(10, 0.0, cached_tokens=4, counts=counts))
        reasoning = sum(isinstance(one, ReasoningDelta) for deltas in answer.deltas for one in deltas)
        calls = sum(isinstance(one, ToolCallEnded) for deltas in answer.deltas for one in deltas)
        end = ChoiceFinished(outcome, PLAN, answer.stop, answer.choice, tool_calls=calls, reasoning_tokens=reasoning)
        await send(end)
        if answer.error is not None:
            raise answer.error


@dataclass
class Fronted:
    """A server over a scripted service. `url` is its root."""

    service: ScriptedService
    server: HttpServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def will_say(self, *answers: Says) -> None:
        self.service.answers += answers

    @property
    def asked(self) -> Request:
        """Returns the last request."""
        return self.service.requests[-1]


@contextlib.asynccontextmanager
async def fronted(
    *answers: Says,
    keep_alive_seconds: float = 10.0,
    body_seconds: float = 10.0,
    request_seconds: float = 10.0,
    **settings: Any,
) -> AsyncIterator[Fronted]:
    service = ScriptedService(list(answers))
    server = HttpServer(
        ServerSettings(http_port=0, **settings),
        service,  # type: ignore[arg-type]
        Telemetry().http,
        keep_alive_seconds=keep_alive_seconds,
        body_seconds=body_seconds,
        request_seconds=request_seconds,
    )
    await server.start()
    server.serving()
    try:
        yield Fronted(service, server)
    finally:
        await server.stop(1.0)
