"""Estimates with their intervals: medians, quantiles and ratios by the bootstrap, and the growth of memory.

The bootstrap assumes nothing about the distribution of latencies. It resamples whole clusters: a prompt's repetitions
are alike, and treated as independent they would make every interval too narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Statistic = Literal["mean"] | float
"""A float is a quantile: 0.5 is the median."""

WARM_UP = 0.25  # of each session: allocators and caches fill
_BINS = 60  # means over so many stretches of the time: readings repeat, and one reading is no trend
_FEWEST = 8  # bins; a session with fewer shows no trend
_RESOLUTION = 8 * 2**20  # bytes: allocators take memory by pieces of some MiB; less growth than this is no sign
_WHITE = (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)  # the noise that forgets at once, over what the other adds within a bin
_MEMORIES = 8  # how long the other may last, from a bin to ten times the soak
_DRAWS = 20_000
_AT_ONCE = 100_000  # counts of values in resamples: what fits into a processor's cache
# Of a random walk's means over bins the steps vary by 2/3 of what those of its values do (Working, "Note on the
# correlation of first differences of averages in a random chain", Econometrica 28, 1960).
_AVERAGED = 1.5

_Floats = NDArray[np.float64]
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval. `samples` counts the values; with a single one the interval has no width."""

    estimate: float
    low: float
    high: float
    samples: int

    def scale_by(self, factor: float) -> Interval:
        return Interval(self.estimate * factor, self.low * factor, self.high * factor, self.samples)


def bootstrap(
    clusters: Sequence[Sequence[float]], statistic: Statistic = 0.5, *, resamples: int = 2000, seed: int = 0
) -> Interval | None:
    """Returns the statistic over all values, with its percentile interval over resampled clusters; with one value each
    it is the ordinary bootstrap. A single cluster's values are resampled themselves. None without values."""
    filled = [cluster for cluster in clusters if len(cluster)]
    if not filled:
        return None
    pool = _Pool(filled)
    low, high = _central_range(pool.resample(statistic, resamples, seed))
    return Interval(pool.whole(statistic), low, high, len(pool.values))


def ratio(
    numerators: Mapping[_Key, Sequence[float]],
    denominators: Mapping[_Key, Sequence[float]],
    statistic: Statistic = 0.5,
    *,
    resamples: int = 2000,
) -> Interval | None:
    """Returns the ratio of one statistic on both sides, over their shared clusters, which are resampled together: a
    prompt that is slow on both sides cancels out. `samples` is the smaller side's. None without shared clusters, or if
    the denominator is 0 or may be."""
    shared = [key for key, values in numerators.items() if len(values) and len(denominators.get(key, ()))]
    if not shared:
        return None
    above, below = _Pool([numerators[key] for key in shared]), _Pool([denominators[key] for key in shared])
    if not below.whole(statistic):
        return None
    apart = int(len(shared) == 1)  # with one prompt, resample each side independently
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above.resample(statistic, resamples, 0) / below.resample(statistic, resamples, apart)
    if not np.isfinite(ratios).all():
        return None
    low, high = _central_range(ratios)
    samples = min(len(above.values), len(below.values))
    return Interval(above.whole(statistic) / below.whole(statistic), low, high, samples)


class _Pool:
    """All values, sorted together; a resample is how often each cluster was drawn. A single cluster's values become
    clusters themselves."""

    def __init__(self, clusters: Sequence[Sequence[float]]) -> None:
        if len(clusters) == 1:
            clusters = [[value] for value in clusters[0]]
        sizes = [len(cluster) for cluster in clusters]
        values, owners = np.concatenate([np.asarray(cluster, float) for cluster in clusters]), np.arange(len(clusters))
        order = np.argsort(values, kind="stable")
        self.values, self.owners, self.clusters = values[order], owners.repeat(sizes)[order], len(clusters)

    def whole(self, statistic: Statistic) -> float:
        return float(self.values.mean() if statistic == "mean" else np.quantile(self.values, statistic))

    def resample(self, statistic: Statistic, resamples: int, seed: int) -> _Floats:
        """Returns the statistic of each resample, of as many clusters as there are. The same seed draws the same
        clusters."""
        drawn = np.random.default_rng(seed).integers(0, self.clusters, size=(resamples, self.clusters))
        flat = (drawn + self.clusters * np.arange(resamples)[:, None]).ravel()
        draws = np.bincount(flat, minlength=drawn.size).reshape(drawn.shape).astype(np.int32)
        if statistic == "mean":
            sums, sizes = np.bincount(self.owners, self.values), np.bincount(self.owners)
            return np.asarray(draws @ sums / (draws @ sizes), float)
        some = max(1, _AT_ONCE // len(self.values))
        return np.concatenate([self._quantiles(draws[i : i + some], statistic) for i in range(0, resamples, some)])

    def _quantiles(self, draws: NDArray[Any], q: float) -> _Floats:
        # How many values each resample has, up to each of all.
        ends = np.cumsum(draws[:, self.owners], axis=1, dtype=np.int32)
        at = q * (ends[:, -1] - 1)
        ranks = np.floor(at).astype(np.int32), np.ceil(at).astype(np.int32)
        lower, upper = (self.values[np.count_nonzero(ends <= rank[:, None], axis=1)] for rank in ranks)
        return np.asarray(lower + (upper - lower) * (at % 1), float)


def _central_range(values: _Floats) -> tuple[float, float]:
    """Returns the range that holds the central 95 % of the values."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


Curve = Sequence[tuple[float, float]]
"""One session's readings, in time: seconds and bytes."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """`slope` in bytes a second, with its 95 % interval; `seconds` is the time that it was judged over."""

    slope: Interval
    seconds: float

    @property
    def certain(self) -> float:
        """The smallest growth in bytes a second; 0 if it is not certain, or too small to tell from allocation."""
        low = self.slope.low
        return low if low > 0 and low * self.seconds > _RESOLUTION else 0.0


def after_warm_up(curves: Sequence[Curve]) -> tuple[int, float]:
    """Returns how many readings growth rests on, over all sessions, and the seconds that they span."""
    judged = _drop_warm_up(curves)
    return sum(len(times) for times, _ in judged), sum(float(np.ptp(times)) for times, _ in judged)


def growth(curves: Sequence[Curve]) -> MemoryGrowth | None:
    """Returns the growth: one slope for all sessions, each with its own level; None if there is too little data.

    The interval is wide enough for noise that wanders: of curves without a leak, from white noise to random walks and
    staircases, at most 5 % have an interval above 0; the unit tests check it.
    """
    # Memory is no straight line with independent noise. It wanders: allocated memory stays, and steps come by chance.
    # Least squares on a wandering curve finds a trend where there is none, with a narrow interval; so does a bootstrap
    # of its residuals, even of blocks. So the noise is the sum of two parts, one that forgets at once and one that
    # forgets in time (an Ornstein-Uhlenbeck process, up to a random walk within the soak). Their sizes and the memory's
    # length are unknown: the interval covers all of them, each weighed by the curve's likelihood (generalised least
    # squares with the noise integrated out).
    judged = _drop_warm_up(curves)
    width = sum(float(np.ptp(times)) for times, _ in judged) / _BINS
    if not width:
        return None
    binned = [
        part for part in (_bin_means(times, values, width) for times, values in judged) if len(part[0]) >= _FEWEST
    ]
    if not binned:
        return None
    return MemoryGrowth(_slope(binned), sum(float(np.ptp(times)) for times, _ in binned))


def _drop_warm_up(curves: Sequence[Curve]) -> list[_Floats]:
    """Returns times and values after the warm-up, for each session with readings."""
    read = [np.asarray(curve, float).T for curve in curves if len(curve)]
    return [part[:, part[0] >= part[0, 0] + WARM_UP * np.ptp(part[0])] for part in read]


def _bin_means(times: _Floats, values: _Floats, width: float) -> tuple[_Floats, _Floats]:
    """Returns the mean time and value of each bin of `width` seconds that has readings."""
    _, place = np.unique(((times - times[0]) / width).astype(np.int64), return_inverse=True)
    counts = np.bincount(place)
    return np.bincount(place, times) / counts, np.bincount(place, values) / counts


def _slope(curves: Sequence[tuple[_Floats, _Floats]]) -> Interval:
    session = np.repeat(np.arange(len(curves)), [len(times) for times, _ in curves])
    times, values = (np.concatenate([curve[i] for curve in curves]) for i in (0, 1))
    # Columns: the common slope, then each session's own level.
    design = np.column_stack([times - times.mean(), session[:, None] == np.arange(len(curves))]).astype(float)
    apart = np.where(session[:, None] == session, np.abs(times[:, None] - times), np.inf)
    spread = float(np.std(values))
    if not spread:
        return Interval(0.0, 0.0, 0.0, len(values))
    freedom = len(values) - design.shape[1]
    step, span = float(np.median(np.diff(times))), float(np.ptp(times))
    fits: list[tuple[float, float, float]] = []  # log of the weight, slope, its standard error
    for memory in np.geomspace(step, 10 * span, _MEMORIES):
        lasting = np.exp(-apart / memory)
        for white in _WHITE:
            noise = lasting + (white * (1 - np.exp(-step / memory)) + 1e-9) * np.eye(len(values))
            root = np.linalg.cholesky(noise)
            x, y = np.linalg.solve(root, design), np.linalg.solve(root, values / spread)
            inverse = np.linalg.inv(x.T @ x)
            fitted = inverse @ x.T @ y
            rest = float(np.sum((y - x @ fitted) ** 2)) + 1e-18
            likely = -np.log(np.diag(root)).sum() + np.linalg.slogdet(inverse)[1] / 2 - freedom / 2 * np.log(rest)
            # A longer memory widens the interval: where the curve leaves it open, assume the worse.
            likely += np.log(memory)
            fits.append((float(likely), float(fitted[0]), float(np.sqrt(_AVERAGED * rest / freedom * inverse[0, 0]))))
    weights, slopes, errors = (np.array(column) for column in zip(*fits, strict=True))
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    rng = np.random.default_rng(0)
    drawn = rng.choice(len(weights), _DRAWS, p=weights)
    may_be = slopes[drawn] + errors[drawn] * rng.standard_t(freedom, _DRAWS)
    low, high = _central_range(may_be * spread)
    return Interval(float(weights @ slopes) * spread, low, high, len(values))
