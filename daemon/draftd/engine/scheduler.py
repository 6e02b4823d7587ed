"""waiting → prefill → running → finished: what the engine thread does next.

One step is slices of prompts, for a share of a round's time (newcomers.py), and one decode round, so that a
cancellation or a deadline acts within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import mlx.core as mx

from draftd.core import DrafterName, FinishReason, Origin
from draftd.engine.admission import Admission
from draftd.engine.cache.base import left
from draftd.engine.decoders import Decoders
from draftd.engine.delivery import Delivery
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import DEEPEST, RoundCosts
from draftd.engine.depth.estimate import automatic
from draftd.engine.drafters.base import Drafter
from draftd.engine.observer import EngineObserver
from draftd.engine.prefilling import Newcomers
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import decode_round
from draftd.engine.targets.base import Verifier

_KEPT_PIECE = 128  # tokens
_RECENT = 0.25  # weight of the latest round in what rounds take of late
_TIDY_ROUNDS = 256  # MLX keeps freed buffers for reuse: let go of them now and then, as mlx-lm does


class Scheduler:
    """Owns the rows. Single-threaded: everything here runs on the engine thread."""

    def __init__(
        self,
        *,
        verifier: Callable[[], Verifier],
        drafters: Callable[[], Mapping[DrafterName, Drafter]],
        eos: frozenset[int],
        vocabulary: int,
        observer: EngineObserver,
        max_batch: int,
        prefill_chunk: int,
        prefill_slice_seconds: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        cancelled: Callable[[], Mapping[str, FinishReason]] = dict,
        depth: DepthControl | None = None,
        timer: Callable[[], float] = time.perf_counter,
        admission: Admission | None = None,
    ) -> None:
        """`prefill_slice_seconds`: the longest that rounds wait for a newcomer's prefill. `cancelled` is asked after
        each forward: a round's tokens are not sent to those who left during it. `depth` is what is known of costs and
        acceptance from before. `timer`: what rounds and slices are timed by. `admission`: None lets in as
        many as the batch takes."""
        self.decoders = Decoders(verifier, drafters, observer, self._renewed)
        self._delivery, self._vocabulary = Delivery(eos, observer), vocabulary
        self._observer, self._clock, self._cancelled = observer, clock, cancelled
        self._newcomers = Newcomers(
            self.decoders,
            self._delivery,
            prefill_chunk=prefill_chunk,
            slice_seconds=prefill_slice_seconds,
            clock=clock,
            timer=timer,
            cancelled=cancelled,
            drafted_for=lambda row: self.depth.worth_prefilling(row, self._rows, self.decoders.drafters),
            fits=self._fits,
        )
        self._admission = admission
        self._max_batch, self._chunk, self._timer = max_batch, prefill_chunk, timer
        self._took_in = False  # for a drafter, in the last step
        self._round_seconds = 0.0  # of late, without what newcomers took
        self.depth = depth or DepthControl(RoundCosts(), DEEPEST - 1)
        self._round_ended: float | None = None  # the last round's end, where the next follows at once
        self._rows: list[DecodeSequence] = []
        self._sampling: Sampling | None = None  # of the running rows; None when they have changed
        self._rounds = 0
        self._own = 0  # of the daemon's own requests in hand

    @property
    def idle(self) -> bool:
        return not (self._rows or self._newcomers.rows)

    @property
    def active(self) -> int:
        return len(self._rows) + len(self._newcomers.entering)

    @property
    def waiting(self) -> int:
        return len(self._newcomers.waiting)

    @property
    def own(self) -> int:
        """The daemon's own requests, running and waiting."""
        return self._own

    @property
    def clients(self) -> tuple[int, int]:
        """Clients' requests, running and waiting."""
        if not self._own:
            return self.active, self.waiting
        waiting = sum(row.request.origin is Origin.CLIENT for row in self._newcomers.waiting)
        return self.active + self.waiting - self._own - waiting, waiting

    @property
    def kv_cache_bytes(self) -> int:
        return self.decoders.nbytes

    @property
    def held_back(self) -> int:
        """Requests that wait for memory."""
        return self._newcomers.held_back

    def add(self, row: DecodeSequence) -> None:
        self._own += row.request.origin is not Origin.CLIENT
        self._newcomers.add(row)

    def end(self, ids: Mapping[str, FinishReason]) -> None:
        """Ends these requests, wherever they are. Unknown ids are ignored: they have ended already."""
        self._mark(ids)
        self._reap()

    def _mark(self, ids: Mapping[str, FinishReason]) -> None:
        if not ids:
            return
        for row in self._all():
            reason = ids.get(row.request.id)
            if reason is not None:
                row.end(reason)

    def step(self) -> None:
        """Deadlines, then slices of prompts, then one round."""
        now = self._clock()
        for row in self._all():
            if row.request.deadline is not None and now >= row.request.deadline:
                row.end(FinishReason.DEADLINE)
        self._reap()
        if self.depth.catching_up and not (
            self._took_in and self._newcomers.rows
        ):  # by turns: both would be two slices
            self._took_in = True
            self._take_in()
        else:
            self._took_in = False
            self._prefill()
        if self._rows:
            began = self._timer()
            self._round(ahead=not self._newcomers.entering)  # or a slice would wait for what was begun
            self._round_seconds += _RECENT * (self._timer() - began - self._round_seconds)
        joined = self._newcomers.joined()
        if joined:
            self._rows += joined
            self._changed()
        self._reap()

    def abort(self, reason: FinishReason, error: str = "") -> None:
        """Ends everything at once."""
        for row in self._all():
            row.end(reason, error)
        self._reap()

    # between rounds: what may draft

    def lower(self, most: int, drafters: Collection[DrafterName], reason: str) -> None:
        """Binds all rows in hand: at most `most` tokens a round, of one of `drafters` that is there."""
        allowed = self.decoders.offered.intersection(drafters)
        for row in self._all():
            before = row.home
            row.lower(most, allowed, reason)
            if before is not None and (row.home != before or row.degraded) and before in self.decoders.drafters:
                self.decoders.drafters[before].leave(row)

    def drafting(self, kind: DrafterName) -> list[DecodeSequence]:
        """The running rows that draft with it, but for those that it does not know: nobody drafts for them now."""
        drafter = self.decoders.drafters.get(kind)
        rows = [row for row in self._rows if row.drafter is not None and row.home == kind]
        return [row for row in rows if not automatic(row) or drafter is None or drafter.behind(row) is not None]

    def uses(self, kind: DrafterName) -> bool:
        """Whether a row that runs or is being taken in drafts with it."""
        return any(row.drafter is not None and row.home == kind for row in (*self._newcomers.entering, *self._rows))

    def interrupted(self) -> None:
        """Something else took time between two rounds: the next is not priced by it."""
        self._round_ended = None

    def _prefill(self) -> None:
        rows = len(self._rows)
        self._newcomers.step(self._max_batch - rows, self._round_seconds if rows else None)
        if self._newcomers.entering:
            self._round_ended = None

    def _fits(self, row: DecodeSequence, entering: Sequence[DecodeSequence]) -> bool:
        return self._admission is None or self._admission.fits(row, entering, self._rows, self.kv_cache_bytes)

    def _changed(self) -> None:
        """The running rows are others than before."""
        self._sampling = self._round_ended = None

    # one round

    def _round(self, ahead: bool) -> None:
        if self._sampling is None:
            self._sampling = Sampling([row.request.sampling for row in self._rows])
        before, drafters = self._round_ended, self.decoders.drafters
        plan = self.depth.plan(self._rows, drafters, started=self.decoders.verifier.pending, may_run_ahead=ahead)
        try:
            done = decode_round(self._rows, self._sampling, self.decoders, self._vocabulary, plan)
        except Exception as error:
            self._rebuild(error)
            return
        self._round_ended = self._timer()
        seconds = None if before is None else self._round_ended - before
        break_even = self.depth.learn(self._rows, plan, done, seconds)
        for row, message in done.drafter_errors:
            self.decoders.drafter_failed(row, message)
        self._mark(self._cancelled())
        now = self._clock()
        for row, result in zip(self._rows, done.rows, strict=True):
            if row.finish is None:
                self._delivery.tokens(row, result, done, now, break_even)
        self._keep()
        self._rounds += 1
        if self._rounds % _TIDY_ROUNDS == 0:
            mx.clear_cache()

    def _keep(self) -> None:
        """Keeps a running row's text in pieces, one in a round, so that there is little left to copy at its end."""
        for i, row in enumerate(self._rows):
            if len(row.tokens) - row.kept > _KEPT_PIECE and row.shares:
                row.kept = len(row.tokens)
                self.decoders.verifier.keep(i, row)
                return

    def _take_in(self) -> None:
        """A slice of a running row's text, for its drafter."""
        rows = self.depth.catching_up
        try:
            self.depth.catch_up(self.decoders.drafters, self._chunk)
        except Exception as error:
            for row in rows:
                self.decoders.drafter_failed(row, str(error))
        self.interrupted()

    def _renewed(self, kind: DrafterName) -> None:
        self.depth.drafter_replaced(kind, self._rows)

    # leaving

    def _all(self) -> list[DecodeSequence]:
        return [*self._rows, *self._newcomers.rows]

    def _reap(self) -> None:
        """Lets ended rows go, tells their receivers, and frees their caches."""
        ended = [row for row in self._rows if row.finish is not None]
        if ended:
            for i, row in enumerate(self._rows):
                if row.finish is not None and row.shares:
                    self.decoders.verifier.keep(i, row)
            keep = left(len(self._rows), [i for i, row in enumerate(self._rows) if row.finish is not None])
            self.decoders.verifier.select(keep)
            self._rows = [self._rows[i] for i in keep]
            self._changed()
        for row in [*ended, *self._newcomers.reap()]:
            self.decoders.leave(row)
            self._tell(row)

    def _tell(self, row: DecodeSequence) -> None:
        self.depth.finished(row)
        self._own -= row.request.origin is not Origin.CLIENT
        if row.home is not None:
            row.draft_with(row.home)
        self._delivery.end(row, self._clock())

    # failure

    def _rebuild(self, error: Exception) -> None:
        """A round failed and no cache can be trusted: every row is taken in anew from its text, and goes on
        autoregressively. One whose own forward fails, or that failed before without a token since, ends in an error."""
        rows, self._rows = self._rows, []
        self._changed()
        self.decoders.rebuild()
        self._newcomers.restart()
        for row in rows:
            row.degrade(f"a decode round failed: {error}")
            self._observer.on_verifier_error(row.request, str(error))
            if row.rebuilt_at == row.emitted:
                row.end(FinishReason.ERROR, f"decoding failed: {error}")
            row.rebuilt_at = row.emitted
            if self._newcomers.retake(row):
                self._rows.append(row)
            else:
                self._tell(row)
