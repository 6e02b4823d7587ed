"""A change is measured by each arm's ratio to its own earlier rate, prompt by prompt."""

from __future__ import annotations

import pytest

from benchmarks.ratios import Tick, changes


def ticks(arm: str, rates: list[float]) -> list[Tick]:
    return [
        Tick(repetition, arm, f"{workload} {i}", workload, 100, 100 / rate)
        for repetition, rate in enumerate(rates)
        for workload in ("code", "tool_call", "chat", "prose")
        for i in range(2)
    ]


def test_before_after_ratio_is_unaffected_by_slower_machine_in_one_repetition():
    speeds = [10.0, 20.0, 5.0, 10.0]
    both = ticks("spec", [0.9 * s for s in speeds]) + ticks("spec_before", speeds) + ticks("mlx_spec", speeds)
    ratios = changes(both)
    assert ratios.keys() == {"spec", "spec_code", "spec_tool_call", "spec_chat", "spec_prose"}
    for change in ratios.values():
        assert (change.median, change.low, change.high) == pytest.approx((0.9, 0.9, 0.9))


def test_before_after_interval_spans_ratios_of_whole_repetitions():
    ratio = changes(ticks("ar", [9.0, 9.6, 10.4, 11.0]) + ticks("ar_before", [10.0] * 4))["ar"]
    assert ratio.median == pytest.approx(1.0)
    assert (ratio.low, ratio.high) == pytest.approx((0.9, 1.1))
