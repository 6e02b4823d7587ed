"""Cuts a step's tokens where the text ends, counts them, and sends them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from draftd.core import DecodeRequest, FinishReason, TokenLogprobs
from draftd.counts import StepCounts
from draftd.engine.observer import EngineObserver
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, DraftState, SequenceStep
from draftd.outcome import Emission, Outcome
from draftd.strategies import Verifier

_log = logging.getLogger(__name__)


class Delivery:
    """Sends results to receivers and observers. Engine thread only, except `end`."""

    def __init__(self, eos: frozenset[int], observer: EngineObserver, load: Callable[[], float] = lambda: 0.0) -> None:
        """`load`: all sequences, divided by the batch's size."""
        self._eos, self.observer, self._load = eos, observer, load
        self._ending = threading.Lock()

    def end_tokens(self, request: DecodeRequest) -> frozenset[int]:
        """The tokens that end its text."""
        if not (request.ignore_eos or request.stop_ids):
            return self._eos
        return request.stop_ids if request.ignore_eos else self._eos | request.stop_ids

    def send_tokens(
        self,
        sequence: DecodeSequence,
        result: SequenceStep,
        done: DecodeStep,
        now: float,
        break_even: float | None = None,
        verifier: Verifier = Verifier.LOCAL,
    ) -> None:
        """Cuts the step's tokens where the text ends, counts the rest and sends it. `verifier`: whose target chose
        them."""
        tokens = [*result.accepted, result.following]
        kept, reason = self._cut(sequence, tokens)
        emitted = tuple(tokens[:kept])
        accepted = len(result.accepted) if result.drafted else 0  # else the remote drafted them by itself
        counted = _count_step(sequence, result, done, accepted, kept, break_even)
        if sequence.guess is None:  # else its text has them already
            sequence.tokens.extend(emitted)
        stats = sequence.stats
        stats.counts.add(counted)
        here = done.draft_seconds + (done.verify_seconds if verifier is Verifier.LOCAL else 0.0)
        stats.engine_seconds += here / max(1, len(done.sequences))
        gap = None if stats.last_token is None else now - stats.last_token
        if gap is None:
            stats.first_token, stats.first_chunk_tokens = now, kept
        else:
            stats.gaps.append(gap)
        stats.last_token = now
        self.observer.on_step(sequence.request, counted, gap)
        try:
            drafted = ((True,) * accepted + (False,) * (len(tokens) - accepted))[:kept]
            sequence.sink.on_tokens(Emission(emitted, drafted, tuple(result.logprobs[:kept]), verifier))
        except Exception as error:
            sequence.end(FinishReason.ERROR, f"the receiver failed: {error}")
        if sequence.of_peer:
            self._report_to_peer(sequence, result, tokens, reason, done.verify_seconds)
        if reason is not None:
            sequence.end(reason)

    def send_prompt(self, sequence: DecodeSequence, logprobs: Sequence[TokenLogprobs]) -> None:
        """Sends the log-probabilities of its prompt."""
        try:
            sequence.sink.on_tokens(Emission((), (), prompt=tuple(logprobs)))
        except Exception as error:
            sequence.end(FinishReason.ERROR, f"the receiver failed: {error}")

    def _report_to_peer(
        self,
        sequence: DecodeSequence,
        result: SequenceStep,
        tokens: list[int],
        reason: FinishReason | None,
        seconds: float,
    ) -> None:
        """Reports to the peer all that the target decided."""
        share, sequence.seconds = sequence.seconds, 0.0
        proposed = result.drafted if sequence.proposed else 0
        try:
            sequence.proposals.report_step(
                tokens,
                len(result.accepted) if proposed else 0,
                proposed,
                finished=reason,
                verify_seconds=seconds,
                share_seconds=share,
                load=self._load(),
                logprobs=tuple(result.logprobs),
                own_drafted=result.drafted - proposed,
            )
        except Exception as error:
            sequence.end(FinishReason.ERROR, f"the report to the peer failed: {error}")

    def end(self, sequence: DecodeSequence, now: float) -> None:
        """Reports the end of a sequence, once. Any thread: the engine's may be inside a forward when the daemon has to
        end."""
        assert sequence.finish is not None
        with self._ending:
            if sequence.end_reported:
                return
            sequence.end_reported = True
        sequence.stats.finished = now
        outcome = Outcome(
            sequence.finish,
            sequence.stats,
            sequence.degraded,
            sequence.error,
            sequence.lowered,
            sequence.failed_over,
            sequence.unavailable,
        )
        self.observer.on_finish(sequence.request, outcome)
        try:
            sequence.sink.on_finish(outcome)
        except Exception as error:
            _log.warning(
                "the receiver of request %s failed when told that the request ended",
                sequence.request.id,
                exc_info=error,
            )

    def _cut(self, sequence: DecodeSequence, tokens: list[int]) -> tuple[int, FinishReason | None]:
        """Returns how many of `tokens` belong to the text, and why it ends with them, or None."""
        kept, reason = len(tokens), None
        if kept >= sequence.remaining:
            kept, reason = sequence.remaining, FinishReason.LENGTH
        ends = self.end_tokens(sequence.request)
        if not ends.isdisjoint(tokens[:kept]):
            kept, reason = next(i for i, token in enumerate(tokens, 1) if token in ends), FinishReason.STOP
        if sequence.request.stop is not None:
            try:
                at = sequence.request.stop.feed(tokens[:kept])
            except Exception as error:
                sequence.end(FinishReason.ERROR, f"stop matching failed: {error}")
                at = None
            if at is not None:
                kept, reason = at, FinishReason.STOP
        return kept, reason


def _count_step(
    sequence: DecodeSequence,
    result: SequenceStep,
    done: DecodeStep,
    accepted: int,
    emitted: int,
    break_even: float | None,
) -> StepCounts:
    return StepCounts(
        drafted=result.drafted,
        accepted=accepted,
        emitted=emitted,
        draft_forwards=result.draft_forwards,
        draft_seconds=done.draft_seconds,
        verify_seconds=done.verify_seconds,
        break_even=break_even,
        parked=result.state is DraftState.PARKED,
        capped=result.state is DraftState.CAPPED,
        drafter=sequence.latest_drafter,
        strategy=sequence.plan.strategy,
    )
