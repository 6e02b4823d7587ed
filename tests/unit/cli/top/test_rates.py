"""Figures from counters and successive snapshots, and their history. Unknown figures are None."""

from __future__ import annotations

from draftd.cli.top.rates import StatusHistory, StatusSnapshot, between, drafting
from draftd.protocol import draft_counts
from tests.unit.cli.top.snapshots import SECOND_RUN, counts, history, status


def test_throughput_is_what_came_out_over_the_time_it_took() -> None:
    before = StatusSnapshot(100.0, status(1_000))
    after = StatusSnapshot(102.5, status(1_500))
    rates = between(before, after)
    assert rates is not None
    assert (rates.seconds, rates.tokens_per_second) == (2.5, 200.0)


def test_an_idle_daemon_has_a_rate_of_zero_and_no_acceptance() -> None:
    step_counts = counts(10, 40, 30, per_position=[(10, 10), (8, 10)])
    rates = between(StatusSnapshot(1.0, status(50, step_counts)), StatusSnapshot(2.0, status(50, step_counts)))
    assert rates is not None
    assert rates.tokens_per_second == 0
    d = rates.drafting
    assert (d.acceptance, d.mean_length, d.depth, d.drafting, d.speedup, d.tokens_per_forward) == (None,) * 6
    assert d.per_position == (None, None)


def test_only_what_was_drafted_in_between_counts() -> None:
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


def test_a_position_that_was_never_drafted_before_is_new() -> None:
    before = counts(10, 10, 5, per_position=[(5, 10)])
    after = counts(20, 30, 15, per_position=[(13, 20), (2, 10)])
    rates = between(StatusSnapshot(1.0, status(0, before)), StatusSnapshot(2.0, status(0, after)))
    assert rates is not None
    assert rates.drafting.per_position == (0.8, 0.2)


def test_requests_are_counted_by_how_they_ended() -> None:
    before = status(finished_requests={"stop": 5, "error": 1}, refused_requests=2)
    after = status(finished_requests={"stop": 7, "error": 2, "cancelled": 1}, refused_requests=6)
    rates = between(StatusSnapshot(1.0, before), StatusSnapshot(2.0, after))
    assert rates is not None
    assert (rates.finished, rates.failed, rates.refused) == (4, 1, 4)


def test_a_daemon_that_was_started_anew_is_not_compared_even_where_its_counters_are_higher() -> None:
    assert between(StatusSnapshot(1.0, status(5)), StatusSnapshot(60.0, status(900, run=SECOND_RUN))) is None


def test_two_snapshots_of_one_moment_give_no_rate() -> None:
    assert between(StatusSnapshot(1.0, status(5)), StatusSnapshot(1.0, status(6))) is None


def test_where_nothing_was_ever_drafted_nothing_is_said_of_drafts() -> None:
    figures = drafting(draft_counts(counts(plain=30), 30))
    assert (figures.acceptance, figures.mean_length, figures.depth, figures.speedup) == (None,) * 4
    assert figures.per_position == ()
    assert (figures.drafting, figures.tokens_per_forward) == (0.0, 1.0)


def test_a_speedup_that_was_not_measured_is_not_known() -> None:
    assert drafting(draft_counts(counts(10, 40, 30), 40)).speedup is None
    assert drafting(draft_counts(counts(10, 40, 30, break_even=15.0), 40)).speedup == 1.6
    partly = counts(10, 40, 30, break_even=6.0)
    partly.unpriced_drafts = 6
    assert drafting(draft_counts(partly, 40)).speedup == 1.6, "the others cost what those do whose cost is known"


def filled(seconds: int, per_second: int = 10) -> StatusHistory:
    return history(*(status(second * per_second) for second in range(seconds + 1)), seconds=1.0, begin=0.0)


def test_after_one_snapshot_nothing_is_known_of_the_present() -> None:
    statuses = filled(0)
    assert (statuses.now, statuses.minute, list(statuses.past)) == (None, None, [])


def test_the_window_is_a_minute_however_long_it_has_been_watched() -> None:
    statuses = filled(200)
    minute = statuses.minute
    assert minute is not None
    assert (minute.seconds, minute.tokens_per_second) == (60.0, 10.0)
    statuses.add(StatusSnapshot(201.0, status(2_000 + 610)))
    assert statuses.now is not None
    assert statuses.minute is not None
    assert statuses.now.tokens_per_second == 610
    assert statuses.minute.tokens_per_second == (59 * 10 + 610) / 60


def test_where_looks_are_further_apart_than_the_window_the_last_two_are_compared() -> None:
    minute = history(status(0), status(300), seconds=300.0).minute
    assert minute is not None
    assert minute.seconds == 300.0


def test_a_daemon_started_anew_begins_a_new_window_and_the_curve_goes_on() -> None:
    statuses = filled(20)
    statuses.add(StatusSnapshot(21.0, status(3, run=SECOND_RUN)))
    assert (statuses.now, statuses.minute) == (None, None)
    statuses.add(StatusSnapshot(22.0, status(8, run=SECOND_RUN)))
    assert statuses.minute is not None
    assert statuses.minute.tokens_per_second == 5.0
    assert [one is None for one in statuses.past] == [False] * 20 + [True, False]


def test_while_the_daemon_is_silent_its_present_is_not_known() -> None:
    statuses = filled(20)
    statuses.gap()
    assert statuses.now is None
    assert statuses.minute is not None
    assert statuses.past[-1] is None


def test_curve_of_past_rates_is_bounded() -> None:
    assert len(filled(2_000).past) == 400
