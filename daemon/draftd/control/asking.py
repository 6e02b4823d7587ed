"""Puts the daemon's own prompts to the engine, as ordinary requests: one at a time, each with a deadline."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from draftd.canaries.prompts import FrozenPrompt
from draftd.control.rendering import render
from draftd.control.seams import EngineControl
from draftd.core import (
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    DraftCounts,
    Emission,
    FallbackLevel,
    FinishReason,
    Origin,
    Outcome,
)
from draftd.errors import DraftdError
from draftd.policy.ladder import Rung
from draftd.policy.reports import Divergence

_GRACE_SECONDS = 5.0  # beyond a deadline: the engine notices one between two rounds
_GAP_SECONDS = 10.0  # for the logit gap of one divergence


class Unanswered(Exception):
    """A prompt was not answered: the message says why. Nothing is known of the draft by it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to a prompt, and what that took."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    counts: DraftCounts


class Asker:
    """One thread asks; any thread may abort it."""

    def __init__(self, engine: EngineControl, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds`: how long one answer may take, its time in the queue included."""
        self._engine, self._seconds, self._clock = engine, seconds, clock
        self._numbers = itertools.count(1)
        self._references: dict[FrozenPrompt, Answer] = {}
        self._of = ""  # the target whose references these are
        self._lock = threading.Lock()
        self._aborted = False
        self._asked: tuple[str, _Sink] | None = None

    def abort(self) -> None:
        """What is being asked ends as Unanswered, and so does all that is asked from now on."""
        with self._lock:
            self._aborted, asked = True, self._asked
        if asked is not None:
            self._engine.cancel(asked[0])
            asked[1].ended.set()  # an engine that hangs must not keep the asker

    def reference(self, prompt: FrozenPrompt, origin: Origin) -> Answer:
        """The autoregressive answer: asked once, and kept for as long as the target stays. Raises Unanswered."""
        target = self._target()
        if target != self._of:
            self._references.clear()  # as many as there are frozen prompts, then
            self._of = target
        kept = self._references.get(prompt)
        if kept is None:
            plan = DecodePlan(
                DecodeMode.AUTOREGRESSIVE,
                0,
                None,
                FallbackLevel.AUTOREGRESSIVE,
                origin.value,
                f"{origin.value}: what is compared with",
            )
            kept = self._references[prompt] = self._ask(prompt, plan, origin)
        return kept

    def drafted(self, prompt: FrozenPrompt, rung: Rung, origin: Origin) -> Answer:
        """The answer as it is decoded at a rung that drafts. Raises Unanswered, also where it was not drafted."""
        plan = DecodePlan(
            DecodeMode.SPECULATIVE,
            rung.max_draft_tokens,
            rung.drafter,
            rung.level,
            origin.value,
            f"{origin.value} of {rung.label}",
            DepthMode.FIXED,  # it asks what the rung is worth: a depth that avoids its drafts would hide that
        )
        return self._ask(prompt, plan, origin)

    def divergence(self, reference: Answer, drafted: Answer) -> Divergence | None:
        """Where the second leaves the first; None where they are one."""
        if reference.tokens == drafted.tokens:
            return None
        pairs = zip(reference.tokens, drafted.tokens, strict=False)
        at = next((i for i, (right, other) in enumerate(pairs) if right != other), None)
        if at is None:  # one ended where the other went on: no two tokens to compare
            return Divergence(min(len(reference.tokens), len(drafted.tokens)), None)
        before = reference.prompt + reference.tokens[:at]
        return Divergence(at, self._gap(before, reference.tokens[at], drafted.tokens[at]))

    def _gap(self, before: tuple[int, ...], right: int, other: int) -> float | None:
        found: Future[float] | None = None
        try:
            found = self._engine.logit_gap(before, right, other)
            return found.result(_GAP_SECONDS)
        except Exception:  # whatever it is, the divergence stands without a gap
            if found is not None:
                found.cancel()
            return None

    def _target(self) -> str:
        try:
            info = self._engine.info
        except DraftdError as error:
            raise Unanswered(error.message) from None
        return f"{info.model} {info.weight_bytes}"

    def _rendered(self, prompt: FrozenPrompt) -> tuple[int, ...]:
        try:
            return render(prompt, self._engine.tokenizer)
        except Exception as error:
            raise Unanswered(f"{prompt.id} cannot be tokenised: {error}") from None

    def _ask(self, prompt: FrozenPrompt, plan: DecodePlan, origin: Origin) -> Answer:
        tokens, now, sink = self._rendered(prompt), self._clock(), _Sink()
        request = DecodeRequest(
            id=f"draftd-{origin.value}-{next(self._numbers)}",
            prompt=tokens,
            max_tokens=prompt.max_tokens,
            plan=plan,
            arrival=now,
            deadline=now + self._seconds,
            workload=prompt.workload,
            origin=origin,
        )
        with self._lock:
            if self._aborted:
                raise Unanswered("the daemon is stopping")
            self._asked = request.id, sink
        try:
            self._engine.submit(request, sink)
            if not sink.ended.wait(self._seconds + _GRACE_SECONDS):
                self._engine.cancel(request.id)
                raise Unanswered(f"{prompt.id} had no answer within {self._seconds:g} s")
        except DraftdError as error:
            raise Unanswered(f"{prompt.id} was refused: {error.message}") from None
        finally:
            with self._lock:
                self._asked = None
        return self._answer(prompt, tokens, plan, sink)

    def _answer(self, prompt: FrozenPrompt, tokens: tuple[int, ...], plan: DecodePlan, sink: _Sink) -> Answer:
        outcome = sink.outcome
        if outcome is None or outcome.reason is FinishReason.CANCELLED:
            raise Unanswered("the daemon is stopping" if self._aborted else f"{prompt.id} was cancelled")
        if outcome.reason is FinishReason.DEADLINE:
            raise Unanswered(f"{prompt.id} had no answer within {self._seconds:g} s")
        if outcome.reason is FinishReason.ERROR:
            raise Unanswered(f"{prompt.id} failed: {outcome.error}")
        if outcome.degraded and plan.mode is DecodeMode.SPECULATIVE:
            raise Unanswered(f"{prompt.id} went on autoregressively: {outcome.degraded}")
        if outcome.lowered:
            raise Unanswered(f"{prompt.id} was lowered: {outcome.lowered}")
        return Answer(tokens, tuple(sink.tokens), outcome.stats.counts)


class _Sink:
    """Keeps what the engine thread says."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.outcome: Outcome | None = None
        self.ended = threading.Event()

    def on_tokens(self, emission: Emission) -> None:
        self.tokens += emission.tokens

    def on_finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.ended.set()
