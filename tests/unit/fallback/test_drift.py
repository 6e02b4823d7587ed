"""Drift is found when acceptance falls and only then, and is not judged without samples."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.fallback.drift import AcceptanceSample, Baseline, Cusum, CusumSettings, Floor
from draftd.settings import FallbackSettings

CUSUM, FLOOR = CusumSettings(), FallbackSettings()


def requests(
    acceptance: float, seed: int, *, spread: float = 0.2, steps: int = 20, depth: int = 4
) -> Iterator[AcceptanceSample]:
    """Returns requests whose acceptance scatters around `acceptance` with standard deviation `spread`."""
    dice = random.Random(seed)
    while True:
        own = min(0.99, max(0.01, dice.gauss(acceptance, spread)))
        accepted = rollbacks = 0
        for _ in range(steps):
            run = 0
            while run < depth and dice.random() < own:
                run += 1
            accepted += run
            rollbacks += run < depth
        yield AcceptanceSample(accepted, rollbacks)


def until_drifted(state: Cusum, samples: Iterator[AcceptanceSample], most: int) -> int | None:
    """Returns the samples before drift was found; None after `most` without it."""
    for count in range(1, most + 1):
        state = state.observe(next(samples), CUSUM)
        if state.exceeds_limit(CUSUM):
            return count
    return None


def learnt(acceptance: float, seed: int) -> Cusum:
    samples, state = requests(acceptance, seed), Cusum()
    while state.baseline is None:
        state = state.observe(next(samples), CUSUM)
    return state


def test_drift_detector_sets_its_baseline_after_the_configured_number_of_samples() -> None:
    samples, state = requests(0.7, 1), Cusum()
    for _ in range(CUSUM.learn - 1):
        state = state.observe(next(samples), CUSUM)
        assert state.baseline is None
    state = state.observe(next(samples), CUSUM)
    assert state.baseline is not None
    assert not state.exceeds_limit(CUSUM)
    assert state.baseline.mean == pytest.approx(0.7, abs=0.1)
    assert state.baseline.spread == pytest.approx(0.2, abs=0.08)


def test_drift_detector_with_measured_baselines_raises_at_most_20_false_alarms_in_60_runs() -> None:
    """At most 20 with 60 learnt baselines and 2,000 requests each; about 9 are to be expected."""
    alarms = 0
    for seed in range(60):
        state, samples = learnt(0.7, seed), requests(0.7, 5000 + seed)
        for _ in range(2000):
            state = state.observe(next(samples), CUSUM)
            if state.exceeds_limit(CUSUM):
                alarms, state = alarms + 1, state.reset()
    assert alarms <= 20


def test_drift_detector_finds_a_deep_drop_in_30_requests_and_a_mild_drop_in_160() -> None:
    """Medians over 60 pairs of seeds: .7 to .5, about one deviation, within 30 requests; .7 to .6 within 160."""
    found: dict[float, list[int]] = {0.5: [], 0.6: []}
    for seed in range(60):
        for fallen, delays in found.items():
            delay = until_drifted(learnt(0.7, seed), requests(fallen, 1000 + seed), 2000)
            delays.append(delay or 2000)
    assert statistics.median(found[0.5]) <= 30
    assert statistics.median(found[0.6]) <= 160


def test_drift_detector_with_known_baseline_has_at_most_2_false_alarms_in_20000_requests() -> None:
    """With the baseline known, at most 2 false alarms in 20,000 requests; about 1.4 are to be expected."""
    alarms, state = 0, Cusum(Baseline(0.69, 0.19))
    samples = requests(0.7, 7)
    for _ in range(20_000):
        state = state.observe(next(samples), CUSUM)
        if state.exceeds_limit(CUSUM):
            alarms, state = alarms + 1, state.reset()
    assert alarms <= 2


def test_drift_detector_ignores_rising_acceptance_and_a_single_bad_request() -> None:
    state = Cusum(Baseline(0.7, 0.2))
    for _ in range(100):
        state = state.observe(AcceptanceSample(40, 0), CUSUM)
    assert state.level == 0.0
    state = state.observe(AcceptanceSample(0, 40), CUSUM)
    assert not state.exceeds_limit(CUSUM)


def test_drift_detector_recovers_within_60_good_requests_after_5000_bad_requests() -> None:
    state, bad, good = Cusum(Baseline(0.7, 0.2)), requests(0.2, 1), requests(0.7, 2)
    for _ in range(5000):
        state = state.observe(next(bad), CUSUM)
    for count in range(200):  # noqa: B007
        if not state.exceeds_limit(CUSUM):
            break
        state = state.observe(next(good), CUSUM)
    assert count < 60


def test_drift_detector_ignores_samples_with_too_few_draft_tokens() -> None:
    for state in (Cusum(), Cusum(Baseline(0.9, 0.1), level=3.0)):
        assert state.observe(AcceptanceSample(0, CUSUM.least_reached - 1), CUSUM) == state


@given(st.floats(0, 1), st.floats(0, 0.5), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=80))
def test_drift_detector_cusum_level_stays_in_range_for_any_samples(
    mean: float, spread: float, samples: list[tuple[int, int]]
) -> None:
    for state in (Cusum(Baseline(mean, spread)), Cusum()):
        for accepted, rollbacks in samples:
            state = state.observe(AcceptanceSample(accepted, rollbacks), CUSUM)
            assert 0 <= state.level <= 2 * CUSUM.limit


def windows(*acceptances: float | None, requests: int = 12) -> Floor:
    """Five-minute windows of 1,200 reached tokens each; None is a window without traffic."""
    state, now = Floor(FLOOR.acceptance_floor).advance(0.0, FLOOR), 0.0
    for acceptance in acceptances:
        for _ in range(requests if acceptance is not None else 0):
            assert acceptance is not None
            state = state.advance(now + 1, FLOOR).add(round(100 * acceptance), 100)
        now += FLOOR.window_seconds
        state = state.advance(now, FLOOR)
    return state


FEW: Callable[[], Floor] = lambda: windows(0.1, 0.1, requests=FLOOR.least_requests - 1)  # noqa: E731


@pytest.mark.parametrize(
    ("state", "low"),
    [
        (windows(0.3), False),
        (windows(0.3, 0.3), True),
        (windows(0.3, 0.5), False),
        (windows(0.3, 0.5, 0.3), False),
        (windows(0.3, None, 0.3), True),  # a window that says nothing does not break the sequence
        (windows(0.3, None, None, 0.3), False),  # but several are
        (windows(0.3, 0.3, None, None), False),
        (windows(), False),
        (FEW(), False),
        (windows(0.41, 0.41), False),
    ],
)
def test_acceptance_is_low_after_two_consecutive_windows_below_the_floor(state: Floor, low: bool) -> None:
    assert state.low is low


def test_acceptance_windows_reset_after_long_silence_or_a_clock_set_back() -> None:
    state = windows(0.3, 0.3).advance(FLOOR.window_seconds * 14, FLOOR)
    assert not state.low
    state = state.add(1, 2).advance(5.0, FLOOR)
    assert (state.began, state.requests) == (5.0, 0)
