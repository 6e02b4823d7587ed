"""What a round costs against an autoregressive one: measured on this machine, never assumed.

The same figure answers what speculation is worth now and what acceptance it would need to be worth anything. Learnt
from the rounds that are decoded autoregressively, anyway or to know their cost (exploration.py); a calibration at load
gives the first values.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

_GAIN, _RARE_GAIN = 0.1, 0.5  # of each new round in the moving average, and of one that has to stand for many
_CLAMP = 0.25  # a round moves it as if it were at most this far off: a stall is no new price


class RoundCosts:
    """Seconds of an autoregressive round by batch size. Engine thread only."""

    def __init__(self, calibrated: Mapping[int, float] | None = None) -> None:
        """`calibrated`: seconds by batch size, as measured at load."""
        self._seconds = dict(calibrated or {})

    def learn(self, batch: int, seconds: float, *, rare: bool = False) -> None:
        """One autoregressive round of `batch` rows took `seconds`. `rare`: the only one for a while."""
        known = self._seconds.get(batch)
        if known is None:
            self._seconds[batch] = seconds
        else:
            bounded = min(max(seconds, known * (1 - _CLAMP)), known * (1 + _CLAMP))
            self._seconds[batch] = known + (_RARE_GAIN if rare else _GAIN) * (bounded - known)

    def autoregressive(self, batch: int) -> float | None:
        """Seconds of a round of `batch` rows: measured, on the line between two neighbours that were, or the nearest's.
        None before anything was measured."""
        if batch in self._seconds or not self._seconds:
            return self._seconds.get(batch)
        sizes = sorted(self._seconds)
        for low, high in pairwise(sizes):
            if low < batch < high:
                share = (batch - low) / (high - low)
                return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])
        return self._seconds[sizes[0] if batch < sizes[0] else sizes[-1]]

    def break_even(self, batch: int, seconds: float) -> float:
        """Accepted tokens that make a drafted round of `seconds` just as fast as autoregressive decoding.

        A round emits one token more than it accepts, an autoregressive one a single token: so seconds / T - 1, with T
        the autoregressive round's seconds at this batch size (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8,
        with both costs measured). 0 while T is not known, and at least 0.
        """
        plain = self.autoregressive(batch)
        return max(0.0, seconds / plain - 1.0) if plain else 0.0
