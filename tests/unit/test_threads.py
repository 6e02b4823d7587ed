"""Background threads begin again where their work raises, and end when they are told to."""

from __future__ import annotations

import threading

import pytest

from draftd import threads
from draftd.threads import restarting_thread


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_FIRST_PAUSE_SECONDS", 0.001)


def test_background_thread_restarts_work_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(len(calls))
        if len(calls) < 4:
            raise RuntimeError("not yet")

    thread = restarting_thread("draftd-something", work, threading.Event())
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert len(calls) == 4
    assert sum("draftd-something failed" in line for line in caplog.messages) == 3


def test_background_thread_with_always_failing_work_stops_when_closed() -> None:
    closing, calls = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        calls.release()
        raise RuntimeError("for good")

    thread = restarting_thread("draftd-something", work, closing)
    thread.start()
    for _ in range(3):
        assert calls.acquire(timeout=30)
    closing.set()
    thread.join(30)
    assert not thread.is_alive()
