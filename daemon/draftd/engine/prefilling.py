"""waiting → prefill: requests that do not decode yet.

A step is one slice of one prompt, so that a newcomer never stalls the running rows for longer (slices.py), and, where
that leaves time, what is left of others as far as it fits whole: short prompts that come together join together. A
prompt's last slice gives the first token of its answer: it counts as a round without a draft.

A few newcomers are taken in at a time, and each slice goes to the one with the least left, so that a short prompt need
not wait for a long one. One that was passed over `_PATIENCE` times comes first: each has at least one slice in every
`_PATIENCE + MOST_ENTERING`, whatever else arrives. Who there is no memory for waits (admission.py)."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from draftd.core import DrafterName, FinishReason
from draftd.engine.decoders import Decoders
from draftd.engine.delivery import Delivery
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import Round, RowRound

_LEAST = 16  # tokens: a forward of fewer costs about as much


_SHARE = 0.7  # of a round: with a slice before every round, what a row waits for its next tokens does not double


_FASTER, _SLOWER = 2.0, 0.5  # most that one measurement changes the rate by


_WEIGHT = 0.5  # of the newest measurement: attention makes later slices of a prompt dearer than earlier ones


class Slices:
    """Of one prompt, for one model. The rate is of slices, not of whole chunks: a forward has a cost of its own, which
    weighs more the fewer tokens there are."""

    def __init__(self, chunk: int, seconds: float) -> None:
        """Never more than `chunk` tokens; `seconds` is the longest that a slice may take while rows run."""
        self._chunk, self._seconds = chunk, seconds
        self._rate: float | None = None  # tokens a second
        self.taken = 0  # slices that were learnt from

    def begun(self) -> Slices:
        """Of another prompt, which begins with what is known here."""
        another = Slices(self._chunk, self._seconds)
        another._rate = self._rate
        return another

    def tokens(self, round_seconds: float | None) -> int:
        """The next slice, where the running rows' rounds take so long of late; None where no row runs."""
        if round_seconds is None:
            return self._chunk
        if self._rate is None:
            return min(_LEAST, self._chunk)
        return max(min(_LEAST, self._chunk), min(int(self._rate * self.limit(round_seconds)), self._chunk))

    def fit(self, tokens: int, seconds: float) -> bool:
        """Whether so many can be taken in at once in that time; fewer than `_LEAST` take as long as these."""
        return self._rate is not None and tokens <= self._chunk and max(tokens, _LEAST) <= self._rate * seconds

    def limit(self, round_seconds: float) -> float:
        """Seconds that a slice may take."""
        return min(self._seconds, _SHARE * round_seconds)

    def took(self, tokens: int, seconds: float) -> None:
        """Learns what a slice between two rounds took."""
        if seconds <= 0:
            return
        self.taken += 1
        measured = tokens / seconds
        if self._rate is None:
            self._rate = measured
            return
        measured = max(self._rate * _SLOWER, min(measured, self._rate * _FASTER))
        self._rate += _WEIGHT * (measured - self._rate)


_log = logging.getLogger(__name__)


MOST_ENTERING = 4  # prompts being taken in at a time; the last place is for one that is shorter than what is left


_PATIENCE = 4  # slices in a row that others may have


_OVERTAKEN = 16  # times that whoever there is no memory for is, by others


_LOOKED_AT = 8  # of those who wait for memory, in a step


_LONG = 256  # tokens: to copy so many into the running rows' caches takes about as long as a slice


@dataclass(slots=True, eq=False)
class _Entering:
    """A row whose prompt is being taken in."""

    row: DecodeSequence
    left: int  # tokens that the target has not taken in
    passed: int = 0  # slices that others had since it had one
    slices: dict[DrafterName | None, Slices] = field(default_factory=dict)  # by who takes it in; None is the target


class Newcomers:
    """Owns the rows until they join the running ones. Engine thread only."""

    def __init__(
        self,
        decoders: Decoders,
        delivery: Delivery,
        *,
        prefill_chunk: int,
        slice_seconds: float,
        clock: Callable[[], float],
        timer: Callable[[], float],
        cancelled: Callable[[], Mapping[str, FinishReason]],
        drafted_for: Callable[[DecodeSequence], bool] = lambda row: True,
        fits: Callable[[DecodeSequence, Sequence[DecodeSequence]], bool] = lambda row, entering: True,
    ) -> None:
        """`slice_seconds`: the longest that running rows wait for a slice. `timer`: what slices are timed by.
        `drafted_for`: whether a row that is ready to join is worth taking into its drafter's caches first. `fits`:
        whether there is memory for a row beside those that are being taken in."""
        self._decoders, self._delivery, self._chunk = decoders, delivery, prefill_chunk
        self._drafted_for, self._fits = drafted_for, fits
        self._clock, self._timer, self._cancelled = clock, timer, cancelled
        self._slice_seconds = slice_seconds
        self._first: dict[DrafterName | None, Slices] = {}  # of prompts' first slices: what the next prompt begins with
        self._waiting: deque[DecodeSequence] = deque()
        self._entering: list[_Entering] = []  # in the order in which they came
        self._ready: list[DecodeSequence] = []  # to join after the round
        self._joined = False  # a long one has joined since the last step
        self._overtaken = 0  # times that the first of those who wait was, for want of memory
        self.held_back = 0  # who might begin if there were memory for them

    @property
    def waiting(self) -> list[DecodeSequence]:
        """Those of whom nothing has been taken in."""
        return list(self._waiting)

    @property
    def entering(self) -> list[DecodeSequence]:
        """Those whose prompts are being taken in."""
        return [newcomer.row for newcomer in self._entering]

    @property
    def rows(self) -> list[DecodeSequence]:
        return [*self.entering, *self._waiting]

    def add(self, row: DecodeSequence) -> None:
        self._waiting.append(row)

    def step(self, room: int, round_seconds: float | None) -> None:
        """A slice, of rows that wait where there is `room` for that many more, and others that fit beside it. What the
        running rows' rounds take bounds it; None where no row runs."""
        self._enter(room)
        if not self._entering:
            return
        if self._joined and round_seconds is not None:  # that was a slice's worth of work
            self._joined = False
            return
        began = self._timer()
        self._turn(self._next(), round_seconds)
        while round_seconds is not None:
            fitting = self._fitting(round_seconds, self._timer() - began)
            if fitting is None:
                break
            self._turn(fitting, round_seconds)

    def joined(self) -> list[DecodeSequence]:
        """The rows that are ready, which now run; none that has ended since."""
        ready, self._ready = [row for row in self._ready if row.finish is None], []
        self._entering = [newcomer for newcomer in self._entering if newcomer.row not in ready]
        for row in ready:
            self._decoders.verifier.join(row)
            self._joined = self._joined or len(row.tokens) >= _LONG
        return ready

    def retake(self, row: DecodeSequence) -> bool:
        """Takes a row that ran in alone, at once; whether it runs again. Whoever fails here failed its round."""
        try:
            while row.finish is None and not self._take_in(row, self._chunk):
                pass
        except Exception as error:
            row.end(FinishReason.ERROR, f"decoding failed: {error}")
        if row.finish is None:
            self._decoders.verifier.join(row)
        else:
            self._decoders.verifier.drop(row)
        return row.finish is None

    def restart(self) -> None:
        """The caches are gone: what had been taken in of newcomers is taken in again."""
        self._waiting.extendleft(reversed(self.entering))
        self._entering, self._ready = [], []

    def reap(self) -> list[DecodeSequence]:
        """Lets ended rows go; returns them."""
        ended = [row for row in self.rows if row.finish is not None]
        for row in ended:
            self._decoders.verifier.drop(row)
        self._entering = [newcomer for newcomer in self._entering if newcomer.row.finish is None]
        self._waiting = deque(row for row in self._waiting if row.finish is None)
        return ended

    # who is next

    def _enter(self, room: int) -> None:
        """Lets those who wait begin: in their order, but for the last place, and for those there is no memory for. The
        first of these is overtaken a bounded number of times; then all wait for it."""
        held_back = 0
        for row in list(self._waiting):
            if len(self._entering) >= min(room, MOST_ENTERING) or held_back >= _LOOKED_AT:
                break
            if len(self._entering) == MOST_ENTERING - 1:
                least = min(newcomer.left for newcomer in self._entering)
                if len(row.tokens) >= least:
                    continue
            first = row is self._waiting[0]
            if not self._fits(row, self.entering):
                held_back += 1
                if first and self._overtaken >= _OVERTAKEN:
                    break
                continue
            self._overtaken = 0 if first else self._overtaken + bool(held_back)
            self._waiting.remove(row)
            self._begin(row)
        self._hold_back(held_back)

    def _hold_back(self, rows: int) -> None:
        if bool(rows) != bool(self.held_back):
            _log.info("requests wait for memory" if rows else "no request waits for memory any more")
        self.held_back = rows

    def _begin(self, row: DecodeSequence) -> None:
        row.stats.scheduled = self._clock()
        kind = row.drafter
        if kind is not None and kind not in self._decoders.offered:
            row.degrade(f"the {kind.replace('_', ' ')} is not loaded")
        self._entering.append(_Entering(row, left=len(row.tokens)))

    def _next(self) -> _Entering:
        """Whoever was passed over too often, the longest ago first; else who has the least left. FIFO among equals."""
        most = max(self._entering, key=lambda newcomer: newcomer.passed)
        if most.passed >= _PATIENCE:
            return most
        return min(self._entering, key=lambda newcomer: newcomer.left)

    def _fitting(self, round_seconds: float, spent: float) -> _Entering | None:
        """Who has the least left, where that fits whole into what `spent` has left of a slice's time."""
        others = [one for one in self._entering if one.row not in self._ready and one.row.finish is None]
        least = min(others, key=lambda newcomer: newcomer.left, default=None)
        if least is None:
            return None
        slices = self._slices_of(least, None if least.left else least.row.drafter)
        left = least.left or len(least.row.tokens)  # a drafter takes all of it in
        return least if slices.fit(left, slices.limit(round_seconds) - spent) else None

    # taking in

    def _turn(self, chosen: _Entering, round_seconds: float | None) -> None:
        """A slice of the target's, or once that has all of it the drafter's."""
        for newcomer in self._entering:
            newcomer.passed = 0 if newcomer is chosen else newcomer.passed + 1
        row = chosen.row
        worked = bool(chosen.left)
        if worked:
            try:
                self._slice(chosen, round_seconds)
            except Exception as error:
                row.end(FinishReason.ERROR, f"prefill failed: {error}")
            if row.finish is not None or chosen.left:
                return
        if row.drafter is not None and self._drafted_for(row):
            if worked and round_seconds is not None:  # the drafter's is another
                return
            if not self._drafter_ready(chosen, row.drafter, round_seconds):
                return
        self._ready.append(row)

    def _slice(self, newcomer: _Entering, round_seconds: float | None) -> None:
        """One slice of the target's."""
        row = newcomer.row
        size, first = self._slices_of(newcomer, None).tokens(round_seconds), newcomer.left == len(row.tokens)
        began = self._timer()
        if self._take_in(row, size):
            newcomer.left = 0
            return
        if round_seconds is not None:
            self._took(newcomer, None, size, self._timer() - began)
        found = row.stats.cached_tokens if first else 0  # in the prefix cache, which the first slice looks into
        newcomer.left = max(1, newcomer.left - found - size)

    def _drafter_ready(self, newcomer: _Entering, kind: DrafterName, round_seconds: float | None) -> bool:
        """One slice of the drafter's; True where there is none left, or where it fails."""
        row, size, began = newcomer.row, self._slices_of(newcomer, kind).tokens(round_seconds), self._timer()
        try:
            done = self._decoders.drafters[kind].prefill(row, size)
        except Exception as error:
            self._decoders.drafter_failed(row, str(error))
            return True
        if not done and round_seconds is not None:
            self._took(newcomer, kind, size, self._timer() - began)
        return done

    def _slices_of(self, newcomer: _Entering, kind: DrafterName | None) -> Slices:
        """A prompt's own: the more of it is taken in, the more a token of the rest takes."""
        if kind not in newcomer.slices:
            first = self._first.setdefault(kind, Slices(self._chunk, self._slice_seconds))
            newcomer.slices[kind] = first.begun()
        return newcomer.slices[kind]

    def _took(self, newcomer: _Entering, kind: DrafterName | None, tokens: int, seconds: float) -> None:
        slices = newcomer.slices[kind]
        if slices.taken == 0:
            self._first[kind].took(tokens, seconds)
        slices.took(tokens, seconds)

    def _take_in(self, row: DecodeSequence, size: int) -> bool:
        """Up to `size` tokens, by the target; True once the text is taken in, and the token that follows is sent."""
        started = time.perf_counter()
        token = self._decoders.verifier.prefill(row, size)
        if token is None:
            return False
        seconds = time.perf_counter() - started
        reason = self._cancelled().get(row.request.id)
        if reason is not None:
            row.end(reason)
        else:
            now = self._clock()
            row.stats.prefilled = row.stats.prefilled or now
            result = RowRound(0, [], token, 0)
            self._delivery.tokens(row, result, Round([result], 0.0, seconds, []), now)
        return True
