"""Never slower: the rate after an answer's beginning, and its ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.never_slower import CASES, GOOD, NeverSlower, after, figures
from benchmarks.peers.part import Context, Pair
from benchmarks.peers.random_draft import random_draft
from benchmarks.peers.store import Store
from benchmarks.peers.streams import Chunk, Stream
from benchmarks.peers.ways import AUTOMATIC, AUTOREGRESSIVE, Turn
from benchmarks.ratios import CLASSES


def stream(*chunks: tuple[float, int]) -> Stream:
    return Stream("p", 0.0, chunks[-1][0], tuple(Chunk(*one) for one in chunks))


def test_never_slower_benchmark_rate_excludes_chunks_up_to_the_one_with_the_nth_token() -> None:
    answer = stream((1.0, 1), (2.0, 62), (3.0, 4), (4.0, 10), (6.0, 10))
    assert after(answer, 1) == (86, 5.0)
    assert after(answer, 64) == (20, 3.0)  # the chunk at 3 s holds the 64th
    assert after(answer, 80) is None
    assert after(answer, 88) is None
    assert after(answer, 77) == (10, 2.0)


def steady(rate: float, slow: float = 1.0, tokens: int = 257) -> dict[str, Any]:
    """A turn of one token a chunk at `rate`, the first 64 at `slow` times that."""
    at, chunks = 0.5, [Chunk(0.5, 1)]
    for number in range(1, tokens):
        at += 1 / rate / (slow if number < 64 else 1.0)
        chunks.append(Chunk(at, 1))
    return Turn((Stream("p", 0.0, at, tuple(chunks)),), tokens).record()


def records(case: str, ratio: float, slow: float = 1.0) -> list[dict[str, Any]]:
    """Three repetitions of one prompt of each class: automatic depth at `ratio` of the other arm's rate."""
    return [
        {
            "case": case,
            "repetition": repetition,
            "answers": [
                {"way": way, "workload": workload, "turn": turn}
                for workload in CLASSES
                for way, turn in (
                    (AUTOMATIC.name, steady(100 * ratio * (1 + 0.01 * repetition), slow)),
                    (AUTOREGRESSIVE.name, steady(100)),
                )
            ],
        }
        for repetition in (-1, 0, 1)
    ]


def test_never_slower_benchmark_gives_each_case_a_ratio_from_token_1_and_from_token_64() -> None:
    by_name = {one.key: one for case in CASES for one in figures(records(case, 0.98, slow=0.5))}
    assert len(by_name) == 2 * len(CASES)
    later, whole = by_name["random_draft_after_64"], by_name["random_draft_from_first_token"]
    assert later.value == pytest.approx(0.98, rel=1e-4)
    assert (later.low, later.high) == pytest.approx((0.98 * 0.99, 0.98 * 1.01), rel=1e-4)
    assert later.holds
    assert whole.value == pytest.approx(256 / (193 + 63 / 0.5) * 0.98, rel=1e-3)
    assert not whole.holds


def test_never_slower_benchmark_gives_well_matched_draft_pair_one_ratio_per_workload() -> None:
    workload_figures = figures(records(GOOD, 1.5))
    assert [one.key for one in workload_figures] == [f"good_pair_{workload}" for workload in CLASSES]
    assert all(one.wanted == 1.0 and one.holds for one in workload_figures)
    assert not any(one.holds for one in figures(records(GOOD, 0.95)))


def test_never_slower_benchmark_skips_cases_already_measured(tmp_path: Path) -> None:
    store = Store(tmp_path / "never_slower.jsonl")
    part = NeverSlower(repetitions=3)
    for case in (*CASES, GOOD):
        for number, record in enumerate(records(case, 1.0)):
            store.add(record | {"repetition": number})
    context = Context(Pair("nowhere", "nowhere"), [], None, store, False, 1)  # type: ignore[arg-type]
    assert len(part.run(context)) == 2 * len(CASES) + len(CLASSES)


def test_generated_random_draft_model_loads_as_draft_model(nano_pair: Any, tmp_path: Path) -> None:
    from draftd.engine.pair import load_models

    folder = random_draft(nano_pair.draft, tmp_path / "draft", hidden=64, layers=1, inner=64)
    models = load_models(nano_pair.target, str(folder), progress=lambda line: None)
    assert "draft_model" in models.info.drafters
