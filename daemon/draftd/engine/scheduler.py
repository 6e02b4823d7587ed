"""waiting → prefill → running → finished: what the engine thread does next.

One step is at most one prefill chunk and one decode round, so that a newcomer never stalls the running rows for longer
than a chunk, and a cancellation or a deadline acts within a round. A prompt's last chunk gives the first token of its
answer: it counts as a round without a draft.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import mlx.core as mx

from draftd.core import DrafterKind, Emission, FinishReason, Outcome, RoundResult
from draftd.engine.batch import Row
from draftd.engine.costs import RoundCosts
from draftd.engine.drafting import Drafter
from draftd.engine.observer import EngineObserver
from draftd.engine.round import Round, RowRound, decode_round
from draftd.engine.sampling import Sampling
from draftd.engine.verification import Verifier

_log = logging.getLogger(__name__)

_TIDY_ROUNDS = 256  # MLX keeps freed buffers for reuse: let go of them now and then, as mlx-lm does


class Scheduler:
    """Owns the rows. Single-threaded: everything here runs on the engine thread."""

    def __init__(
        self,
        *,
        verifier: Callable[[], Verifier],
        drafters: Callable[[], Mapping[DrafterKind, Drafter]],
        eos: frozenset[int],
        vocabulary: int,
        observer: EngineObserver,
        max_batch: int,
        prefill_chunk: int,
        clock: Callable[[], float] = time.monotonic,
        cancelled: Callable[[], Mapping[str, FinishReason]] = dict,
        costs: RoundCosts | None = None,
    ) -> None:
        """`cancelled` is asked after each forward: a round's tokens are not sent to those who left during it. `costs`
        are what is known of rounds' costs from before."""
        self._make_verifier, self._make_drafters = verifier, drafters
        self._verifier, self._drafters = verifier(), drafters()
        self._eos, self._vocabulary = eos, vocabulary
        self._observer, self._clock, self._cancelled = observer, clock, cancelled
        self._max_batch, self._chunk = max_batch, prefill_chunk
        self._costs = costs or RoundCosts()
        self._round_ended: float | None = None  # the last round's end, where the next follows at once
        self._waiting: deque[Row] = deque()
        self._newcomer: Row | None = None
        self._taken_in = False  # the newcomer's text, by the target
        self._rows: list[Row] = []
        self._sampling: Sampling | None = None  # of the running rows; None when they have changed
        self._rounds = 0

    @property
    def idle(self) -> bool:
        return not (self._rows or self._newcomer or self._waiting)

    @property
    def active(self) -> int:
        return len(self._rows) + (self._newcomer is not None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_cache_bytes(self) -> int:
        return self._verifier.nbytes + sum(d.nbytes for d in self._drafters.values())

    def add(self, row: Row) -> None:
        self._waiting.append(row)

    def end(self, ids: Mapping[str, FinishReason]) -> None:
        """Ends these requests, wherever they are. Unknown ids are ignored: they have ended already."""
        self._mark(ids)
        self._reap()

    def _mark(self, ids: Mapping[str, FinishReason], rows: Iterable[Row] | None = None) -> None:
        if not ids:
            return
        for row in self._all() if rows is None else rows:
            reason = ids.get(row.request.id)
            if reason is not None:
                row.end(reason)

    def step(self) -> None:
        """Deadlines, then one prefill chunk, then one round."""
        now = self._clock()
        for row in self._all():
            if row.request.deadline is not None and now >= row.request.deadline:
                row.end(FinishReason.DEADLINE)
        self._reap()
        ready = self._prefill()
        if self._rows:
            self._round(ahead=not ready)
        if ready and self._newcomer is not None:
            self._join(self._newcomer)
        self._reap()

    def abort(self, reason: FinishReason, error: str = "") -> None:
        """Ends everything at once."""
        for row in self._all():
            row.end(reason, error)
        self._reap()

    # prefill

    def _prefill(self) -> bool:
        """One chunk of the newcomer's prompt, the target's first, then its drafter's; True when it may join."""
        if self._newcomer is None:
            if not self._waiting or len(self._rows) >= self._max_batch:
                return False
            self._newcomer, self._taken_in = self._waiting.popleft(), False
            self._newcomer.stats.scheduled = self._clock()
        row, self._round_ended = self._newcomer, None
        try:
            self._taken_in = self._taken_in or self._take_in(row)
        except Exception as error:
            row.end(FinishReason.ERROR, f"prefill failed: {error}")
        if row.finish is not None or not self._taken_in:
            return False
        if row.drafter is not None:
            try:
                if not self._drafters[row.drafter].prefill(row, self._chunk):
                    return False
            except Exception as error:
                self._drafter_failed(row, str(error))
        return True

    def _take_in(self, row: Row) -> bool:
        """One chunk of the target's; True once its text is taken in, and the token that follows is sent."""
        started = time.perf_counter()
        token = self._verifier.prefill(row, self._chunk)
        if token is None:
            return False
        seconds = time.perf_counter() - started
        self._mark(self._cancelled(), [row])
        if row.finish is None:
            now = self._clock()
            row.stats.prefilled = row.stats.prefilled or now
            result = RowRound(0, [], token, 0)
            self._apply(row, result, Round([result], 0.0, seconds, []), now)
        return True

    def _join(self, row: Row) -> None:
        self._newcomer = None
        self._verifier.join(row)
        self._rows.append(row)
        self._changed()

    def _changed(self) -> None:
        """The running rows are others than before."""
        self._sampling = self._round_ended = None

    def _drafter_failed(self, row: Row, message: str) -> None:
        row.degrade(f"the drafter failed: {message}")
        for drafter in self._drafters.values():
            drafter.leave(row)
        self._observer.on_drafter_error(row.request, message)

    # one round

    def _round(self, ahead: bool) -> None:
        if self._sampling is None:
            self._sampling = Sampling([row.request.sampling for row in self._rows])
        started = time.perf_counter() if self._round_ended is None else self._round_ended
        try:
            done = decode_round(self._rows, self._sampling, self._drafters, self._verifier, self._vocabulary, ahead)
        except Exception as error:
            self._rebuild(error)
            return
        self._round_ended = time.perf_counter()
        break_even = self._price(done, self._round_ended - started)
        for row, message in done.drafter_errors:
            self._drafter_failed(row, message)
        self._mark(self._cancelled())
        now = self._clock()
        for row, result in zip(self._rows, done.rows, strict=True):
            if row.finish is None:
                self._apply(row, result, done, now, break_even)
        self._rounds += 1
        if self._rounds % _TIDY_ROUNDS == 0:
            mx.clear_cache()

    def _price(self, done: Round, seconds: float) -> float:
        """What the round, from the last one's end to its own, would have had to accept; learns from a plain one."""
        if any(result.drafted for result in done.rows):
            return self._costs.break_even(len(done.rows), seconds)
        if all(row.drafter is None for row in self._rows):  # else it is not pipelined, and dearer than it need be
            self._costs.learn(len(done.rows), seconds)
        return 0.0

    def _apply(self, row: Row, result: RowRound, done: Round, now: float, break_even: float = 0.0) -> None:
        """Cuts the round's tokens where the text ends, counts what was really emitted, and sends it."""
        tokens = [*result.accepted, result.following]
        kept, reason = self._cut(row, tokens)
        emitted = tuple(tokens[:kept])
        stood = len(result.accepted)
        counted = RoundResult(
            drafted=result.drafted,
            accepted=min(stood, kept),
            emitted=kept,
            rejected=stood < result.drafted and kept > stood,
            draft_forwards=result.draft_forwards,
            draft_seconds=done.draft_seconds,
            verify_seconds=done.verify_seconds,
            break_even=break_even,
        )
        row.tokens.extend(emitted)
        stats = row.stats
        stats.counts.add(counted)
        gap = None if stats.last_token is None else now - stats.last_token
        if gap is None:
            stats.first_token, stats.first_chunk_tokens = now, kept
        else:
            stats.gaps.append(gap)
        stats.last_token = now
        self._observer.on_round(row.request, counted, gap)
        try:
            row.sink.on_tokens(Emission(emitted, tuple(i < stood for i in range(kept))))
        except Exception as error:
            row.end(FinishReason.ERROR, f"the receiver failed: {error}")
        if reason is not None:
            row.end(reason)

    def _cut(self, row: Row, tokens: list[int]) -> tuple[int, FinishReason | None]:
        """How many of `tokens` belong to the text, and whether it ends with them."""
        kept, reason = len(tokens), None
        if kept >= row.remaining:
            kept, reason = row.remaining, FinishReason.LENGTH
        for i, token in enumerate(tokens[:kept]):
            if token in self._eos:
                kept, reason = i + 1, FinishReason.STOP
                break
        if row.request.stop is not None:
            try:
                at = row.request.stop.feed(tokens[:kept])
            except Exception as error:
                row.end(FinishReason.ERROR, f"stop matching failed: {error}")
                at = None
            if at is not None:
                kept, reason = at, FinishReason.STOP
        return kept, reason

    # leaving

    def _all(self) -> list[Row]:
        newcomer = [] if self._newcomer is None else [self._newcomer]
        return [*self._rows, *newcomer, *self._waiting]

    def _reap(self) -> None:
        """Lets ended rows go, tells their receivers, and frees their caches."""
        ended = [row for row in self._all() if row.finish is not None]
        if not ended:
            return
        keep = [i for i, row in enumerate(self._rows) if row.finish is None]
        if len(keep) < len(self._rows):
            self._verifier.select(keep)
            self._rows = [self._rows[i] for i in keep]
            self._changed()
        if self._newcomer is not None and self._newcomer.finish is not None:
            self._verifier.drop(self._newcomer)
            self._newcomer = None
        self._waiting = deque(row for row in self._waiting if row.finish is None)
        for row in ended:
            for drafter in self._drafters.values():
                drafter.leave(row)
            self._tell(row)

    def _tell(self, row: Row) -> None:
        assert row.finish is not None
        row.stats.finished = self._clock()
        outcome = Outcome(row.finish, row.stats, row.degraded, row.error)
        self._observer.on_finish(row.request, outcome)
        try:
            row.sink.on_finish(outcome)
        except Exception as error:
            _log.warning("the receiver of request %s failed at its end", row.request.id, exc_info=error)

    # failure

    def _rebuild(self, error: Exception) -> None:
        """A round failed and no cache can be trusted: every row is taken in anew from its text, and goes on
        autoregressively. One whose own forward fails, or that failed before without a token since, ends in an error."""
        rows, self._rows = self._rows, []
        self._changed()
        newcomer, self._newcomer = self._newcomer, None
        self._verifier, self._drafters = self._make_verifier(), self._make_drafters()
        if newcomer is not None:
            self._waiting.appendleft(newcomer)
        for row in rows:
            row.degrade(f"a decode round failed: {error}")
            self._observer.on_verifier_error(row.request, str(error))
            if row.rebuilt_at == row.emitted:
                row.end(FinishReason.ERROR, f"decoding failed: {error}")
            row.rebuilt_at = row.emitted
            self._retake(row)
            if row.finish is not None:
                self._tell(row)

    def _retake(self, row: Row) -> None:
        """Takes one row in alone and joins it again: whoever fails here is the one that failed the round."""
        try:
            while row.finish is None and not self._take_in(row):
                pass
        except Exception as error:
            row.end(FinishReason.ERROR, f"decoding failed: {error}")
        if row.finish is None:
            self._join(row)
        else:
            self._verifier.drop(row)
