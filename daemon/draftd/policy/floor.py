"""A ratio over fixed windows against a floor: acceptance, or measured speed-up, too low in several windows in a row.

It is slower than the CUSUM and needs no baseline. A window with too few samples neither adds to the row nor breaks it,
but a row that was not added to for as many windows as it takes is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftd.policy.drift import DriftVerdict, Sample


@dataclass(frozen=True, slots=True)
class FloorSettings:
    floor: float = 0.40
    window_seconds: float = 300.0
    least_requests: int = 10
    least_reached: int = 200  # what the ratio is over: drafted tokens that were reached, or tokens of drafted rounds
    windows: int = 2  # in a row


@dataclass(frozen=True, slots=True)
class Floor:
    """One ratio, its windows counted from `began`. `last` and `last_requests` are of the last window with a verdict."""

    began: float | None = None
    requests: int = 0
    numerator: float = 0.0
    denominator: float = 0.0
    below: int = 0  # windows in a row
    silent: int = 0  # windows without a verdict since
    judged: bool = False  # whether any window ever had a verdict since the last one that was silent too long
    last: float = 0.0
    last_requests: int = 0

    def advance(self, now: float, settings: FloorSettings) -> Floor:
        """Closes the windows that are over. A clock that jumps back begins the window anew."""
        if self.began is None or now < self.began:
            return replace(self, began=now, requests=0, numerator=0.0, denominator=0.0)
        over = int((now - self.began) / settings.window_seconds)
        if not over:
            return self
        state = self._closed(settings)
        for _ in range(min(over - 1, settings.windows + 1)):
            state = state._closed(settings)
        return replace(state, began=self.began + over * settings.window_seconds)

    def observe(self, sample: Sample) -> Floor:
        """Adds a request's acceptance."""
        return self.add(sample.accepted, sample.reached)

    def add(self, numerator: float, denominator: float) -> Floor:
        """Adds a request."""
        return Floor(
            self.began,
            self.requests + 1,
            self.numerator + numerator,
            self.denominator + denominator,
            self.below,
            self.silent,
            self.judged,
            self.last,
            self.last_requests,
        )

    def verdict(self, settings: FloorSettings) -> DriftVerdict:
        if self.below >= settings.windows:
            return DriftVerdict.DRIFTED
        return DriftVerdict.STABLE if self.judged else DriftVerdict.TOO_FEW_SAMPLES

    def _closed(self, settings: FloorSettings) -> Floor:
        empty = replace(self, requests=0, numerator=0.0, denominator=0.0)
        if self.requests < settings.least_requests or self.denominator < settings.least_reached:
            silent = self.silent + 1
            forgotten = silent >= settings.windows
            return replace(
                empty, silent=silent, below=0 if forgotten else self.below, judged=self.judged and not forgotten
            )
        ratio = self.numerator / self.denominator
        below = self.below + 1 if ratio < settings.floor else 0
        return replace(empty, silent=0, below=below, judged=True, last=ratio, last_requests=self.requests)
