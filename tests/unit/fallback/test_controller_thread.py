"""The controller on its own thread: bounded, woken at once, answered or refused, and joined."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from draftd.core import FallbackLevel
from draftd.errors import NotServing, QueueFull
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.signal_feed import RequestFeed
from tests.unit.fallback.controlled import (
    BOTTOM,
    LIGHT,
    PLAIN,
    SHORT_BLOCK,
    START,
    TOP,
    Controlled,
    MemoryStore,
    a_request,
)
from tests.wait_until import until


class Running(Controlled):
    """A controller that looks by itself. Its clock stands still unless the test moves it."""

    def __enter__(self) -> Running:
        self.controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.controller.close(10)


def notice(level: FallbackLevel = PLAIN, *, hard: bool = True, number: int = 0) -> Notice:
    return Notice("DraftdSomething", f"alert {number}", True, START, level, hard)


@pytest.fixture
def running() -> Iterator[Running]:
    with Running() as controlled:
        yield controlled


def test_alert_notice_has_lowered_the_level_when_its_sender_is_answered(running: Running) -> None:
    assert running.controller.notices([notice()]) == [Applied.ACCEPTED]
    assert running.position == BOTTOM
    assert running.controller.state().position == BOTTOM


def test_alert_notice_is_on_disk_before_its_sender_is_answered() -> None:
    store = MemoryStore()
    with Running(store) as running:
        running.controller.notices([notice()])
        assert store.document is not None
        assert list(store.document["leases"]["held"]) == ["alert 0"]
        assert store.document["level"]["kind"] == FallbackLevel.AUTOREGRESSIVE


def test_fallback_hold_applies_before_returning_and_release_returns_if_a_hold_existed(running: Running) -> None:
    running.controller.hold(FallbackLevel.LIGHT_DRAFT, None)
    assert running.position == LIGHT
    assert running.controller.release() is True
    assert running.controller.release() is False


def test_verifier_error_wakes_fallback_controller_and_finished_request_does_not() -> None:
    controlled = Controlled()
    controlled.request()
    assert not controlled.requests.woken.is_set()
    controlled.requests.on_verifier_error(a_request(), "broken")
    assert controlled.requests.woken.is_set()


def test_fallback_controller_thread_disables_drafting_on_verifier_errors(running: Running) -> None:
    for _ in range(3):
        running.requests.on_verifier_error(a_request(), "broken")
    until(lambda: running.position == BOTTOM)


def test_fallback_controller_thread_drains_finished_requests_at_its_next_check(running: Running) -> None:
    for _ in range(100):
        running.request()
    until(lambda: not running.requests._events)


class Stuck(MemoryStore):
    """A disk that is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.entered = threading.Event()

    def save(self, document: object) -> None:
        self.entered.set()
        assert self.go_on.wait(30)


def test_fallback_controller_with_hanging_disk_refuses_callers_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftd.fallback.controller._ANSWER_SECONDS", 0.05)
    store = Stuck()
    with Running(store) as running:
        assert store.entered.wait(10)
        controller = running.controller
        for ask in (lambda: controller.notices([notice()]), lambda: controller.apply_poll([]), controller.probe):
            with pytest.raises(QueueFull, match="busy") as caught:
                ask()
            assert caught.value.retry_after
        assert controller.state().position == TOP  # a look waits for nothing
        reloading = controller.reload_draft()  # nor does the engine
        running.engine.reloads[0].set_result(1)
        assert controller.close(0.05) is False
        store.go_on.set()
        assert reloading.result(10) == 1  # no caller is left waiting


@pytest.mark.parametrize("part", ["_look", "_shown"])
def test_fallback_check_that_fails_is_logged_once_and_repeated(
    part: str, running: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = 0, getattr(running.controller, part)

    def broken(*_: object) -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("a bug")

    monkeypatch.setattr(running.controller, part, broken)
    until(lambda: looks >= 3)
    assert len([record for record in caplog.records if "a check of the fallback failed" in record.message]) == 1
    with pytest.raises(
        QueueFull, match="a check of the fallback failed"
    ):  # its sender sends it again: it may be neither obeyed nor saved
        running.controller.notices([notice()])
    monkeypatch.setattr(running.controller, part, look)
    until(lambda: running.controller.state().position == BOTTOM)


def test_closed_fallback_controller_refuses_calls_with_not_serving() -> None:
    running = Running()
    running.controller.start()
    assert running.controller.close(10)
    for ask in (lambda: running.controller.notices([]), running.controller.release, running.controller.canaries):
        with pytest.raises(NotServing):
            ask()
    assert running.controller.close(1)


def test_fallback_controller_closes_without_having_been_started() -> None:
    assert Running().controller.close(0.1)


def test_fallback_controller_saves_its_last_state_at_close() -> None:
    store = MemoryStore()
    store.failure = OSError(28, "No space left on device")
    running = Running(store)
    running.controller.start()
    running.controller.notices([notice(SHORT_BLOCK)])
    store.failure = None
    assert running.controller.close(10)
    assert store.document is not None
    assert store.document["level"]["kind"] == FallbackLevel.SHORT_BLOCK


def test_concurrent_alert_senders_each_receive_the_results_of_their_notices(running: Running) -> None:
    answers: dict[int, list[Applied]] = {}

    def ask(number: int) -> None:
        answers[number] = running.controller.notices([notice(number=number), notice(number=number)])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == {number: [Applied.ACCEPTED, Applied.DUPLICATE] for number in range(40)}


def test_request_feed_takes_events_without_blocking_and_keeps_at_most_its_capacity() -> None:
    intake = RequestFeed(capacity=100)
    request = a_request()
    began = time.perf_counter()
    for _ in range(10_000):
        intake.on_verifier_error(request, "broken")
    assert time.perf_counter() - began < 5
    assert len(intake.take()) == 100
