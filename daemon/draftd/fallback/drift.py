"""Detects a fall in acceptance: a CUSUM against a baseline judges request by request, a floor judges whole windows.

Both use the acceptance of judged tokens, accepted / (accepted + rollbacks), which does not change with the block
length; accepted / drafted rises when blocks get shorter, so a fallback would look like a recovery. Each kind of text
has its own baseline, so a changed mix is not drift. Too few samples have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from draftd.core import DrafterName, WorkloadClass
from draftd.settings import FallbackSettings

WINDOWS = 2  # consecutive low windows for a verdict
# A ratio's denominator (judged tokens, or tokens of speculative steps), per request on average.
_REACHED_PER_REQUEST = 20
_LEAST_VARIANCE = 1e-4  # with a baseline of full acceptance, a single rejection must not be drift

StreamKey = tuple[DrafterName, WorkloadClass]  # each has its own baseline


@dataclass(frozen=True, slots=True)
class AcceptanceSample:
    """The result of one request or probe: accepted tokens, and speculative steps with a rejected token."""

    accepted: int
    rollbacks: int

    @property
    def reached(self) -> int:
        """Drafted tokens that the target judged: those after a rejected one are not judged."""
        return self.accepted + self.rollbacks

    @property
    def acceptance(self) -> float:
        """The acceptance; only defined if tokens were judged."""
        return self.accepted / self.reached


@dataclass(frozen=True, slots=True)
class Baseline:
    """The acceptance while nothing was wrong: its mean, and `spread`, the standard deviation between requests that is
    left after subtracting the error of counting few tokens."""

    mean: Annotated[float, Field(ge=0, le=1)]
    spread: Annotated[float, Field(ge=0, le=1)]

    @classmethod
    def learnt(cls, samples: Sequence[AcceptanceSample], mean: float) -> Baseline:
        """Returns the baseline of at least two samples, each with judged tokens."""
        between = sum((sample.acceptance - mean) ** 2 for sample in samples) / (len(samples) - 1)
        counting = sum(sample.acceptance * (1 - sample.acceptance) / sample.reached for sample in samples) / len(
            samples
        )
        return cls(mean, math.sqrt(max(0.0, between - counting)))

    def deviation(self, sample: AcceptanceSample) -> float:
        """Returns how far the sample is below the mean, in standard deviations of counting error and spread
        together."""
        counting = self.mean * (1 - self.mean) / sample.reached
        return (self.mean - sample.acceptance) / math.sqrt(self.spread**2 + counting + _LEAST_VARIANCE)


@dataclass(frozen=True, slots=True)
class CusumSettings:
    """`slack` and `limit`, in standard deviations: half of the smallest fall to detect, and the accumulated fall that
    counts as drift. With .5 and 8 a false alarm is expected once in about 19,000 samples, and a fall of one deviation
    is found in about 16 (Siegmund's approximations, Sequential Analysis, 1985)."""

    slack: float = 0.5
    limit: float = 8.0
    learn: int = 100  # samples to learn a baseline from: 61 would tell .05 from chance, with twice the false alarms
    largest: float = 2.0  # deviations that one sample may count: acceptance has a long lower tail, which is not drift
    least_reached: int = 4  # shorter samples are ignored


@dataclass(frozen=True, slots=True)
class Cusum:
    """A drift detector for one kind of text: one-sided, because rising acceptance is harmless (Page 1954).

    `requests`, `accepted` and `rollbacks` are sums since `level` was last 0, as its evidence; `last` is the time of the
    last sample."""

    baseline: Baseline | None = None  # from the file, or learnt once
    level: float = 0.0
    learning: tuple[AcceptanceSample, ...] = ()
    since: float = 0.0
    last: float = 0.0
    requests: int = 0
    accepted: int = 0
    rollbacks: int = 0

    def observe(
        self, sample: AcceptanceSample, settings: CusumSettings, at: float = 0.0, *, learn: bool = True
    ) -> Cusum:
        """Returns the next state. Ignores samples with too few judged tokens. Without `learn`, also ignores all samples
        while there is no baseline."""
        if sample.reached < settings.least_reached or (self.baseline is None and not learn):
            return self
        if self.baseline is None:
            return self._learn((*self.learning, sample), settings)
        step = min(self.baseline.deviation(sample), settings.largest) - settings.slack
        # The sum stays within twice the limit, so that recovery does not take longer after a longer fall.
        level = min(max(0.0, self.level + step), 2 * settings.limit)
        if level == 0.0:
            return Cusum(self.baseline, since=at, last=at)
        return Cusum(
            self.baseline,
            level,
            (),
            self.since if self.requests else at,
            at,
            self.requests + 1,
            self.accepted + sample.accepted,
            self.rollbacks + sample.rollbacks,
        )

    def reset(self, at: float = 0.0) -> Cusum:
        """Returns the state with the sum at 0 and the baseline kept."""
        return Cusum(self.baseline, learning=self.learning, since=at, last=at)

    def exceeds_limit(self, settings: CusumSettings) -> bool:
        return self.level > settings.limit

    def evidence(self, settings: CusumSettings) -> str:
        """Describes the drift; empty without a baseline or with a sum of 0."""
        assert self.baseline is not None
        acceptance = AcceptanceSample(self.accepted, self.rollbacks).acceptance
        return (
            f"acceptance {acceptance:.2f} in {self.requests} requests over {self.last - self.since:.0f} s, "
            f"baseline {self.baseline.mean:.2f}; CUSUM {self.level:.1f}, limit {settings.limit:g}"
        )

    def _learn(self, samples: tuple[AcceptanceSample, ...], settings: CusumSettings) -> Cusum:
        if len(samples) < settings.learn:
            return replace(self, learning=samples)
        return Cusum(Baseline.learnt(samples, sum(sample.acceptance for sample in samples) / len(samples)))


@dataclass(frozen=True, slots=True)
class Floor:
    """Judges whether a ratio is below `least`, in windows of time counted from `began`. `numerator`, `denominator`: of
    the present window. `last`, `last_requests`: the ratio and the requests of the last window that had enough requests
    for a verdict."""

    least: float
    began: float | None = None
    requests: int = 0
    numerator: float = 0.0
    denominator: float = 0.0
    below: int = 0  # consecutive low windows
    silent: int = 0  # windows without a verdict since then
    last: float = 0.0
    last_requests: int = 0

    def advance(self, now: float, settings: FallbackSettings) -> Floor:
        """Closes the windows that are over. A clock that jumps back restarts the window."""
        if self.began is None or now < self.began:
            return replace(self, began=now, requests=0, numerator=0.0, denominator=0.0)
        over = int((now - self.began) / settings.window_seconds)
        if not over:
            return self
        state = self
        for _ in range(min(over, WINDOWS + 2)):  # further silent ones change nothing
            state = state._close_window(settings)
        return replace(state, began=self.began + over * settings.window_seconds)

    def add(self, numerator: float, denominator: float) -> Floor:
        """Adds a request."""
        return replace(
            self,
            requests=self.requests + 1,
            numerator=self.numerator + numerator,
            denominator=self.denominator + denominator,
        )

    @property
    def low(self) -> bool:
        return self.below >= WINDOWS

    def evidence(self, shown: str, least: str, window: float) -> str:
        """Says why the ratio is low; empty if it is not. `shown`: the ratio in words; `least`: the bound."""
        if not self.low:
            return ""
        return f"{shown} {self.last_requests} requests, {least}, in {self.below} windows of {window:g} s in a row"

    def _close_window(self, settings: FallbackSettings) -> Floor:
        empty = replace(self, requests=0, numerator=0.0, denominator=0.0)
        least = settings.least_requests
        if self.requests < least or self.denominator < _REACHED_PER_REQUEST * least:
            silent = self.silent + 1
            return replace(empty, silent=silent, below=0 if silent >= WINDOWS else self.below)
        ratio = self.numerator / self.denominator
        below = self.below + 1 if ratio < self.least else 0
        return replace(empty, silent=0, below=below, last=ratio, last_requests=self.requests)
