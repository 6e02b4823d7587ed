"""Figures from counters and successive snapshots, and their history. Unknown figures are None."""

from __future__ import annotations

from draftd.cli.top.rates import StatusHistory, StatusSnapshot, between, drafting
from draftd.protocol import draft_counts
from tests.unit.cli.top.snapshots import SECOND_RUN, counts, history, status


def test_top_throughput_is_output_tokens_between_snapshots_over_elapsed_time() -> None:
    before = StatusSnapshot(100.0, status(1_000))
    after = StatusSnapshot(102.5, status(1_500))
    rates = between(before, after)
    assert rates is not None
    assert (rates.seconds, rates.tokens_per_second) == (2.5, 200.0)


def test_top_rates_of_idle_daemon_have_zero_throughput_and_no_acceptance() -> None:
    step_counts = counts(10, 40, 30, per_position=[(10, 10), (8, 10)])
    rates = between(StatusSnapshot(1.0, status(50, step_counts)), StatusSnapshot(2.0, status(50, step_counts)))
    assert rates is not None
    assert rates.tokens_per_second == 0
    d = rates.drafting
    assert (d.acceptance, d.mean_length, d.depth, d.drafting, d.speedup, d.tokens_per_forward) == (None,) * 6
    assert d.per_position == (None, None)


def test_top_draft_rates_count_only_drafts_between_the_two_snapshots() -> None:
    before = counts(100, 400, 100, break_even=0.0, cut=50, per_position=[(80, 100), (20, 100)])
    after = counts(110, 430, 124, plain=10, break_even=20.0, cut=54, per_position=[(89, 110), (35, 120)])
    rates = between(StatusSnapshot(1.0, status(200, before)), StatusSnapshot(2.0, status(244, after)))
    assert rates is not None
    d = rates.drafting
    assert d.acceptance == 24 / 30
    assert d.per_position == (0.9, 0.75)
    assert d.mean_length == 1 + 24 / 10
    assert d.depth == 3.0
    assert d.drafting == 0.5
    assert d.speedup == (10 + 24 - 4) / (10 + 20)
    assert d.tokens_per_forward == 44 / 20


def test_top_acceptance_per_position_includes_positions_first_drafted_in_the_interval() -> None:
    before = counts(10, 10, 5, per_position=[(5, 10)])
    after = counts(20, 30, 15, per_position=[(13, 20), (2, 10)])
    rates = between(StatusSnapshot(1.0, status(0, before)), StatusSnapshot(2.0, status(0, after)))
    assert rates is not None
    assert rates.drafting.per_position == (0.8, 0.2)


def test_top_rates_count_finished_failed_and_refused_requests_separately() -> None:
    before = status(finished_requests={"stop": 5, "error": 1}, refused_requests=2)
    after = status(finished_requests={"stop": 7, "error": 2, "cancelled": 1}, refused_requests=6)
    rates = between(StatusSnapshot(1.0, before), StatusSnapshot(2.0, after))
    assert rates is not None
    assert (rates.finished, rates.failed, rates.refused) == (4, 1, 4)


def test_top_computes_no_rates_across_a_daemon_restart() -> None:
    assert between(StatusSnapshot(1.0, status(5)), StatusSnapshot(60.0, status(900, run=SECOND_RUN))) is None


def test_top_computes_no_rates_from_two_snapshots_of_the_same_moment() -> None:
    assert between(StatusSnapshot(1.0, status(5)), StatusSnapshot(1.0, status(6))) is None


def test_top_draft_figures_are_none_when_nothing_was_ever_drafted() -> None:
    figures = drafting(draft_counts(counts(plain=30), 30))
    assert (figures.acceptance, figures.mean_length, figures.depth, figures.speedup) == (None,) * 4
    assert figures.per_position == ()
    assert (figures.drafting, figures.tokens_per_forward) == (0.0, 1.0)


def test_top_speedup_is_none_without_draft_costs_and_extrapolates_partly_known_costs() -> None:
    assert drafting(draft_counts(counts(10, 40, 30), 40)).speedup is None
    assert drafting(draft_counts(counts(10, 40, 30, break_even=15.0), 40)).speedup == 1.6
    partly = counts(10, 40, 30, break_even=6.0)
    partly.unpriced_drafts = 6
    assert drafting(draft_counts(partly, 40)).speedup == 1.6, "the others cost what those do whose cost is known"


def filled(seconds: int, per_second: int = 10) -> StatusHistory:
    return history(*(status(second * per_second) for second in range(seconds + 1)), seconds=1.0, begin=0.0)


def test_top_history_has_no_current_rates_after_one_snapshot() -> None:
    statuses = filled(0)
    assert (statuses.now, statuses.minute, list(statuses.past)) == (None, None, [])


def test_top_history_averages_over_the_last_minute_only() -> None:
    statuses = filled(200)
    minute = statuses.minute
    assert minute is not None
    assert (minute.seconds, minute.tokens_per_second) == (60.0, 10.0)
    statuses.add(StatusSnapshot(201.0, status(2_000 + 610)))
    assert statuses.now is not None
    assert statuses.minute is not None
    assert statuses.now.tokens_per_second == 610
    assert statuses.minute.tokens_per_second == (59 * 10 + 610) / 60


def test_top_history_compares_the_last_two_snapshots_when_they_are_over_a_minute_apart() -> None:
    minute = history(status(0), status(300), seconds=300.0).minute
    assert minute is not None
    assert minute.seconds == 300.0


def test_top_history_restarts_its_window_and_continues_its_curve_after_daemon_restart() -> None:
    statuses = filled(20)
    statuses.add(StatusSnapshot(21.0, status(3, run=SECOND_RUN)))
    assert (statuses.now, statuses.minute) == (None, None)
    statuses.add(StatusSnapshot(22.0, status(8, run=SECOND_RUN)))
    assert statuses.minute is not None
    assert statuses.minute.tokens_per_second == 5.0
    assert [one is None for one in statuses.past] == [False] * 20 + [True, False]


def test_top_history_has_no_current_rates_while_the_daemon_does_not_answer() -> None:
    statuses = filled(20)
    statuses.gap()
    assert statuses.now is None
    assert statuses.minute is not None
    assert statuses.past[-1] is None


def test_top_history_keeps_at_most_400_past_rates() -> None:
    assert len(filled(2_000).past) == 400
