"""Relays a request to another daemon that answers in text, because its token ids differ from this daemon's.

The engine is not involved. Token ids and counts are the other daemon's; times are measured here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from operator import add
from typing import Protocol

from draftd.core import DecodePlan, FinishReason
from draftd.counts import DraftCounts
from draftd.errors import DraftdError, NotServing, RemoteDown
from draftd.outcome import Outcome, RequestStats
from draftd.planning.router import Router
from draftd.service.messages import text_part
from draftd.service.request import ChoiceFinished, Chunk, ReasoningDelta, Request, RequestStarted, Send, TextDelta
from draftd.service.stream import Write
from draftd.strategies import RemoteCounts, Strategy
from draftd.telemetry.spans import InferenceSpan, Part


@dataclass(frozen=True, slots=True)
class RelayStarted:
    """The other daemon has accepted the request. `prompt_tokens`: counted with its tokenizer."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class RelayFinished:
    """The end of one choice, as the other daemon reports it. `queue_seconds` (until it was scheduled) and
    `target_seconds` (of its engine) are measured there."""

    choice: int
    reason: FinishReason
    counts: DraftCounts
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    queue_seconds: float = 0.0
    target_seconds: float = 0.0
    stop: str = ""
    stop_token_id: int | None = None
    tool_calls: int = 0
    warning: str = ""
    degraded: str = ""


class RemoteAnswers(Protocol):
    """The interface to the daemon that answers."""

    def answer(self, request: Request, trace: str) -> AsyncGenerator[RelayStarted | Chunk | RelayFinished, None]:
        """Yields `RelayStarted`, then chunks, whose verifier is REMOTE, and the end of each choice. Closing the
        generator cancels the request there. Raises RemoteDown if the other daemon cannot be reached or is lost; another
        DraftdError if it refuses or ends the request. `trace`: names the request's span (W3C traceparent)."""

    async def close(self) -> None:
        """Cancels the requests."""


Events = AsyncGenerator[RelayStarted | Chunk | RelayFinished, None]


@dataclass(slots=True)
class _RelayedChoice:
    span: InferenceSpan
    stats: RequestStats
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    over: bool = False
    has_parts: bool = False  # thoughts or calls, besides text

    def take(self, chunk: Chunk, now: float) -> None:
        stats, tokens = self.stats, len(chunk.emission.tokens)
        self.texts.append(chunk.text)
        self.has_parts |= any(not isinstance(delta, TextDelta) for delta in chunk.deltas)
        self.thoughts += [delta.text for delta in chunk.deltas if isinstance(delta, ReasoningDelta)]
        if not tokens:
            return
        if stats.last_token is None:
            stats.prefilled = stats.first_token = now
            stats.first_chunk_tokens = tokens
        else:
            stats.gaps.append(now - stats.last_token)
        stats.last_token = now
        accepted = sum(chunk.emission.from_draft)  # until the end, when the other daemon reports its counts
        stats.counts.emitted += tokens
        stats.counts.accepted += accepted
        stats.counts.drafted += accepted
        stats.counts.steps += tokens - accepted
        assert stats.remote is not None
        stats.remote.tokens += tokens

    @property
    def parts(self) -> list[Part]:
        """The answer's parts for telemetry."""
        thought = "".join(self.thoughts)
        return [*([{"type": "reasoning", "content": thought}] if thought else []), text_part("".join(self.texts))]


class TextRelay:
    """One request that another daemon answers. `on_end` gets each choice's outcome, once."""

    def __init__(
        self,
        events: Events,
        started: RequestStarted,
        request: Request,
        arrival: float,
        spans: Sequence[InferenceSpan],
        router: Router,
        on_end: Callable[[Outcome], None],
    ) -> None:
        self._events, self._started, self._request = events, started, request
        self._router, self._on_end, self._lost_reason = router, on_end, ""
        self._limit = asyncio.timeout(None)
        now = time.monotonic()
        self._choices = [
            _RelayedChoice(span, RequestStats(started.prompt_tokens, arrival, scheduled=now, remote=RemoteCounts()))
            for span in spans
        ]

    async def run(self, send: Send, write: Write, continue_locally: Callable[[str, int, str], None]) -> None:
        """Passes on the other daemon's events. If that daemon is lost, calls `continue_locally` with the text so far,
        its number of tokens and the reason. If the answer cannot be completed, sends `ChoiceFinished` for each open
        choice and then raises DraftdError."""
        reason = FinishReason.CANCELLED
        try:
            async with self._limit, aclosing(self._events) as events:
                await write(send(self._started))
                async for event in events:
                    if isinstance(event, Chunk):
                        self._choices[event.choice].take(event, time.monotonic())
                        await write(send(event))
                    elif isinstance(event, RelayFinished):
                        self._count(event)
                        if event.reason in (FinishReason.STOP, FinishReason.LENGTH):  # else an error follows
                            await write(send(self._finish(event.choice, event.reason, event)))
        except TimeoutError:
            if not self._limit.expired():
                raise
            stopping = NotServing("the daemon is stopping; the answer ended before its end", retry_after=1.0)
            await self._end(reason, stopping, write, send)
            raise stopping from None
        except DraftdError as error:
            if isinstance(error, RemoteDown) and self._try_local(error, continue_locally):
                return
            reason = FinishReason.DEADLINE if error.grpc_status == "DEADLINE_EXCEEDED" else FinishReason.ERROR
            await self._end(reason, error, write, send)
            raise
        finally:
            for i, choice in enumerate(self._choices):
                if not choice.over:
                    self._finish(i, reason)

    def stop(self) -> None:
        """Ends the request now: the daemon no longer waits for it."""
        with contextlib.suppress(RuntimeError):  # it is ending already
            self._limit.reschedule(0.0)

    async def _end(self, reason: FinishReason, error: DraftdError, write: Write, send: Send) -> None:
        """Ends all choices that have not ended."""
        retry = error.retry_after or 1.0 if isinstance(error, RemoteDown) else None
        for i, choice in enumerate(self._choices):
            if not choice.over:
                await write(send(self._finish(i, reason, error=error.message, unavailable=retry)))

    def _try_local(self, error: RemoteDown, continue_locally: Callable[[str, int, str], None]) -> bool:
        """Has the answer continued by the local model if it is plain text so far; returns whether it is. Thoughts and
        calls cannot be continued: the local model marks them differently."""
        choice = self._choices[0]
        if choice.over or choice.has_parts:
            return False
        try:
            continue_locally("".join(choice.texts), choice.stats.counts.emitted, error.message)
        except DraftdError:
            return False
        choice.over, self._lost_reason = True, error.message
        return True

    def merge_outcome(self, outcome: Outcome) -> Outcome:
        """Returns the outcome of the whole answer, whose last part, decoded locally, ended with `outcome`."""
        before, after = self._choices[0].stats, outcome.stats
        begun = (
            {}
            if before.first_token is None
            else {name: getattr(before, name) for name in ("prefilled", "first_token", "first_chunk_tokens")}
        )
        stats = replace(
            after,
            **begun,
            prompt_tokens=before.prompt_tokens,
            cached_tokens=before.cached_tokens,
            arrival=before.arrival,
            scheduled=before.scheduled,
            counts=before.counts.combine(after.counts, add),
            gaps=before.gaps + after.gaps,
            remote=replace(before.remote or RemoteCounts(), failed_over=1),
        )
        return replace(outcome, stats=stats, failed_over=self._lost_reason)

    def _count(self, end: RelayFinished) -> None:
        stats = self._choices[end.choice].stats
        stats.counts, stats.cached_tokens = end.counts, end.cached_tokens
        assert stats.remote is not None
        stats.remote.tokens = end.counts.emitted
        stats.remote.queue_seconds, stats.remote.target_seconds = end.queue_seconds, end.target_seconds

    def _finish(
        self,
        index: int,
        reason: FinishReason,
        end: RelayFinished | None = None,
        *,
        error: str = "",
        unavailable: float | None = None,
    ) -> ChoiceFinished:
        choice, plan = self._choices[index], self._started.plan
        choice.over, choice.stats.finished = True, time.monotonic()
        end = end or RelayFinished(index, reason, choice.stats.counts)
        outcome = Outcome(reason, choice.stats, end.degraded, error, unavailable=unavailable)
        price = self._router.learn_answer(plan, self._request.workload, outcome)
        choice.span.set_price(price.quality, price.costs, price.currency)
        choice.span.finish(outcome, choice.parts)
        self._on_end(outcome)
        return ChoiceFinished(
            outcome,
            plan,
            end.stop,
            index,
            end.stop_token_id,
            end.tool_calls,
            end.reasoning_tokens,
            end.warning,
            price,
        )


async def begin_relay(answers: RemoteAnswers, request: Request, trace: str) -> tuple[Events, RelayStarted]:
    """Returns the events that follow, and the other daemon's acceptance of the request. Raises the error of a
    refusal."""
    events = answers.answer(request, trace)
    first = await anext(events, None)
    if not isinstance(first, RelayStarted):
        await events.aclose()
        raise RemoteDown("the remote daemon ended the call without an answer", retry_after=1.0)
    return events, first


def local_plan(plan: DecodePlan, why: str) -> DecodePlan:
    """Returns the plan with the strategy `local`, and the reason for it."""
    return replace(plan, strategy=Strategy.LOCAL, reason=f"{plan.reason}; decoded here instead: {why}")
