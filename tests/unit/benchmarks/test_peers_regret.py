"""Automatic depth against the best of a sweep, on answers whose true rates are known."""

from __future__ import annotations

import random

import pytest
from rich.console import Console

from benchmarks.arms import Prompt
from benchmarks.peers.part import Context, Pair
from benchmarks.peers.regret import CELLS, DEPTHS, Asked, Regret, Sample, best_fixed, figure, figures, ways_of
from benchmarks.peers.streams import Chunk, Stream
from benchmarks.peers.ways import AUTOMATIC, AUTOREGRESSIVE, Turn, fixed
from benchmarks.ratios import CLASSES

CURVE = {0: 100.0, 1: 120.0, 2: 140.0, 3: 150.0, 4: 145.0, 6: 130.0, 8: 110.0}


def samples(automatic: float, noise: float = 0.0, repetitions: int = 12, seed: int = 1) -> list[Sample]:
    """Samples of 100 tokens at the rates of `CURVE`, with `noise` as their relative standard deviation."""
    draw = random.Random(seed)
    rates = {**{str(depth): rate for depth, rate in CURVE.items()}, AUTOMATIC.name: automatic}
    return [
        Sample(repetition, way, 100, 100 / rate * max(0.1, draw.gauss(1, noise)))
        for repetition in range(repetitions)
        for way, rate in rates.items()
    ]


def test_regret_ratio_compares_automatic_depth_with_best_fixed_depth() -> None:
    regret = figure("cell", samples(147.0))
    assert best_fixed(samples(147.0)) == "3"
    assert regret.value == pytest.approx(147 / 150)
    assert regret.holds
    assert not figure("cell", samples(140.0)).holds


def test_regret_ratio_is_unbiased_by_choosing_best_of_equally_good_depths() -> None:
    """All depths are equally good: the mean ratio is one, although the best of seven is luckier on the same samples."""
    level = [
        [Sample(one.repetition, one.way, one.tokens, one.seconds * CURVE.get(int(one.way), 100.0) / 100)
         if one.way != AUTOMATIC.name else one for one in samples(100.0, noise=0.1, seed=seed)]
        for seed in range(200)
    ]  # fmt: skip
    crossed = sum(figure("cell", some).value for some in level) / len(level)
    naive = sum(float(figure("cell", some).detail.split("ratio ")[1][:-1]) for some in level) / len(level)
    assert crossed == pytest.approx(1.0, abs=0.01)  # the mean of 200 has a standard error of 0.003
    assert naive < 0.975


def test_regret_chooses_best_depth_on_opposite_half_of_repetitions() -> None:
    """Depth 8 is by far the best in even repetitions, and the worst in odd ones."""
    lucky = [
        Sample(one.repetition, one.way, one.tokens, one.seconds * (0.2 if one.repetition % 2 == 0 else 5.0))
        if one.way == "8"
        else one
        for one in samples(150.0)
    ]
    regret = figure("cell", lucky)
    assert regret.detail.split("best on the halves: ")[1].startswith("8, 3;")
    # On even repetitions the comparison is with depth 3, on odd ones with depth 8, five times slower.
    assert regret.low == pytest.approx(1.0)
    assert regret.high == pytest.approx(150 / 22)


def test_regret_figure_needs_at_least_two_repetitions() -> None:
    with pytest.raises(ValueError, match="two or more"):
        figure("cell", samples(150.0, repetitions=1))


def test_regret_benchmark_reports_one_figure_for_each_cell() -> None:
    def turn(rate: float) -> dict:
        return Turn((Stream("p", 0.0, 100 / rate, (Chunk(0.01, 50), Chunk(100 / rate, 50)), text=""),), 40).record()

    rates = {**{str(depth): CURVE[depth] for depth in DEPTHS}, AUTOMATIC.name: 160.0}
    records = [
        {"cell": cell.key, "repetition": repetition, "group": 0, "way": way, "turn": turn(rate)}
        for cell in CELLS
        for repetition in range(2)
        for way, rate in rates.items()
    ]
    cell_figures = figures(records)
    assert [one.key for one in cell_figures] == [cell.key for cell in CELLS]
    assert len(cell_figures) == 16
    assert {round(one.value, 3) for one in cell_figures} == {round(160 / 150, 3)}
    assert {one.wanted for one in cell_figures} == {0.97}


def test_regret_fixed_depth_0_is_autoregressive_and_all_depths_share_one_drafter() -> None:
    assert fixed(0) is AUTOREGRESSIVE
    assert fixed(3).depth == 3
    assert {way.drafter for way in ways_of(Pair("target", "draft"))} == {None}
    assert {way.drafter for way in ways_of(Pair("target"))} == {None, "prompt_lookup"}


def test_measured_prompt_group_computes_rates_and_survives_storage_round_trip() -> None:
    streams = (
        Stream("a", 5.0, 7.0, (Chunk(5.5, 1), Chunk(6.9, 4)), 3, 0, 5),
        Stream("b", 5.1, 7.5, (Chunk(5.6, 2), Chunk(7.4, 3)), 3, 0, 5),
    )
    turn = Turn(streams, 6)
    assert (turn.tokens, turn.seconds, turn.tokens_a_step) == (10, 2.5, 2.0)
    again = Turn.of_record(turn.record())
    assert (again.tokens, again.seconds, again.tokens_a_step) == pytest.approx((10, 2.5, 2.0))


def answered(context: Context, tokens: int, until: int = 10_000) -> tuple[list[Asked], dict]:
    """Returns the requests of one repetition, or the first `until`, and the tokens answered by key."""
    asked: list[Asked] = []
    done: dict = {}
    while missing := Regret()._missing(context, 0, done):
        for one in missing:
            if len(asked) == until:
                return asked, done
            asked.append(one)
            done[one.key] = tokens * one.cell.batch
    return asked, done


@pytest.fixture
def context() -> Context:
    prompts = [Prompt(f"{name}-{i}", name, ()) for name in CLASSES for i in range(80)]
    return Context(Pair("", ""), prompts, Console(), None, False, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tokens", "alone", "together"), [(10, 16, 4), (96, 2, 1), (1, 16, 16)])
def test_regret_benchmark_asks_prompt_groups_until_cell_has_enough_tokens(
    context: Context, tokens: int, alone: int, together: int
) -> None:
    asked, _ = answered(context, tokens)
    for cell in CELLS:
        groups = [one.group for one in asked if one.cell is cell and one.way is AUTOMATIC]
        assert groups == list(range(alone if cell.batch == 1 else together))


def test_regret_benchmark_asks_same_prompts_at_all_depths_and_different_per_group(context: Context) -> None:
    asked, _ = answered(context, 20)
    for cell in CELLS:
        mine = [one for one in asked if one.cell is cell]
        groups = {one.group: one.prompts for one in mine}
        assert all(one.prompts == groups[one.group] for one in mine)
        assert {one.way for one in mine if one.group == 0} == set(ways_of(context.pair))
        assert len({prompt.id for some in groups.values() for prompt in some}) == len(groups) * cell.batch


def test_resumed_regret_benchmark_does_not_repeat_answered_requests(context: Context) -> None:
    whole, _ = answered(context, 20)
    begun, done = answered(context, 20, until=333)
    rest: list[Asked] = []
    while missing := Regret()._missing(context, 0, done):
        for one in missing:
            rest.append(one)
            done[one.key] = 20 * one.cell.batch
    assert len(begun) + len(rest) == len(whole)
    assert {str(one.place) for one in begun + rest} == {str(one.place) for one in whole}
