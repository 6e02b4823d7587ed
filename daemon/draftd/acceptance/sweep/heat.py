"""A machine that throttles is waited for: what it measures meanwhile is heat."""

from __future__ import annotations

import time
from collections.abc import Callable

from draftd.acceptance.samples import Sample

_HOT = ("heavy", "trapping", "sleeping")
_LOOK_SECONDS = 1.0


class Heat:
    """Hears of each sample, on any thread. Once a machine did not cool within `patience_seconds` it is waited for no
    more, until it was cool again: a run of a machine that is always hot ends too, and its samples say that it was."""

    def __init__(
        self,
        patience_seconds: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience, self._clock, self._sleep = patience_seconds, clock, sleep
        self._level: str | None = None
        self._given_up = False

    def heard(self, sample: Sample) -> None:
        if sample.thermal is not None:
            self._level = sample.thermal

    def wait(self, say: Callable[[str], None]) -> float:
        """Until the machine is cooler than heavy, or patience ends. Gives how long that took."""
        if self._level not in _HOT:
            self._given_up = False
            return 0.0
        began = self._clock()
        while not self._given_up and (level := self._level) in _HOT:
            waited = self._clock() - began
            if waited >= self._patience:
                self._given_up = True
                break
            say(f"waiting for the machine to cool: thermal level {level}, {self._patience - waited:.0f} s at most")
            self._sleep(min(_LOOK_SECONDS, self._patience - waited))
        return self._clock() - began
