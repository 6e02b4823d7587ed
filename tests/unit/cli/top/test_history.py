"""What is remembered: the last minute to compare with, and a curve."""

from __future__ import annotations

from draftd.cli.top.history import History, Stretch, curve
from draftd.cli.top.rates import Snapshot
from tests.unit.cli.top.snapshots import SECOND_RUN, counts, status


def filled(seconds: int, per_second: int = 10, window: float = 60.0) -> History:
    history = History(window=window)
    for second in range(seconds + 1):
        history.add(Snapshot(float(second), status(second * per_second)))
    return history


def test_after_one_snapshot_nothing_is_known_of_the_present() -> None:
    history = filled(0)
    assert (history.now, history.window, history.stretches) == (None, None, ())


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
    assert len(history.stretches) == 20
    history.add(Snapshot(22.0, status(8, run=SECOND_RUN)))
    assert history.window is not None
    assert history.window.tokens_per_second == 5.0
    assert len(history.stretches) == 21


def test_while_the_daemon_is_silent_its_present_is_not_known() -> None:
    history = filled(20)
    history.gap()
    assert history.now is None
    assert history.window is not None


def test_the_curve_is_forgotten_after_a_while() -> None:
    history = History(curve=30.0)
    for second in range(100):
        history.add(Snapshot(float(second), status(second)))
    assert history.stretches[0].begin == 69.0


def test_the_curve_knows_the_acceptance_only_where_something_was_drafted() -> None:
    history = History()
    for second, made in enumerate((counts(), counts(10, 40, 30), counts(10, 40, 30, plain=5))):
        history.add(Snapshot(float(second), status(second, made)))
    assert [stretch.acceptance for stretch in history.stretches] == [0.75, None]


def rate(stretch: Stretch) -> float:
    return stretch.rate


def test_each_column_is_the_mean_over_its_own_time() -> None:
    stretches = [Stretch(10.0, 11.0, 100.0, None), Stretch(11.0, 16.0, 40.0, None)]
    assert curve(stretches, rate, columns=4, seconds=12.0, now=17.9) == [None, 70.0, 40.0, 40.0]


def test_time_that_nobody_saw_stays_empty() -> None:
    stretches = [Stretch(0.0, 1.0, 5.0, None), Stretch(3.0, 4.0, 7.0, None)]
    assert curve(stretches, rate, columns=4, seconds=4.0, now=3.5) == [5.0, None, None, 7.0]


def test_what_is_older_than_the_curve_is_left_out() -> None:
    assert curve([Stretch(0.0, 50.0, 5.0, None)], rate, columns=2, seconds=4.0, now=100.0) == [None, None]


def test_a_column_keeps_its_value_while_time_goes_on_within_it() -> None:
    stretches = [Stretch(0.0, 9.0, 5.0, None), Stretch(9.0, 10.0, 50.0, None)]
    early = curve(stretches, rate, columns=5, seconds=10.0, now=10.1)
    assert early == curve(stretches, rate, columns=5, seconds=10.0, now=11.9)
    assert early[1:] == curve(stretches, rate, columns=5, seconds=10.0, now=12.0)[:-1]


def test_what_is_not_known_does_not_count_in_a_column() -> None:
    stretches = [Stretch(0.0, 1.0, 0.0, None), Stretch(1.0, 2.0, 0.0, 0.5)]
    assert curve(stretches, lambda s: s.acceptance, columns=1, seconds=2.0, now=1.9) == [0.5]
