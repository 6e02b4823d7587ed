"""waiting → prefill → running → finished: what the engine thread does next.

One step is at most one prefill chunk and one decode round, so that a newcomer never stalls the running rows for longer
than a chunk, and a cancellation or a deadline acts within a round. A prompt's last chunk gives the first token of its
answer: it counts as a round without a draft.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

import mlx.core as mx

from draftd.core import DrafterKind, FinishReason, Origin
from draftd.engine.batch import Row
from draftd.engine.costs import RoundCosts
from draftd.engine.delivery import Delivery
from draftd.engine.drafting import Drafter
from draftd.engine.exploration import Exploration
from draftd.engine.observer import EngineObserver
from draftd.engine.round import Round, RowRound, decode_round
from draftd.engine.sampling import Sampling
from draftd.engine.verification import Verifier

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
        exploration: Exploration | None = None,
    ) -> None:
        """`cancelled` is asked after each forward: a round's tokens are not sent to those who left during it. `costs`
        are what is known of rounds' costs from before."""
        self._make_verifier, self._make_drafters = verifier, drafters
        self._verifier, self._drafters = verifier(), dict(drafters())
        self._barred: frozenset[DrafterKind] = frozenset()  # there, but newcomers no longer get them
        self._delivery, self._vocabulary = Delivery(eos, observer), vocabulary
        self._observer, self._clock, self._cancelled = observer, clock, cancelled
        self._max_batch, self._chunk = max_batch, prefill_chunk
        self._costs, self._exploration = costs or RoundCosts(), exploration or Exploration()
        self._round_ended: float | None = None  # the last round's end, where the next follows at once
        self._waiting: deque[Row] = deque()
        self._newcomer: Row | None = None
        self._taken_in = False  # the newcomer's text, by the target
        self._rows: list[Row] = []
        self._sampling: Sampling | None = None  # of the running rows; None when they have changed
        self._rounds = 0
        self._own = 0  # of the daemon's own requests in hand

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
    def own(self) -> int:
        """The daemon's own requests, running and waiting."""
        return self._own

    @property
    def clients(self) -> tuple[int, int]:
        """Clients' requests, running and waiting."""
        if not self._own:
            return self.active, self.waiting
        waiting = sum(row.request.origin is Origin.CLIENT for row in self._waiting)
        return self.active + self.waiting - self._own - waiting, waiting

    @property
    def kv_cache_bytes(self) -> int:
        return self._verifier.nbytes + sum(d.nbytes for d in self._drafters.values())

    def add(self, row: Row) -> None:
        self._own += row.request.origin is not Origin.CLIENT
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

    # between rounds: what may draft

    def lower(self, most: int, drafters: Collection[DrafterKind], reason: str) -> None:
        """Binds all rows in hand: at most `most` tokens a round, of one of `drafters` that is there."""
        there = self._drafters.keys() - self._barred
        allowed = there.intersection(drafters)
        for row in self._all():
            before = row.drafter
            row.lower(most, allowed, reason)
            if before is not None and row.drafter is not before and before in self._drafters:
                self._drafters[before].leave(row)

    def bar(self, drafters: frozenset[DrafterKind]) -> None:
        """Newcomers no longer get these drafters; rows that have them go on."""
        self._barred = drafters

    def drafting(self, kind: DrafterKind) -> list[Row]:
        """The running rows that draft with it."""
        return [row for row in self._rows if row.drafter is kind]

    def uses(self, kind: DrafterKind) -> bool:
        """Whether a row that runs or is being taken in drafts with it."""
        newcomer = self._newcomer is not None and self._newcomer.drafter is kind
        return newcomer or any(row.drafter is kind for row in self._rows)

    def put(self, kind: DrafterKind, drafter: Drafter) -> None:
        """From the next round on this one drafts; it must know the rows that do so."""
        self.remove(kind)
        self._drafters[kind] = drafter

    def remove(self, kind: DrafterKind) -> None:
        """Forgets a drafter that no row uses."""
        drafter = self._drafters.pop(kind, None)
        if drafter is not None:
            drafter.close()

    def interrupted(self) -> None:
        """Something else took time between two rounds: the next is not priced by it."""
        self._round_ended = None

    # prefill

    def _prefill(self) -> bool:
        """One chunk of the newcomer's prompt, the target's first, then its drafter's; True when it may join."""
        if self._newcomer is None:
            if not self._waiting or len(self._rows) >= self._max_batch:
                return False
            self._newcomer, self._taken_in = self._waiting.popleft(), False
            self._newcomer.stats.scheduled = self._clock()
            kind = self._newcomer.drafter
            if kind is not None and (kind not in self._drafters or kind in self._barred):
                self._newcomer.degrade(f"the {kind.value.replace('_', ' ')} is not loaded")
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
            self._delivery.tokens(row, result, Round([result], 0.0, seconds, []), now)
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
        drafting = any(row.drafter is not None for row in self._rows)
        plain = drafting and self._exploration.plain(self._rows, self._verifier.pending)
        ahead = ahead and (not plain or self._exploration.ahead)
        try:
            done = decode_round(
                self._rows, self._sampling, self._drafters, self._verifier, self._vocabulary, ahead, plain
            )
        except Exception as error:
            self._rebuild(error)
            return
        self._round_ended = time.perf_counter()
        break_even = self._price(done, self._round_ended - started, drafting)
        for row, message in done.drafter_errors:
            self._drafter_failed(row, message)
        self._mark(self._cancelled())
        now = self._clock()
        for row, result in zip(self._rows, done.rows, strict=True):
            if row.finish is None:
                self._delivery.tokens(row, result, done, now, break_even)
        self._rounds += 1
        if self._rounds % _TIDY_ROUNDS == 0:
            mx.clear_cache()

    def _price(self, done: Round, seconds: float, drafting: bool) -> float:
        """What the round, from the last one's end to its own, would have had to accept; learns from a plain one."""
        size = len(done.rows)
        if self._exploration.told(seconds, drafting, self._verifier.pending):
            self._costs.learn(size, seconds, rare=drafting)
        return self._costs.break_even(size, seconds) if any(result.drafted for result in done.rows) else 0.0

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
        self._own -= row.request.origin is not Origin.CLIENT
        self._delivery.end(row, self._clock())

    # failure

    def _rebuild(self, error: Exception) -> None:
        """A round failed and no cache can be trusted: every row is taken in anew from its text, and goes on
        autoregressively. One whose own forward fails, or that failed before without a token since, ends in an error."""
        rows, self._rows = self._rows, []
        self._changed()
        newcomer, self._newcomer = self._newcomer, None
        for drafter in self._drafters.values():
            drafter.close()
        self._verifier, self._drafters = self._make_verifier(), dict(self._make_drafters())
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
