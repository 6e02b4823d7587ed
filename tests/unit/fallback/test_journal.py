"""The journal keeps the latest transitions and notifies its listeners."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from draftd.journal import Journal, Subject, Transition

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def ticking() -> Journal:
    """Returns a small journal whose clock advances a second with each transition."""
    ticks = iter(BEGAN + timedelta(seconds=n) for n in range(1_000))
    return Journal(capacity=3, clock=lambda: next(ticks))


def test_transition_journal_records_a_transition_with_time_cause_and_number() -> None:
    journal = ticking()
    journal.record(Subject.FLAG, "on", "off", "someone")
    assert journal.latest(5) == (Transition(BEGAN, Subject.FLAG, "on", "off", "someone", "", 1),)


def test_transition_journal_returns_the_latest_transitions_oldest_first_within_capacity() -> None:
    journal = ticking()
    for n in range(5):
        journal.record(Subject.LEVEL, str(n), str(n + 1), "")
    assert [t.current for t in journal.latest(10)] == ["3", "4", "5"]
    assert [t.current for t in journal.latest(2)] == ["4", "5"]
    assert journal.latest(0) == ()


def test_transition_journal_listener_receives_transitions_in_order_until_unsubscribed() -> None:
    journal, heard = ticking(), []
    end = journal.listen(lambda transition: heard.append(transition.current))
    journal.record(Subject.FLAG, "on", "off", "")
    journal.record(Subject.FLAG, "off", "on", "")
    end()
    end()
    journal.record(Subject.FLAG, "on", "off", "")
    assert heard == ["off", "on"]


def test_failing_journal_listener_does_not_stop_recording_or_the_next_listener(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, heard = ticking(), []

    def fail(transition: Transition) -> None:
        raise RuntimeError("broken")

    journal.listen(fail)
    journal.listen(heard.append)
    journal.record(Subject.FLAG, "on", "off", "")
    assert len(heard) == len(journal.latest(5)) == 1
    assert "a listener to the events (`draftd events`) failed" in caplog.text


def test_journal_listener_can_read_the_transition_from_the_journal() -> None:
    journal, seen = ticking(), []
    journal.listen(lambda transition: seen.append(journal.latest(1)[0] is transition))
    journal.record(Subject.FLAG, "on", "off", "")
    assert seen == [True]


def test_journal_listener_hears_concurrent_transitions_in_the_recorded_order() -> None:
    journal, heard = Journal(capacity=400), []
    journal.listen(heard.append)

    def record() -> None:
        for n in range(100):
            journal.record(Subject.LEVEL, "", str(n), "")

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tuple(heard) == journal.latest(400)
    assert len(heard) == 400
