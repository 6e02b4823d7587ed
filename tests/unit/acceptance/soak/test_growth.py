"""The slope of memory: right where there is a leak, and not there where memory only wanders."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from draftd.acceptance.statistics import Curve, growth

Noise = NDArray[np.float64]
SECONDS = np.arange(600.0)
MIB = 2.0**20
CURVES = 40
MOST_FALSE = 6  # 5 % of 40 are 2; that a sound method has more than 6 of them has a chance below 1 in 200


def white(rng: np.random.Generator) -> Noise:
    return rng.normal(size=len(SECONDS))


def autoregressive(share: float) -> Callable[[np.random.Generator], Noise]:
    def made(rng: np.random.Generator) -> Noise:
        noise = rng.normal(size=len(SECONDS))
        noise[0] /= math.sqrt(1 - share**2)
        for i in range(1, len(noise)):
            noise[i] += share * noise[i - 1]
        return noise

    return made


def walk(rng: np.random.Generator) -> Noise:
    return np.cumsum(rng.normal(size=len(SECONDS)))


def noisy_walk(rng: np.random.Generator) -> Noise:
    return 0.3 * walk(rng) + 3 * white(rng)


def staircase(rng: np.random.Generator) -> Noise:
    """Up and down by chance, a hundred seconds or so apart."""
    return np.cumsum((rng.random(len(SECONDS)) < 0.01) * rng.normal(size=len(SECONDS)))


def sawtooth(rng: np.random.Generator) -> Noise:
    """Garbage that grows until it is collected."""
    return (SECONDS + rng.integers(50)) % 47 / 10 + 0.3 * white(rng)


def spikes(rng: np.random.Generator) -> Noise:
    return (rng.random(len(SECONDS)) < 0.02) * rng.exponential(size=len(SECONDS)) * 20


def seldom_read(rng: np.random.Generator) -> Noise:
    """A reading every five seconds, asked for every second."""
    return np.repeat(autoregressive(0.8)(rng)[:120], 5)


KINDS = {
    "white": white,
    "autoregressive .5": autoregressive(0.5),
    "autoregressive .9": autoregressive(0.9),
    "autoregressive .99": autoregressive(0.99),
    "random walk": walk,
    "random walk, noisily read": noisy_walk,
    "staircase": staircase,
    "sawtooth": sawtooth,
    "spikes": spikes,
    "seldom read": seldom_read,
}


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_one_curve_in_twenty_without_a_leak_seems_to_grow(kind: str) -> None:
    rng = np.random.default_rng(20)
    alarms = 0
    for _ in range(CURVES):
        found = growth([Curve(SECONDS, 1e9 + 5 * MIB * KINDS[kind](rng))])
        assert found is not None
        alarms += found.slope.low > 0
    assert alarms <= MOST_FALSE


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_holds_the_true_slope_of_a_leak(kind: str) -> None:
    rng = np.random.default_rng(21)
    held = 0
    for _ in range(CURVES):
        found = growth([Curve(SECONDS, 1e9 + 5 * MIB * KINDS[kind](rng) + 30_000 * SECONDS)])
        assert found is not None
        held += found.slope.low <= 30_000 <= found.slope.high
    assert held >= CURVES - MOST_FALSE


@pytest.mark.parametrize("kind", ["white", "autoregressive .5", "sawtooth", "spikes", "staircase"])
def test_a_leak_that_fills_a_machine_within_a_day_is_seen(kind: str) -> None:
    rng = np.random.default_rng(22)
    leak = 10e9 / 86_400  # ten gigabytes in a day: 52 MB in what is judged
    for _ in range(12):
        found = growth([Curve(SECONDS, 1e9 + MIB * KINDS[kind](rng) + leak * SECONDS)])
        assert found is not None
        assert leak / 3 < found.certain < 1.1 * leak


def test_a_curve_that_never_moves_does_not_grow() -> None:
    found = growth([Curve(SECONDS, np.full(600, 3e9))])
    assert found is not None
    assert (found.slope.estimate, found.slope.low, found.slope.high, found.certain) == (0, 0, 0, 0)


def test_a_straight_line_is_found_exactly() -> None:
    found = growth([Curve(SECONDS, 1e9 + 1e6 * SECONDS)])
    assert found is not None
    assert found.slope.estimate == pytest.approx(1e6, rel=1e-4)
    assert (found.slope.low, found.slope.high) == (pytest.approx(1e6, rel=0.01), pytest.approx(1e6, rel=0.01))


def test_what_fills_while_a_session_is_young_is_no_leak() -> None:
    filling = 400 * MIB * np.minimum(1, SECONDS / 140)
    found = growth([Curve(SECONDS, 1e9 + filling + MIB * white(np.random.default_rng(1)))])
    assert found is not None
    assert found.certain == 0
    assert found.seconds == pytest.approx(450, rel=0.03)


def test_sessions_share_a_slope_and_not_a_level() -> None:
    """A daemon that was started anew begins lower: that is neither growth nor its opposite."""
    rng = np.random.default_rng(2)
    parts = [level + 20_000 * SECONDS[:300] + MIB * rng.normal(size=300) for level in (2e9, 1e9, 3e9)]
    found = growth([Curve(SECONDS[:300] + offset, part) for offset, part in zip((0, 50, 7000), parts, strict=True)])
    assert found is not None
    assert found.slope.low < 20_000 < found.slope.high
    assert found.slope.low > 0
    still = growth([Curve(SECONDS[:300], level + MIB * rng.normal(size=300)) for level in (1e9, 2e9, 3e9)])
    assert still is not None
    assert still.certain == 0


def test_growth_that_is_less_than_what_an_allocator_takes_at_a_time_is_no_sign() -> None:
    times = np.arange(0, 12, 0.1)
    grown = growth([Curve(times, 1e9 + 400_000 * times)])  # 3.6 MB in what is judged, without any noise
    assert grown is not None
    assert grown.slope.low > 0
    assert grown.certain == 0
    longer = growth([Curve(times * 10, 1e9 + 400_000 * times * 10)])
    assert longer is not None
    assert longer.certain == pytest.approx(400_000, rel=0.01)


def test_gaps_between_readings_are_time_all_the_same() -> None:
    rng = np.random.default_rng(3)
    kept = (SECONDS < 250) | (SECONDS > 420)
    found = growth([Curve(SECONDS[kept], (1e9 + 100_000 * SECONDS + MIB * rng.normal(size=600))[kept])])
    assert found is not None
    assert found.slope.low < 100_000 < found.slope.high
    assert found.certain > 80_000


@pytest.mark.parametrize(
    "curves",
    [[], [Curve([], [])], [Curve([1.0], [1.0])], [Curve([1.0] * 20, [1.0] * 20)], [Curve(range(9), range(9))]],
    ids=["none", "empty", "one", "at once", "few"],
)
def test_of_too_little_nothing_is_said(curves: list[Curve]) -> None:
    assert growth(curves) is None


def test_the_same_curve_has_the_same_interval() -> None:
    curve = Curve(SECONDS, 1e9 + MIB * walk(np.random.default_rng(4)))
    assert growth([curve]) == growth([curve])
