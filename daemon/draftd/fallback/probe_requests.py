"""The requests of probes and canaries: frozen prompts, each answered autoregressively and as a level would draft it.

They are ordinary requests, one at a time, marked as the daemon's own. The autoregressive answers come first and are
kept, so weights are loaded only while needed, and an interrupted run resumes. A run gives way to clients: if their
requests wait, it ends between two prompts.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from draftd.canaries.prompts import FrozenPrompt, FrozenPrompts, Messages, fold_system
from draftd.core import (
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    DrafterName,
    FallbackLevel,
    FinishReason,
    LadderLevel,
    Origin,
)
from draftd.counts import DraftCounts
from draftd.engine.handle import EngineHandle
from draftd.errors import DraftdError
from draftd.fallback.probes import Divergence, ProbedPrompt
from draftd.models.tokenizer import Tokenizer
from draftd.outcome import Emission, Outcome

STOPPING = "the daemon is stopping"
_GRACE_SECONDS = 5.0  # beyond a deadline, which the engine checks between two steps
_GAP_SECONDS = 10.0  # to measure one divergence's logit gap
_LOOK_AGAIN_SECONDS = 0.05  # a request that has just arrived will be taken soon

Borrow = Callable[[DrafterName | None], AbstractContextManager[object]]
"""Holds a drafter's weights within the block. Entering it may take a while, and raises where they cannot be had."""


class ProbeUnanswered(Exception):
    """The error for a prompt without an answer, with the reason. It says nothing about the draft."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The model's answer to a prompt, with its counts and seconds."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    counts: DraftCounts


def render(prompt: FrozenPrompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the prompt's token ids, ready for the answer, by the model's chat template. Plain text if the model has
    none, or if the template accepts the system text neither as a system message nor put in front of the user's."""
    chat = fold_system(prompt.chat)
    if tokenizer.has_chat_template:
        for messages in (prompt.chat, chat):
            try:
                return tuple(tokenizer.render_chat([{"role": role, "content": text} for role, text in messages]))
            except Exception:  # templates raise many kinds of errors
                continue
    return tuple(tokenizer.encode("".join(f"{text}\n\n" for _, text in chat)))


def probe_prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Returns the token ids of all probe prompts."""
    return [render(prompt, tokenizer) for prompt in FrozenPrompts.of_package().probe]


class ProbeRequests:
    """Asks the prompts. One thread asks; any thread may abort."""

    def __init__(self, engine: EngineHandle, borrow: Borrow, seconds: float) -> None:
        """`seconds`: the most that one answer may take, including its time in the queue."""
        self._engine, self._borrow, self._seconds = engine, borrow, seconds
        self._numbers = itertools.count(1)
        self._references: dict[tuple[Messages, int], ProbeAnswer] = {}  # by prompt and number of tokens
        self._target = ""  # the target of these references
        self._lock = threading.Lock()
        self._running: tuple[str, _Sink] | None = None
        self.stopping = threading.Event()

    def abort(self) -> None:
        """Ends the running request, and every later one, with ProbeUnanswered."""
        self.stopping.set()
        with self._lock:
            running = self._running
        if running is not None:
            self._engine.cancel(running[0])
            running[1].ended.set()  # a hanging engine must not block the caller

    def compare(
        self, prompts: Sequence[FrozenPrompt], level: LadderLevel, origin: Origin, seconds: float, patience: float = 0.0
    ) -> tuple[list[ProbedPrompt], str]:
        """Returns each prompt's result, and why the run ended early (empty if it did not).

        `seconds`: the most that all prompts may take. `patience`: how many of these seconds the run waits while
        requests are queued; after that it ends. Raises ProbeUnanswered, or DraftdError if the engine does not serve."""
        why_to_end = self._limits(seconds, patience)
        for prompt in prompts:
            if ended := why_to_end():
                return [], ended
            self._reference(prompt, origin)
        compared: list[ProbedPrompt] = []
        with ExitStack() as weights:
            try:
                weights.enter_context(self._borrow(level.drafter))
            except Exception as error:
                why = str(error) or type(error).__name__
                raise ProbeUnanswered(f"the weights of {level.drafter} cannot be loaded: {why}") from error
            for prompt in prompts:
                if ended := why_to_end():
                    return compared, ended
                reference, drafted = self._reference(prompt, origin), self._draft(prompt, level, origin)
                divergence = self._divergence(reference, drafted)
                compared.append(ProbedPrompt(prompt.id, drafted.counts, divergence, reference.tokens, drafted.tokens))
        return compared, ""

    def _limits(self, seconds: float, patience: float) -> Callable[[], str]:
        """Returns a check to call between two prompts, when the run itself has no request queued: it says why the run
        must end now, empty if it may go on, and waits while there is patience left."""
        until = time.monotonic() + seconds

        def why_to_end() -> str:
            nonlocal patience
            while True:
                if self.stopping.is_set():
                    return STOPPING
                if time.monotonic() >= until:
                    return f"it took longer than {seconds:g} s"
                if not self._engine.status().queued:
                    return ""
                looked = time.monotonic()
                self.stopping.wait(_LOOK_AGAIN_SECONDS)
                waiting = self._engine.status().queued
                if waiting and patience <= 0:
                    return f"it gave way to {waiting} waiting request{'s' if waiting > 1 else ''}"
                patience -= time.monotonic() - looked

        return why_to_end

    def _reference(self, prompt: FrozenPrompt, origin: Origin) -> ProbeAnswer:
        """Returns the autoregressive answer, computed once and kept while the target stays the same."""
        info = self._engine.info
        if (target := f"{info.model} {info.weight_bytes}") != self._target:
            self._references.clear()  # afterwards at most one per frozen prompt
            self._target = target
        kept = self._references.get(key := (prompt.chat, prompt.max_tokens))
        if kept is None:
            level, reason = FallbackLevel.AUTOREGRESSIVE, f"{origin.value}: what is compared with"
            plan = DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, level, origin.value, reason)
            kept = self._references[key] = self._ask(prompt, plan, origin)
        return kept

    def _draft(self, prompt: FrozenPrompt, level: LadderLevel, origin: Origin) -> ProbeAnswer:
        plan = DecodePlan(
            DecodeMode.SPECULATIVE,
            level.max_draft_tokens,
            level.drafter,
            level.kind,
            origin.value,
            f"{origin.value} of {level.label}",
            DepthMode.FIXED,  # fixed, because automatic depth would hide a level that is not worth it
        )
        return self._ask(prompt, plan, origin)

    def _divergence(self, reference: ProbeAnswer, drafted: ProbeAnswer) -> Divergence | None:
        if reference.tokens == drafted.tokens:
            return None
        pairs = zip(reference.tokens, drafted.tokens, strict=False)
        at = next((i for i, (right, other) in enumerate(pairs) if right != other), None)
        if at is None:  # one text ended earlier: there are no two tokens to compare
            return Divergence(min(len(reference.tokens), len(drafted.tokens)), None)
        before = reference.prompt + reference.tokens[:at]
        gap: Future[float] | None = None
        try:
            gap = self._engine.logit_gap(before, reference.tokens[at], drafted.tokens[at])
            return Divergence(at, gap.result(_GAP_SECONDS))
        except Exception:  # after any error the divergence is reported without a gap
            if gap is not None:
                gap.cancel()
            return Divergence(at, None)

    def _ask(self, prompt: FrozenPrompt, plan: DecodePlan, origin: Origin) -> ProbeAnswer:
        try:
            tokens = render(prompt, self._engine.tokenizer)
        except Exception as error:
            raise ProbeUnanswered(f"{prompt.id} cannot be tokenised: {error}") from None
        now, sink = time.monotonic(), _Sink()
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
            if self.stopping.is_set():
                raise ProbeUnanswered(STOPPING)
            self._running = request.id, sink
        try:
            self._engine.submit(request, sink)
            if not sink.ended.wait(self._seconds + _GRACE_SECONDS):
                self._engine.cancel(request.id)
                raise ProbeUnanswered(f"{prompt.id} had no answer within {self._seconds:g} s")
        except DraftdError as error:
            raise ProbeUnanswered(f"{prompt.id} was refused: {error.message}") from None
        finally:
            with self._lock:
                self._running = None
        outcome = sink.outcome
        if outcome is None or outcome.reason is FinishReason.CANCELLED:
            raise ProbeUnanswered(STOPPING if self.stopping.is_set() else f"{prompt.id} was cancelled")
        if outcome.reason is FinishReason.DEADLINE:
            raise ProbeUnanswered(f"{prompt.id} had no answer within {self._seconds:g} s")
        if outcome.reason is FinishReason.ERROR:
            raise ProbeUnanswered(f"{prompt.id} failed: {outcome.error}")
        if outcome.degraded and plan.mode is DecodeMode.SPECULATIVE:
            raise ProbeUnanswered(f"{prompt.id} went on autoregressively: {outcome.degraded}")
        if outcome.lowered:
            raise ProbeUnanswered(f"the probe's prompt {prompt.id} was moved to a lower level: {outcome.lowered}")
        return ProbeAnswer(tokens, tuple(sink.tokens), outcome.stats.counts)


class _Sink:
    """Keeps what the engine thread delivers."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.outcome: Outcome | None = None
        self.ended = threading.Event()

    def on_tokens(self, emission: Emission) -> None:
        self.tokens += emission.tokens

    def on_finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.ended.set()
