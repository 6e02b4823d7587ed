"""From ticks to figures by arm: which ticks count, what is paired with what, and that intervals hold what they must."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from draftd.core import WorkloadClass
from draftd.counts import DraftCounts
from draftd_acceptance.summary import (
    METRICS,
    against,
    measure,
    per_position,
    select,
    summarise,
    total_counts,
    total_throughput,
)
from draftd_acceptance.ticks import MachineSample, ServerTiming, Stage, Tick
from tests.fake_ticks import drafted, paced, place, tick


def test_request_selection_skips_warm_ups_and_errors_and_filters_by_arm_and_group() -> None:
    ticks = [
        tick(place("ar", "a")),
        tick(place("k4", "a")),
        tick(place("k4", "b", group="prose", workload=WorkloadClass.PROSE)),
        tick(place("k4", "c", warm_up=True)),
        tick(place("k4", "d"), error="UNAVAILABLE"),
    ]
    assert select(ticks) == ticks[:3]
    assert select(ticks, arm="k4") == ticks[1:3]
    assert select(ticks, arm="k4", group="prose") == select(ticks, group="prose") == [ticks[2]]


def test_measured_metric_averages_usable_requests_and_counts_them_as_samples() -> None:
    rates = [10.0, 20.0, 40.0, 50.0]
    ticks = [paced(place("k4", f"p{i}"), rate) for i, rate in enumerate(rates)]
    noise = [paced(place("k4", "p0", warm_up=True), 9000.0), tick(place("k4", "p1"), [(9.0, 1)], error="gone")]
    found = measure(ticks + noise, "decode_tokens_per_second")
    assert found is not None
    assert (found.estimate, found.samples) == (pytest.approx(30.0), 4)
    assert found.low < 30 < found.high


def test_inter_token_percentile_pools_tokens_and_counts_requests_as_samples() -> None:
    """The 95th percentile of inter-token times is over tokens: a long answer has more of them."""
    long = tick(place("ar", "long"), [(i / 10, 1) for i in range(41)])
    short = tick(place("ar", "short"), [(0.0, 1), (5.0, 1)])
    found = measure([long, short], "inter_token_p95")
    assert found is not None
    assert found.estimate == pytest.approx(np.quantile([0.1] * 40 + [5.0], 0.95))
    assert found.samples == 2


def test_repetitions_of_prompt_do_not_narrow_confidence_interval() -> None:
    """Four prompts, however often repeated, are four: the interval does not narrow with repetitions that say nothing
    new."""
    rates = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0}
    once = [paced(place("k4", name), rate) for name, rate in rates.items()]
    many = [paced(place("k4", name, repetition=r), rate) for r in range(20) for name, rate in rates.items()]
    few, more = measure(once, "decode_tokens_per_second"), measure(many, "decode_tokens_per_second")
    assert few is not None
    assert more is not None
    assert (more.low, more.high) == (pytest.approx(few.low, abs=1), pytest.approx(few.high, abs=1))


def test_arm_ratio_does_not_pair_same_named_prompts_of_different_groups() -> None:
    ticks = [paced(place("ar", "1", group=g), rate) for g, rate in (("x", 5.0), ("y", 9.0))]
    ticks += [paced(place("k4", "1", group=g), rate) for g, rate in (("y", 18.0), ("z", 900.0))]
    found = against(ticks, "k4", "ar", "decode_tokens_per_second")
    assert found is not None
    assert (found.estimate, found.samples) == (pytest.approx(2.0), 1)


def two_arms(seed: int, gain: float) -> Iterator[Tick]:
    """Ticks of two arms on prompts that differ by a factor of ten; `gain` is the ratio between the arms."""
    draw = random.Random(seed)
    for i in range(16):
        pace = draw.uniform(10, 100)
        for r in range(3):
            yield paced(place("ar", f"p{i}", repetition=r), pace * draw.uniform(0.97, 1.03))
            yield paced(place("k4", f"p{i}", repetition=r), gain * pace * draw.uniform(0.97, 1.03))


def test_arm_ratio_uses_only_prompts_common_to_both_arms() -> None:
    ticks = list(two_arms(1, 1.3))
    found = against(ticks, "k4", "ar", "decode_tokens_per_second")
    assert found is not None
    assert 1.2 < found.low < 1.3 < found.high < 1.4
    assert found.samples == 48
    # Prompts that only one side has would move it: they are left out, also from the samples.
    lonely = [paced(place("k4", f"lonely{i}"), 9000.0) for i in range(40)]
    others = [paced(place("ar", f"other{i}"), 1.0) for i in range(40)]
    assert against(ticks + lonely + others, "k4", "ar", "decode_tokens_per_second") == found
    assert against(lonely, "k4", "ar", "decode_tokens_per_second") is None


def test_arm_ratio_of_arm_to_itself_is_one() -> None:
    found = against(two_arms(2, 1.0), "ar", "ar", "inter_token_p95")
    assert found is not None
    assert (found.estimate, found.low, found.high) == (1.0, 1.0, 1.0)


def test_complete_request_record_yields_value_for_every_metric() -> None:
    full = tick(
        place("k2"),
        [(0.1, 1), (0.2, 3), (0.3, 2)],
        served=ServerTiming(0.01, 0.05, 0.08, 0.31),
        counts=drafted(2, drafts=2, accepted=3, draft_seconds=0.01, verify_seconds=0.1),
    )
    for name, metric in METRICS.items():
        assert measure([full], name) is not None, name
        assert metric.description.endswith(".")


def test_acceptance_and_mean_accepted_length_derive_from_draft_counts_of_request() -> None:
    counts = DraftCounts(steps=3, drafts=2, drafted=8, accepted=3)
    drafting = tick(place("k4"), counts=counts)
    for name, wanted in (("acceptance", 3 / 8), ("mean_accepted_length", 2.5)):
        found = measure([drafting], name)
        assert found is not None
        assert found.estimate == wanted
        assert measure([tick(place("k4"), chunks=[], ended=0.2)], name) is None


def test_acceptance_by_position_pools_tokens_of_all_successful_requests() -> None:
    ticks = [
        tick(place("k4", "a"), counts=DraftCounts(drafted_per_position=[10, 10, 10], accepted_per_position=[9, 6])),
        tick(place("k4", "b"), counts=DraftCounts(drafted_per_position=[30], accepted_per_position=[15])),
        tick(place("k4", "c"), error="gone", counts=DraftCounts(drafted_per_position=[9], accepted_per_position=[9])),
    ]
    assert per_position(total_counts(ticks)) == (24 / 40, 0.6, 0.0)
    assert per_position(tick().counts) == ()


def together(session: int, start: float, prompts: str, *, seconds: float = 1.0, error: str = "") -> list[Tick]:
    """Ticks of requests 10 ms apart, ten tokens each, the first ending last; the last has the `error`."""
    return [
        tick(
            place("k4-x2", name, session=session),
            [(0.1, 10)],
            elapsed=start + i / 100,
            ended=seconds - i / 50,
            error=error if i == len(prompts) - 1 else "",
        )
        for i, name in enumerate(prompts)
    ]


def test_total_throughput_and_energy_count_tokens_of_concurrent_requests_together() -> None:
    ticks = together(1, 0.0, "ab") + together(1, 1.5, "cd", seconds=2.0) + together(2, 0.0, "ab")
    random.Random(1).shuffle(ticks)
    found = total_throughput(ticks, "k4-x2")
    assert found is not None
    assert found.samples == 3
    assert (found.low, found.estimate, found.high) == (pytest.approx(10), pytest.approx(20), pytest.approx(20))
    energy = summarise(ticks, [sample("k4-x2", watts=15.0)], "k4-x2").joules_per_token
    assert energy == pytest.approx(15 * 4.0 / 60)


def test_total_throughput_counts_overlapping_requests_as_one_group() -> None:
    ticks = [
        tick(place("k4-x2", name), [(0.1, 10)], elapsed=elapsed, ended=seconds)
        for name, elapsed, seconds in (("a", 0.0, 4.0), ("b", 0.1, 1.0), ("c", 2.0, 1.0))
    ]
    found = total_throughput(ticks, "k4-x2")
    assert found is not None
    assert (found.estimate, found.samples) == (pytest.approx(30 / 4), 1)


def test_total_throughput_excludes_concurrent_group_with_failed_request() -> None:
    whole, broken = together(1, 0.0, "ab"), together(1, 5.0, "cd", error="gone")
    found = total_throughput(whole + broken, "k4-x2")
    assert found is not None
    assert found.samples == 1
    assert total_throughput(broken, "k4-x2") is None
    assert total_throughput(whole, "ar") is None


def sample(arm: str, **readings: float | None) -> MachineSample:
    return MachineSample(Stage.SWEEP, 1, arm, 0.0, 0.0, **readings)  # type: ignore[arg-type]


def test_arm_summary_excludes_requests_and_machine_samples_of_other_arms() -> None:
    counts = drafted(4, drafts=5, accepted=10, draft_seconds=0.1, verify_seconds=0.5)
    ticks = [
        tick(place("k4", "a"), [(0.1, 1), (0.5, 9)], ended=0.6, counts=counts),
        tick(place("k4", "b"), [(0.1, 1), (0.5, 9)], ended=0.6, elapsed=2.0, counts=counts),
        tick(place("k4", "c"), error="gone"),
        tick(place("k4", "a", warm_up=True), error="gone"),
        tick(place("ar", "a")),
    ]
    samples = [
        sample("k4", resident=500, mlx_active=300, watts=10.0),
        sample("k4", resident=700, mlx_active=None, watts=30.0),
        sample("ar", resident=9000, mlx_active=9000, watts=9000.0),
        sample("k4", resident=None, watts=None),
    ]
    found = summarise(ticks, samples, "k4")
    assert (found.requests, found.errors, found.output_tokens) == (2, 1, 20)
    assert found.figures.keys() == METRICS.keys()
    assert found.figures["acceptance"] == measure(ticks, "acceptance")
    assert found.figures["queue"] is None
    assert found.acceptance_per_position == per_position(total_counts(ticks))
    assert (found.target_forwards_per_token, found.draft_forwards_per_token) == (12 / 20, 40 / 20)
    assert (found.peak_resident, found.peak_mlx) == (700, 300)
    assert found.watts == 20.0
    assert found.joules_per_token == pytest.approx(20.0 * 1.2 / 20)


def test_arm_summary_reports_unread_values_as_none_instead_of_zero() -> None:
    found = summarise([tick(place("k4"))], [sample("k4")], "k4")
    assert (found.peak_resident, found.peak_mlx, found.watts, found.joules_per_token) == (None, None, None, None)
    nothing = summarise([], [], "k4")
    assert (nothing.requests, nothing.output_tokens, nothing.target_forwards_per_token) == (0, 0, None)
    assert set(nothing.figures.values()) == {None}
    assert nothing.total_tokens_per_second is None
