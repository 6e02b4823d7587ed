"""Computes the drift detector's operating curve: false alarms against the delay until a fall of acceptance is found.

Simulates many streams of requests, each compared with a baseline that is known exactly. A delay is the median number of
requests from the fall to the alarm. Two detectors stand beside this CUSUM: one with a baseline learned from the first
requests, as a daemon without a saved one has it, and the plain comparison of a short window with a long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.simulate.traffic import SPREAD, STEPS, Floats
from draftd.fallback.drift import CusumSettings

NORM, FALLS = 0.7, (0.6, 0.5)
DEPTH = 4
SLACKS = (0.25, 0.5, 0.75)
LIMITS = tuple(float(h) for h in np.arange(2.0, 16.5, 0.5))
RATIOS = tuple(float(r) for r in np.arange(0.66, 0.93, 0.03))
SHORT_WINDOW, LONG_WINDOW, HELD = 30, 300, 5
ALTERNATIVE = (0.25, 13.0)  # (slack, limit): as fast as the default for the deeper fall, twice as fast for the other
STREAMS, QUIET, FALLEN = 400, 12_000, 1500  # streams; requests of each without a fall, and after one


@dataclass(frozen=True, slots=True)
class Point:
    """A detector with one setting: its false alarms in 10,000 requests, and its delay in requests for each of `FALLS`,
    None if most streams never alarmed."""

    setting: float
    false_per_10k: float
    delays: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Operating curves. `cusum` has a point for each of `LIMITS`, by slack. `windows` has a point for each of `RATIOS`:
    the two-window detector alarms when the short window's mean divided by the long one's is lower. `learnt` and
    `alternative_learnt` are the CUSUM's default and alternative setting with a baseline learned from the first
    requests; in `cusum` the baseline is known exactly. `slack` and `limit` are the default setting."""

    cusum: dict[float, list[Point]]
    learnt: Point
    alternative_learnt: Point
    windows: list[Point]
    slack: float
    limit: float

    @property
    def default(self) -> Point:
        return self._at(self.slack, self.limit)

    @property
    def alternative(self) -> Point:
        return self._at(*ALTERNATIVE)

    def document(self) -> dict[str, object]:
        """Returns JSON data: the CUSUM's default and alternative setting, each with the exactly known and the learned
        baseline, and the two-window detector whose rate of false alarms is nearest to the default's."""
        nearest = min(self.windows, key=lambda point: abs(point.false_per_10k - self.default.false_per_10k))
        return {
            "slack": self.slack,
            "limit": self.limit,
            "falls": [[NORM, fallen] for fallen in FALLS],
            "default": asdict(self.default),
            "learnt_baseline": asdict(self.learnt),
            "alternative": asdict(self.alternative),
            "alternative_learnt_baseline": asdict(self.alternative_learnt),
            "two_windows": asdict(nearest),
        }

    def _at(self, slack: float, limit: float) -> Point:
        return next(point for point in self.cusum[slack] if point.setting == limit)


@dataclass(frozen=True, slots=True)
class Streams:
    """Simulated requests, as arrays of shape (requests, streams): acceptance, and the drafted tokens over which it was
    counted."""

    acceptance: Floats
    reached: Floats


def measure(seed: int, streams: int = STREAMS, quiet: int = QUIET, fallen: int = FALLEN) -> Curve:
    rng, settings = np.random.default_rng(seed), CusumSettings()
    norm = _drawn(rng, NORM, 2000, 100)
    mean, spread = _baseline(norm.acceptance.ravel()[:, None], norm.reached.ravel()[:, None])
    calm = _drawn(rng, NORM, quiet, streams)
    after = [_drawn(rng, level, fallen, streams) for level in FALLS]
    cusum = {}
    for slack in SLACKS:
        rates = cusum_rates(calm, mean, spread, slack, LIMITS)
        delays = [[_delay(first, fallen) for first in cusum_alarms(s, mean, spread, slack, LIMITS)] for s in after]
        cusum[slack] = [Point(limit, rates[i], tuple(delay[i] for delay in delays)) for i, limit in enumerate(LIMITS)]
    lesson = _drawn(rng, NORM, settings.learn, streams)
    own = _baseline(lesson.acceptance, lesson.reached)

    def with_learnt(slack: float, limit: float) -> Point:
        found = [cusum_alarms(one, *own, slack, [limit])[0] for one in after]
        (rate,) = cusum_rates(calm, *own, slack, [limit])
        return Point(limit, rate, tuple(_delay(first, fallen) for first in found))

    rates = [_rate(first, quiet) for first in window_alarms(calm, calm, RATIOS)]
    delays = [[_delay(first, fallen) for first in window_alarms(calm, s, RATIOS)] for s in after]
    windows = [Point(ratio, rates[i], tuple(delay[i] for delay in delays)) for i, ratio in enumerate(RATIOS)]
    learnt, other = with_learnt(settings.slack, settings.limit), with_learnt(*ALTERNATIVE)
    return Curve(cusum, learnt, other, windows, settings.slack, settings.limit)


def cusum_alarms(streams: Streams, mean: Floats, spread: Floats, slack: float, limits: Sequence[float]) -> list[Floats]:
    """Returns, for each limit, the request (from 1) at which each stream first alarmed, or infinity. Computes what
    draftd.fallback.drift.Cusum does, for many streams at once."""
    level = np.zeros(streams.reached.shape[1])
    first = [np.full(len(level), np.inf) for _ in limits]
    for number, step in enumerate(_steps(streams, mean, spread, slack), start=1):
        level = np.maximum(0.0, level + step)
        for limit, found in zip(limits, first, strict=True):
            found[(level > limit) & np.isinf(found)] = number
    return first


def cusum_rates(streams: Streams, mean: Floats, spread: Floats, slack: float, limits: Sequence[float]) -> list[float]:
    """Returns, for each limit, alarms in 10,000 requests. After each alarm the sum starts again at 0, as after a change
    of the level, so that a stream with an unlucky baseline alarms repeatedly."""
    level = np.zeros((len(limits), streams.reached.shape[1]))
    alarms, bound = np.zeros(len(limits)), np.array(limits)[:, None]
    for step in _steps(streams, mean, spread, slack):
        level = np.maximum(0.0, level + step)
        over = level > bound
        alarms += over.sum(axis=1)
        level[over] = 0.0
    return [float(rate) for rate in alarms / streams.reached.size * 10_000]


def window_alarms(before: Streams, after: Streams, ratios: Sequence[float]) -> list[Floats]:
    """Returns first alarms, as `cusum_alarms` does, of comparing a short window with the long one before it. A stream
    alarms when the short window's mean is below the ratio times the long one's, for HELD requests in a row. `before`
    fills both windows at first."""
    whole = np.vstack([before.acceptance[: LONG_WINDOW + SHORT_WINDOW], after.acceptance])
    sums = np.vstack([np.zeros((1, whole.shape[1])), np.cumsum(whole, axis=0)])
    ends = np.arange(LONG_WINDOW + SHORT_WINDOW + 1, len(whole) + 1)
    short = (sums[ends] - sums[ends - SHORT_WINDOW]) / SHORT_WINDOW
    long = (sums[ends - SHORT_WINDOW] - sums[ends - SHORT_WINDOW - LONG_WINDOW]) / LONG_WINDOW
    share = short / long
    found = []
    for ratio in ratios:
        low = np.vstack([np.zeros((1, share.shape[1])), np.cumsum(share < ratio, axis=0)])
        held = low[HELD:] - low[:-HELD] == HELD
        found.append(np.where(held.any(axis=0), held.argmax(axis=0) + HELD, np.inf))
    return found


def _drawn(rng: np.random.Generator, mean: float, requests: int, streams: int) -> Streams:
    """Draws requests as traffic.drafted does, one at a time to save memory."""
    acceptance, reached = np.empty((requests, streams)), np.empty((requests, streams))
    for number in range(requests):
        own = np.clip(rng.normal(mean, SPREAD, streams), 0.01, 0.99)
        runs = np.floor(np.log(rng.random((streams, STEPS))) / np.log(own)[:, None])
        accepted, rejected = np.minimum(runs, DEPTH).sum(1), (runs < DEPTH).sum(1)
        reached[number] = accepted + rejected
        acceptance[number] = accepted / reached[number]
    return Streams(acceptance, reached)


def _steps(streams: Streams, mean: Floats, spread: Floats, slack: float) -> Floats:
    """Returns what each request adds to the CUSUM."""
    counting = mean * (1 - mean) / streams.reached
    deviations = (mean - streams.acceptance) / np.sqrt(spread**2 + counting + 1e-4)
    return np.minimum(deviations, CusumSettings().largest) - slack


def _baseline(acceptance: Floats, reached: Floats) -> tuple[Floats, Floats]:
    """Returns mean and spread of each stream's acceptance, computed as Cusum learns them."""
    counting = (acceptance * (1 - acceptance) / reached).mean(axis=0)
    return acceptance.mean(axis=0), np.sqrt(np.maximum(0.0, acceptance.var(axis=0, ddof=1) - counting))


def _rate(first: Floats, requests: int) -> float:
    """Returns first alarms per 10,000 requests. Requests after a stream's first alarm do not count."""
    return float(np.isfinite(first).sum() / np.minimum(first, requests).sum() * 10_000)


def _delay(first: Floats, requests: int) -> float | None:
    delay = float(np.median(first))
    return delay if delay <= requests else None
