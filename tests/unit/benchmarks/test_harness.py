"""From the ticks of the overhead benchmark to its verdict."""

from __future__ import annotations

import random

import pytest

from benchmarks.harness import ARMS, MODES, compared, figures, holds
from benchmarks.ratios import Tick


def ticks(harness: float, *, noise: float = 0.02, tokens: int = 50) -> list[Tick]:
    """Ten prompts of very different lengths, six times; the harness takes `harness` times as long as it should."""
    draw, made = random.Random(3), []
    for repetition in range(6):
        for i in range(10):
            for name in MODES:
                for arm in ARMS:
                    seconds = (1 + i) * draw.gauss(1, noise) * (harness if arm == "harness" else 1)
                    made.append(Tick(repetition, f"{name}-{arm}", f"p{i}", "code", tokens, seconds))
    return made


def test_harness_overhead_check_passes_when_harness_costs_nothing() -> None:
    estimates = compared(ticks(1.0, noise=0.005))
    assert estimates.keys() == {f"{name}_{arm}_vs_bare" for name in MODES for arm in ("again", "harness")}
    assert all(one.estimate == pytest.approx(1, abs=0.005) and one.samples == 60 for one in estimates.values())
    assert holds(estimates)
    assert figures(estimates)["within_one_percent"] is True


@pytest.mark.parametrize("harness", [1.02, 0.98])
def test_harness_overhead_check_fails_at_two_percent_difference(harness: float) -> None:
    estimates = compared(ticks(harness, noise=0.005))
    assert estimates["ar_harness_vs_bare"].estimate == pytest.approx(1 / harness, abs=0.005)
    assert not holds(estimates)


def test_harness_overhead_check_fails_on_noisy_measurements() -> None:
    assert not holds(compared(ticks(1.0, noise=0.2)))


def test_harness_overhead_check_refuses_answers_of_different_lengths() -> None:
    records = ticks(1.0)
    records[-1] = Tick(5, "spec-harness", "p9", "code", 49, 1.0)
    with pytest.raises(SystemExit, match="spec-.*: the greedy text of p9"):
        compared(records)
