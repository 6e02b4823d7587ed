"""Does memory grow without bound? The slope of a noisy curve, with an interval that holds for what memory does.

Memory is no straight line with independent noise. It wanders: what was taken stays taken, and steps up and down come by
chance. Least squares on a curve that wanders finds a trend where none is, and is sure of it; so is a bootstrap of its
residuals, even one of blocks. So the noise is taken for the sum of two parts, one that forgets at once and one that
forgets in time (an Ornstein-Uhlenbeck process, up to what is a random walk within the soak). How large each is and how
long the memory lasts is not known, so the interval is taken over all that may be, each weighed by how likely the curve
is under it (generalised least squares with the noise integrated out).

Of curves without a leak, from white noise to random walks and staircases, at most 5 % have an interval that lies above
nought; the unit tests hold it to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftd.acceptance.statistics import Interval

WARM_UP = 0.25  # of each session: allocators and caches fill
_BINS = 60  # means over so many stretches of the time: readings repeat, and one reading is no trend
_FEWEST = 8  # bins of one session, below which it says nothing of a trend
_RESOLUTION = 8 * 2**20  # bytes: allocators take memory by pieces of some MiB; less growth than this is no sign
_WHITE = (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)  # the noise that forgets at once, over what the other adds within a bin
_MEMORIES = 8  # how long the other may last, from a bin to ten times the soak
_DRAWS = 20_000
# Of a random walk's means over bins the steps vary by 2/3 of what those of its values do (Working, "Note on the
# correlation of first differences of averages in a random chain", Econometrica 28, 1960).
_AVERAGED = 1.5

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One session's readings, in time: seconds and bytes."""

    times: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Growth:
    """`slope` in bytes a second, 95 %; `seconds` that it was judged over."""

    slope: Interval
    seconds: float

    @property
    def certain(self) -> float:
        """Bytes a second that it grows by at least; 0 where that is not certain, or too little in all to tell from how
        allocators take memory."""
        low = self.slope.low
        return low if low > 0 and low * self.seconds > _RESOLUTION else 0.0


def growth(curves: Sequence[Curve], *, confidence: float = 0.95, seed: int = 0) -> Growth | None:
    """One slope for all sessions, each with a level of its own. None where there is too little to tell."""
    judged = [part for part in map(_settled, curves) if part is not None]
    width = sum(float(np.ptp(times)) for times, _ in judged) / _BINS
    if not width:
        return None
    binned = [part for part in (_binned(times, values, width) for times, values in judged) if len(part[0]) >= _FEWEST]
    if not binned:
        return None
    return Growth(_slope(binned, confidence, seed), sum(float(np.ptp(times)) for times, _ in binned))


def _settled(curve: Curve) -> tuple[_Floats, _Floats] | None:
    """What comes after the warm-up."""
    times, values = np.asarray(curve.times, float), np.asarray(curve.values, float)
    if len(times) < _FEWEST:
        return None
    kept = times >= times[0] + WARM_UP * np.ptp(times)
    return times[kept], values[kept]


def _binned(times: _Floats, values: _Floats, width: float) -> tuple[_Floats, _Floats]:
    """Mean time and value of each stretch of `width` seconds that has any."""
    _, place = np.unique(((times - times[0]) / width).astype(np.int64), return_inverse=True)
    counts = np.bincount(place)
    return np.bincount(place, times) / counts, np.bincount(place, values) / counts


def _slope(curves: Sequence[tuple[_Floats, _Floats]], confidence: float, seed: int) -> Interval:
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
    found: list[tuple[float, float, float]] = []  # log of the weight, slope, its standard error
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
            # The longer the memory, the wider the interval: what the curve leaves open is taken for the worse.
            likely += np.log(memory)
            found.append((float(likely), float(fitted[0]), float(np.sqrt(_AVERAGED * rest / freedom * inverse[0, 0]))))
    weights, slopes, errors = (np.array(column) for column in zip(*found, strict=True))
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(weights), _DRAWS, p=weights)
    may_be = slopes[drawn] + errors[drawn] * rng.standard_t(freedom, _DRAWS)
    tail = (1 - confidence) / 2
    low, high = np.quantile(may_be, [tail, 1 - tail]) * spread
    return Interval(float(weights @ slopes) * spread, float(low), float(high), len(values))
