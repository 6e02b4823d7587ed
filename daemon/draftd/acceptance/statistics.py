"""Estimates with their intervals, by the bootstrap: nothing is assumed of how latencies are distributed.

What is drawn again is whole clusters. A prompt's repetitions are alike: taken for independent they would make every
interval too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Statistic = Literal["median", "mean"] | float
"""A float is that quantile."""

_Floats = NDArray[np.float64]
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and what it may truly be: 95 % unless it is said otherwise. `samples` is how many values it rests
    on; of a single one nothing is known but itself, and the interval has no width."""

    estimate: float
    low: float
    high: float
    samples: int


def quantile(values: Sequence[float], q: float) -> float | None:
    """Between two values it is interpolated, as numpy.quantile does; None without values."""
    return float(np.quantile(np.asarray(values, float), q)) if len(values) else None


def bootstrap(
    clusters: Sequence[Sequence[float]],
    statistic: Statistic = "median",
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval | None:
    """The statistic of all values together; percentile interval over resampled clusters. With one value in each it is
    the ordinary bootstrap. A single cluster's values are resampled as they are. None without values."""
    filled = [cluster for cluster in clusters if len(cluster)]
    if not filled:
        return None
    if len(filled) == 1:
        filled = [[value] for value in filled[0]]
    pool = _Pool(filled)
    low, high = _middle(pool.resampled(_draws(len(filled), resamples, seed), statistic), confidence)
    return Interval(pool.whole(statistic), low, high, pool.size)


def ratio(
    numerators: Mapping[_Key, Sequence[float]],
    denominators: Mapping[_Key, Sequence[float]],
    statistic: Statistic = "median",
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval | None:
    """One statistic over the other, of the clusters that both sides have, which are resampled together: what makes a
    prompt slow makes it so on both sides, and falls out. `samples` is the smaller side's. None where there is no such
    cluster, or the denominator is 0 or may well be."""
    shared = [key for key, values in numerators.items() if len(values) and len(denominators.get(key, ()))]
    if not shared:
        return None
    above, below = _Pool([numerators[key] for key in shared]), _Pool([denominators[key] for key in shared])
    if not below.whole(statistic):
        return None
    if len(shared) == 1:
        # One prompt: each side's values are resampled for themselves.
        above, below = _Pool([[v] for v in numerators[shared[0]]]), _Pool([[v] for v in denominators[shared[0]]])
        draws = _draws(above.clusters, resamples, seed), _draws(below.clusters, resamples, seed + 1)
    else:
        draws = (_draws(len(shared), resamples, seed),) * 2
    with np.errstate(divide="ignore", invalid="ignore"):
        found = above.resampled(draws[0], statistic) / below.resampled(draws[1], statistic)
    if not np.isfinite(found).all():
        return None
    low, high = _middle(found, confidence)
    return Interval(above.whole(statistic) / below.whole(statistic), low, high, min(above.size, below.size))


class _Pool:
    """All clusters' values, sorted together: a resample is how often each cluster was drawn, and its quantile is found
    without its values ever being copied."""

    def __init__(self, clusters: Sequence[Sequence[float]]) -> None:
        parts = [np.asarray(cluster, float) for cluster in clusters]
        self.clusters = len(parts)
        self.sizes = np.array([len(part) for part in parts])
        self.sums = np.array([part.sum() for part in parts])
        values, owners = np.concatenate(parts), np.repeat(np.arange(self.clusters), self.sizes)
        order = np.argsort(values, kind="stable")
        self.values, self.owners = values[order], owners[order]
        self.size = len(values)
        # How many of its values each cluster holds in each stretch of the sorted ones.
        self.width = math.isqrt(self.size - 1) + 1
        stretches = np.arange(self.size) // self.width
        shape = self.clusters, int(stretches[-1]) + 1
        flat = np.bincount(self.owners * shape[1] + stretches, minlength=shape[0] * shape[1])
        self.held = flat.reshape(shape).astype(float)

    def whole(self, statistic: Statistic) -> float:
        if statistic == "mean":
            return float(self.values.mean())
        return float(np.quantile(self.values, _q(statistic)))

    def resampled(self, draws: NDArray[Any], statistic: Statistic) -> _Floats:
        """Of each resample; `draws` is resamples by clusters, how often each was drawn."""
        totals = draws @ self.sizes
        if statistic == "mean":
            return np.asarray(draws @ self.sums / totals, float)
        ends = np.cumsum(draws @ self.held, axis=1)
        at = _q(statistic) * (totals - 1)
        below = np.floor(at).astype(np.int64)
        lower = self._ranked(draws, ends, below)
        upper = self._ranked(draws, ends, np.minimum(below + 1, totals - 1))
        return np.asarray(lower + (upper - lower) * (at - below), float)

    def _ranked(self, draws: NDArray[Any], ends: _Floats, ranks: NDArray[Any]) -> _Floats:
        """The value of that rank, from 0, in each resample. `ends`: how many values it has up to the end of each
        stretch. First the stretch that holds the rank is found, then the value within: the work grows with the root of
        how many values there are."""
        stretch = (ends <= ranks[:, None]).sum(axis=1)
        before = np.where(stretch > 0, np.take_along_axis(ends, np.maximum(stretch - 1, 0)[:, None], 1)[:, 0], 0)
        inside = np.minimum(stretch[:, None] * self.width + np.arange(self.width), self.size - 1)
        counts = np.cumsum(np.take_along_axis(draws, self.owners[inside], axis=1), axis=1)
        found = (counts <= (ranks - before)[:, None]).sum(axis=1)
        return np.asarray(self.values[stretch * self.width + found], float)


def _draws(clusters: int, resamples: int, seed: int) -> NDArray[Any]:
    """How often each cluster is in each resample of as many as there are."""
    drawn = np.random.default_rng(seed).integers(0, clusters, size=(resamples, clusters))
    flat = (drawn + clusters * np.arange(resamples)[:, None]).ravel()
    return np.bincount(flat, minlength=resamples * clusters).reshape(resamples, clusters)


def _q(statistic: Statistic) -> float:
    q = 0.5 if statistic == "median" else float(statistic)
    assert 0 <= q <= 1, statistic
    return q


def _middle(found: _Floats, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)
