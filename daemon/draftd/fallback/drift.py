"""Has acceptance fallen? A CUSUM against a baseline judges it request by request; a floor judges whole windows.

Both judge the acceptance of a drafted token that is reached, accepted / (accepted + rollbacks), because it does not
move when a block is shortened: accepted / drafted rises then, and a fallback would look like a recovery. Each kind of
text has its own baseline, for another mix of them is no drift. Too few samples is a verdict of its own, and moves
nothing."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

from draftd.core import DrafterName, WorkloadClass


class DriftVerdict(enum.StrEnum):
    STABLE = "stable"
    DRIFTED = "drifted"
    TOO_FEW_SAMPLES = "too_few_samples"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one request, or a probe, showed: accepted tokens, and speculative steps that rejected one."""

    accepted: int
    rollbacks: int

    @property
    def reached(self) -> int:
        """Drafted tokens that the target judged: those after a rejected one were not reached."""
        return self.accepted + self.rollbacks

    @property
    def acceptance(self) -> float:
        """Only where something was reached."""
        return self.accepted / self.reached


@dataclass(frozen=True, slots=True)
class Baseline:
    """What acceptance was while all was well: its mean, and the spread between requests beyond that of counting."""

    mean: float
    spread: float

    def deviation(self, sample: Sample) -> float:
        """How far below the mean, in standard deviations: those of a sample of its size, and those between requests."""
        counting = self.mean * (1 - self.mean) / sample.reached
        return (self.mean - sample.acceptance) / math.sqrt(self.spread**2 + counting + _LEAST_VARIANCE)


_LEAST_VARIANCE = 1e-4  # a baseline of nothing but acceptances must not make a single rejection a catastrophe


@dataclass(frozen=True, slots=True)
class CusumSettings:
    """`slack` and `limit` are in standard deviations: half the fall worth noticing, and how much of it, added up, is
    drift. With .5 and 8 a false alarm is to be expected once in about 19,000 samples, and a fall of one deviation is
    found in about 16 (Siegmund's approximations, Sequential Analysis, 1985)."""

    slack: float = 0.5
    limit: float = 8.0
    learn: int = 100  # samples that a baseline is learnt from: 61 tell .05 from chance, and twice the false alarms
    largest: float = 2.0  # deviations that one sample counts for: acceptance has a long lower tail, which is no drift
    least_reached: int = 4  # a shorter sample says nothing


@dataclass(frozen=True, slots=True)
class Cusum:
    """One kind of text's drift detector: one-sided, since acceptance that rises is no harm (Page 1954)."""

    baseline: Baseline | None = None  # frozen, or learnt once
    level: float = 0.0
    count: int = 0  # while learning: samples, their mean, and the sum of squared deviations from it
    mean: float = 0.0
    squares: float = 0.0
    counting: float = 0.0  # the variance that counting alone would give them, added up

    def observe(self, sample: Sample, settings: CusumSettings) -> Cusum:
        """The next state. A sample too short to say anything changes nothing."""
        if sample.reached < settings.least_reached:
            return self
        if self.baseline is None:
            return self._learn(sample, settings)
        step = min(self.baseline.deviation(sample), settings.largest) - settings.slack
        # The sum stays within twice the limit: what it takes to come back must not grow with what was lost.
        return replace(self, level=min(max(0.0, self.level + step), 2 * settings.limit))

    def verdict(self, settings: CusumSettings) -> DriftVerdict:
        if self.baseline is None:
            return DriftVerdict.TOO_FEW_SAMPLES
        return DriftVerdict.DRIFTED if self.level > settings.limit else DriftVerdict.STABLE

    def reset(self) -> Cusum:
        """The sum begins anew; the baseline stays."""
        return replace(self, level=0.0)

    def _learn(self, sample: Sample, settings: CusumSettings) -> Cusum:
        """Welford's mean and variance, less what counting explains."""
        count = self.count + 1
        off = sample.acceptance - self.mean
        mean = self.mean + off / count
        squares = self.squares + off * (sample.acceptance - mean)
        share = sample.acceptance
        counting = self.counting + share * (1 - share) / sample.reached
        if count < settings.learn:
            return replace(self, count=count, mean=mean, squares=squares, counting=counting)
        between = max(0.0, squares / (count - 1) - counting / count)
        return Cusum(baseline=Baseline(mean, math.sqrt(between)))


StreamKey = tuple[DrafterName, WorkloadClass]  # what has a baseline of its own


@dataclass(frozen=True, slots=True)
class Stream:
    """`requests`, `accepted` and `rollbacks` are sums since the detector was last at 0: what it rests on.
    `last` is the time of the last sample."""

    cusum: Cusum
    since: float = 0.0
    last: float = 0.0
    requests: int = 0
    accepted: int = 0
    rollbacks: int = 0

    def observe(self, at: float, sample: Sample, settings: CusumSettings, learn: bool) -> Stream:
        """The next state. Without `learn` a detector without a baseline is left as it is."""
        if self.cusum.baseline is None and not learn:
            return self
        cusum = self.cusum.observe(sample, settings)
        if cusum is self.cusum:
            return self
        if cusum.level == 0.0:
            return Stream(cusum, at, at)
        return Stream(
            cusum,
            self.since if self.requests else at,
            at,
            self.requests + 1,
            self.accepted + sample.accepted,
            self.rollbacks + sample.rollbacks,
        )

    def stepped(self, now: float) -> Stream:
        """The sum begins anew; what was learnt stays."""
        return Stream(self.cusum.reset(), now, now)

    def drifted(self, now: float, settings: CusumSettings, stale_after: float) -> bool:
        """A kind of text that is not asked for any more demands nothing: it could never be seen to recover."""
        return self.cusum.verdict(settings) is DriftVerdict.DRIFTED and now - self.last <= stale_after

    def evidence(self, settings: CusumSettings) -> str:
        """Only where it has a baseline and a sum above nothing."""
        baseline = self.cusum.baseline
        assert baseline is not None
        reached = Sample(self.accepted, self.rollbacks)
        return (
            f"acceptance {reached.acceptance:.2f} in {self.requests} requests over {self.last - self.since:.0f} s, "
            f"baseline {baseline.mean:.2f}; CUSUM {self.cusum.level:.1f}, limit {settings.limit:g}"
        )


@dataclass(frozen=True, slots=True)
class FloorSettings:
    floor: float = 0.40
    window_seconds: float = 300.0
    least_requests: int = 10
    least_reached: int = 200  # what the ratio is over: drafted tokens that were reached, or tokens of speculative steps
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
