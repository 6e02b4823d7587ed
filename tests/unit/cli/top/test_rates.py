"""Figures from counters and from successive snapshots, and what is remembered of them. What is not known is None."""

from __future__ import annotations

import pytest

from draftd.cli.top.rates import History, Interval, Snapshot, between, curve, drafting
from draftd.v1 import control_pb2 as pb
from tests.unit.cli.top.snapshots import SECOND_RUN, counts, status


def test_a_first_snapshot_has_nothing_to_be_compared_with() -> None:
    assert between(None, Snapshot(1.0, status(5))) is None


def test_throughput_is_what_came_out_over_the_time_it_took() -> None:
    before = Snapshot(100.0, status(1_000))
    after = Snapshot(102.5, status(1_500))
    found = between(before, after)
    assert found is not None
    assert (found.seconds, found.tokens_per_second) == (2.5, 200.0)


def test_an_idle_daemon_has_a_rate_of_zero_and_no_acceptance() -> None:
    made = counts(10, 40, 30, per_position=[(10, 10), (8, 10)])
    found = between(Snapshot(1.0, status(50, made)), Snapshot(2.0, status(50, made)))
    assert found is not None
    assert found.tokens_per_second == 0
    d = found.drafting
    assert (d.acceptance, d.mean_length, d.depth, d.drafting, d.speedup, d.tokens_per_forward) == (None,) * 6
    assert d.per_position == (None, None)


def test_only_what_was_drafted_in_between_counts() -> None:
    before = counts(100, 400, 100, per_position=[(80, 100), (20, 100)])
    after = counts(110, 430, 124, plain=10, break_even=20.0, per_position=[(89, 110), (35, 120)])
    found = between(Snapshot(1.0, status(200, before)), Snapshot(2.0, status(244, after)))
    assert found is not None
    d = found.drafting
    assert d.acceptance == 24 / 30
    assert d.per_position == (0.9, 0.75)
    assert d.mean_length == 1 + 24 / 10
    assert d.depth == 3.0
    assert d.drafting == 0.5
    assert d.speedup == (10 + 24) / (10 + 20)
    assert d.tokens_per_forward == 44 / 20


def test_a_position_that_was_never_drafted_before_is_new() -> None:
    before = counts(10, 10, 5, per_position=[(5, 10)])
    after = counts(20, 30, 15, per_position=[(13, 20), (2, 10)])
    found = between(Snapshot(1.0, status(0, before)), Snapshot(2.0, status(0, after)))
    assert found is not None
    assert found.drafting.per_position == (0.8, 0.2)


def test_requests_are_counted_by_how_they_ended() -> None:
    before = status(finished_requests={"stop": 5, "error": 1}, refused_requests=2)
    after = status(finished_requests={"stop": 7, "error": 2, "cancelled": 1}, refused_requests=6)
    found = between(Snapshot(1.0, before), Snapshot(2.0, after))
    assert found is not None
    assert (found.finished, found.failed, found.refused) == (4, 1, 4)


def test_a_daemon_that_was_started_anew_is_not_compared_even_where_its_counters_are_higher() -> None:
    assert between(Snapshot(1.0, status(5)), Snapshot(60.0, status(900, run=SECOND_RUN))) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (status(10), status(9)),
        (status(refused_requests=1), status()),
        (status(finished_requests={"stop": 2}), status(finished_requests={"stop": 1})),
        (status(finished_requests={"error": 2}), status(finished_requests={"stop": 2})),
        (status(0, counts(5, 20, 10)), status(0, counts(5, 20, 9))),
        (status(0, counts(plain=5)), status(0, counts(plain=4))),
        (status(0, counts(5, 9, 9, per_position=[(5, 5), (4, 4)])), status(0, counts(5, 9, 9, per_position=[(5, 5)]))),
        (status(0, counts(5, 9, 9, per_position=[(5, 5)])), status(0, counts(5, 9, 9, per_position=[(4, 5)]))),
    ],
    ids=["tokens", "refusals", "finishes", "failures", "accepted", "steps", "positions", "a position"],
)
def test_a_counter_that_went_back_gives_no_rate(before: pb.GetStatusResponse, after: pb.GetStatusResponse) -> None:
    assert between(Snapshot(1.0, before), Snapshot(2.0, after)) is None


def test_two_snapshots_of_one_moment_give_no_rate() -> None:
    assert between(Snapshot(1.0, status(5)), Snapshot(1.0, status(6))) is None


def test_where_nothing_was_ever_drafted_nothing_is_said_of_drafts() -> None:
    found = drafting(counts(plain=30), 30)
    assert (found.acceptance, found.mean_length, found.depth, found.speedup) == (None,) * 4
    assert found.per_position == ()
    assert (found.drafting, found.tokens_per_forward) == (0.0, 1.0)


def test_a_speedup_that_was_not_measured_is_not_known() -> None:
    assert drafting(counts(10, 40, 30), 40).speedup is None
    assert drafting(counts(10, 40, 30, break_even=15.0), 40).speedup == 1.6


def filled(seconds: int, per_second: int = 10, window: float = 60.0) -> History:
    history = History(window=window)
    for second in range(seconds + 1):
        history.add(Snapshot(float(second), status(second * per_second)))
    return history


def test_after_one_snapshot_nothing_is_known_of_the_present() -> None:
    history = filled(0)
    assert (history.now, history.window, list(history.intervals)) == (None, None, [])


def test_the_window_is_a_minute_however_long_it_has_been_watched() -> None:
    history = filled(200)
    assert history.window is not None
    assert (history.window.seconds, history.window.tokens_per_second) == (60.0, 10.0)
    history.add(Snapshot(201.0, status(2_000 + 610)))
    assert history.now is not None
    assert history.now.tokens_per_second == 610
    assert history.window.tokens_per_second == (59 * 10 + 610) / 60


def test_where_looks_are_further_apart_than_the_window_the_last_two_are_compared() -> None:
    history = History(window=60.0)
    history.add(Snapshot(0.0, status(0)))
    history.add(Snapshot(300.0, status(300)))
    assert history.window is not None
    assert history.window.seconds == 300.0


def test_a_daemon_started_anew_begins_a_new_window_and_the_curve_goes_on() -> None:
    history = filled(20)
    history.add(Snapshot(21.0, status(3, run=SECOND_RUN)))
    assert (history.now, history.window) == (None, None)
    assert len(history.intervals) == 20
    history.add(Snapshot(22.0, status(8, run=SECOND_RUN)))
    assert history.window is not None
    assert history.window.tokens_per_second == 5.0
    assert len(history.intervals) == 21


def test_while_the_daemon_is_silent_its_present_is_not_known() -> None:
    history = filled(20)
    history.gap()
    assert history.now is None
    assert history.window is not None


def test_the_curve_is_forgotten_after_a_while() -> None:
    history = History(curve=30.0)
    for second in range(100):
        history.add(Snapshot(float(second), status(second)))
    assert history.intervals[0].begin == 69.0


def test_the_curve_knows_the_acceptance_only_where_something_was_drafted() -> None:
    history = History()
    for second, made in enumerate((counts(), counts(10, 40, 30), counts(10, 40, 30, plain=5))):
        history.add(Snapshot(float(second), status(second, made)))
    assert [interval.acceptance for interval in history.intervals] == [0.75, None]


def rate(interval: Interval) -> float:
    return interval.rate


def test_each_column_is_the_mean_over_its_own_time() -> None:
    intervals = [Interval(10.0, 11.0, 100.0, None), Interval(11.0, 16.0, 40.0, None)]
    assert curve(intervals, rate, columns=4, seconds=12.0, now=17.9) == [None, 70.0, 40.0, 40.0]


def test_time_that_was_not_seen_stays_empty() -> None:
    intervals = [Interval(0.0, 1.0, 5.0, None), Interval(3.0, 4.0, 7.0, None)]
    assert curve(intervals, rate, columns=4, seconds=4.0, now=3.5) == [5.0, None, None, 7.0]


def test_what_is_older_than_the_curve_is_left_out() -> None:
    assert curve([Interval(0.0, 50.0, 5.0, None)], rate, columns=2, seconds=4.0, now=100.0) == [None, None]


def test_a_column_keeps_its_value_while_time_goes_on_within_it() -> None:
    intervals = [Interval(0.0, 9.0, 5.0, None), Interval(9.0, 10.0, 50.0, None)]
    early = curve(intervals, rate, columns=5, seconds=10.0, now=10.1)
    assert early == curve(intervals, rate, columns=5, seconds=10.0, now=11.9)
    assert early[1:] == curve(intervals, rate, columns=5, seconds=10.0, now=12.0)[:-1]


def test_what_is_not_known_does_not_count_in_a_column() -> None:
    intervals = [Interval(0.0, 1.0, 0.0, None), Interval(1.0, 2.0, 0.0, 0.5)]
    assert curve(intervals, lambda s: s.acceptance, columns=1, seconds=2.0, now=1.9) == [0.5]
