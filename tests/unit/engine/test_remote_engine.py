"""The engine's thread with a link: it sleeps and is woken, and ends what is open elsewhere as it does its own."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from draftd.core import PROMPT_LOOKUP, FinishReason
from draftd.engine.limits import Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.remote.verifier_link import OpenSequence
from draftd.errors import NotServing
from draftd.strategies import Strategy
from tests.rig import Rig, automatic, autoregressive, request, speculative
from tests.scripted import scripted_models
from tests.scripted_link import Clock, Heard, ScriptedLink
from tests.wait_until import loaded, until

PROMPT, TOKENS = [3, 1, 4, 1, 5], 40


class Now(Clock):
    @property
    def now(self) -> float:
        return time.monotonic()

    @now.setter
    def now(self, value: float) -> None:
        pass


class LiveLink(ScriptedLink):
    """In real time: a thread of its own wakes the engine when something has come."""

    def __init__(self, whole, **options) -> None:
        self.lock, self.asked, self._closed = threading.RLock(), 0, threading.Event()
        super().__init__(whole, Now(), **options)
        self._thread = threading.Thread(target=self._carry_on, daemon=True)
        self._thread.start()

    def send(self, message, connection) -> None:
        with self.lock:
            super().send(message, connection)

    def take_messages(self):
        with self.lock:
            self.asked += 1
            return super().take_messages()

    def _carry_on(self) -> None:
        while not self._closed.wait(0.001):
            with self.lock:
                self.run(self.clock.now)
                come = bool(self._inbound) and self._inbound[0][0] <= self.clock.now
            if come:
                self.wake()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5)


@pytest.fixture
def text() -> list[int]:
    one = request(PROMPT, autoregressive(), max_tokens=TOKENS + 40)
    return [*PROMPT, *Rig(scripted_models(0.8)).run([one])[0].tokens]


@pytest.fixture
def started(text):
    made = []

    def start(load=lambda: scripted_models(0.9), **options) -> tuple[EngineWorker, LiveLink]:
        link = LiveLink(lambda opened: text, **options)
        worker = EngineWorker(lambda progress: load(), limits=Limits(queue_capacity=8), link=link)
        made.append((worker, link))
        worker.start()
        loaded(worker)
        return worker, link

    yield start
    for worker, link in made:
        worker.close()
        link.close()


def ask(worker: EngineWorker, plan, strategy: Strategy) -> Heard:
    sink = Heard()
    worker.submit(request(PROMPT, replace(plan, strategy=strategy), max_tokens=TOKENS), sink)
    return sink


def test_engine_sleeps_between_remote_verdicts_and_serves_local_requests_meanwhile(started, text):
    worker, link = started(round_trip=0.02, step=lambda drafted: 0.005)
    sinks = [
        ask(worker, autoregressive(), Strategy.REMOTE),
        ask(worker, speculative(4), Strategy.SPECULATIVE),
        ask(worker, speculative(4), Strategy.LOCAL),
    ]
    until(lambda: all(sink.outcome for sink in sinks), 60, "answers")
    assert [sink.tokens for sink in sinks] == [text[len(PROMPT) :][:TOKENS]] * 3
    asked, status = link.asked, worker.status()
    assert (status.remote.counts.tokens, status.active) == (2 * TOKENS, 0)
    time.sleep(0.2)
    assert link.asked - asked <= 4  # it sleeps
    assert asked < 600  # turns


def test_draining_engine_finishes_remote_requests_or_cancels_them_at_its_deadline(started, text):
    worker, link = started(round_trip=0.05, step=lambda drafted: 0.002)
    sink = ask(worker, autoregressive(), Strategy.REMOTE)
    until(lambda: bool(sink.tokens), 10)
    assert worker.close(drain_seconds=20)
    assert sink.tokens == text[len(PROMPT) :][:TOKENS]
    worker, link = started(round_trip=0.05, step=lambda drafted: 5.0)
    sink = ask(worker, autoregressive(), Strategy.REMOTE)
    until(lambda: any(isinstance(message, OpenSequence) for message in link.sent), 10)
    asked = link.asked
    assert worker.close(drain_seconds=0.3)
    assert link.asked - asked < 20
    assert sink.done.reason is FinishReason.CANCELLED


def test_remote_request_to_engine_without_verifier_link_is_refused(started):
    worker = EngineWorker(lambda progress: scripted_models(0.9))
    worker.start()
    loaded(worker)
    with pytest.raises(NotServing, match="this daemon has no remote verifier"):
        ask(worker, autoregressive(), Strategy.REMOTE)
    worker.close()


def test_engine_without_draft_model_drafts_remote_requests_with_its_own_target(started, text):
    worker, _ = started(load=lambda: scripted_models(1.0, with_draft=False), round_trip=0.01)
    sink = ask(worker, automatic(8, PROMPT_LOOKUP), Strategy.SPECULATIVE)
    until(lambda: sink.outcome is not None, 30)
    assert sink.tokens == text[len(PROMPT) :][:TOKENS]
    assert sink.done.stats.counts.draft_forwards > 0
