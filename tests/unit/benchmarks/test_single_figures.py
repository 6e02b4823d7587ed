"""From the records of one model's benchmarks to ratios."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.single.figures import (
    acceptance,
    after_first,
    decode_rate,
    interval,
    median_of,
    same_share,
    same_texts,
    spread,
    together_rate,
    whole_rate,
)


def answer(arm: str, repetition: int, rate: float, *, prompt: str = "p", first: float = 1.0, **more: Any) -> dict:
    """A record of eleven tokens, the first after `first` seconds, the others at `rate`."""
    times = [first + i / rate for i in range(11)]
    return {"arm": arm, "repetition": repetition, "prompt": prompt, "text": list(range(11)), "times": times, **more}


def both(rates: list[tuple[float, float]]) -> list[dict]:
    return [
        answer(arm, repetition, rate)
        for repetition, pair in enumerate(rates)
        for arm, rate in zip(("fast", "slow"), pair, strict=True)
    ]


def test_benchmark_spread_is_median_and_range_of_ratios_within_repetitions() -> None:
    ratio = spread(both([(20, 10), (60, 20), (5, 5)]), "fast", "slow", decode_rate)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2, 1, 3))
    assert (ratio.mine, ratio.base) == pytest.approx((20, 10))
    assert ratio.document(ci_low=0.123456) == {"median": 2.0, "low": 1.0, "high": 3.0, "ci_low": 0.1235}


def test_benchmark_spread_uses_only_records_with_given_field_values() -> None:
    records = [answer("fast", 0, 30, length=1), answer("slow", 0, 10, length=1), answer("slow", 0, 30, length=2)]
    assert spread(records, "fast", "slow", decode_rate, length=1).median == pytest.approx(3)
    with pytest.raises(
        ValueError, match="no repetition has records of both the arms fast and slow where {'length': 2}"
    ):
        spread(records, "fast", "slow", decode_rate, length=2)


def test_whole_rate_includes_prompt_time_and_decode_rate_excludes_prompt_time() -> None:
    record = answer("fast", 0, 10, first=4.0)
    assert whole_rate([record]) == pytest.approx(11 / 5)
    assert decode_rate([record]) == pytest.approx(10)


def test_decode_rate_excludes_tokens_of_first_chunk() -> None:
    assert after_first([1.0, 1.0, 3.0, 3.0, 3.0]) == (3, 2.0)


def test_concurrent_decode_rate_counts_only_time_in_which_all_streams_decode() -> None:
    early = {"times": [0.0, 1.0, 2.0, 3.0, 4.0]}
    late = {"times": [1.5, 2.5, 3.5, 4.5, 5.5]}
    assert together_rate([early, late]) == pytest.approx(5 / 2.5)
    with pytest.raises(ValueError, match="2 streams: one ended before another decoded"):
        together_rate([early, {"times": [4.0, 5.0]}])


def test_benchmark_interval_pairs_answers_by_prompt_and_resamples_whole_repetitions() -> None:
    records = [
        answer(arm, repetition, 10 * (factor if arm == "fast" else 1), prompt=prompt)
        for repetition, factor in enumerate((1.0, 1.1, 1.2, 1.3))
        for prompt in ("a", "b")
        for arm in ("fast", "slow")
    ]
    low, high = interval(records, "fast", "slow", decode_rate)
    assert (low, high) == pytest.approx((1.0, 1.3))


def test_benchmark_acceptance_counts_only_records_of_given_arm_and_workload() -> None:
    counts = {"drafted": 8, "accepted": 6, "steps": 5, "workload": "edit"}
    records = [answer("fast", 0, 10, **counts), answer("fast", 0, 10, **counts | {"workload": "chat", "accepted": 0})]
    assert acceptance(records, "fast", workload="edit") == pytest.approx((0.75, 11 / 5))
    assert acceptance(records, "slow") == (0.0, 0.0)


def test_benchmark_median_is_taken_over_named_record_field() -> None:
    assert median_of("seconds")([{"seconds": 3}, {"seconds": 1}, {"seconds": 2}]) == 2


def test_benchmark_refuses_comparison_when_greedy_texts_differ() -> None:
    records = both([(20, 10)])
    same_texts(records)
    records[1]["text"] = [*range(10), 99]
    with pytest.raises(ValueError, match="slow: the greedy text for p differs from the arm fast's at 10"):
        same_texts(records)
    records[1]["text"] = list(range(10))
    with pytest.raises(ValueError, match="at the end"):
        same_texts(records)


def test_share_of_identical_texts_is_counted_by_prompt() -> None:
    texts = {"fast": {"a": "x", "b": "y"}, "slow": {"a": "x", "b": "z"}}
    records = [{"arm": arm, "repetition": 0, "texts": said} for arm, said in texts.items()]
    assert same_share(records, "fast", "slow") == 0.5
