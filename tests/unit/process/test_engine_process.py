"""The engine in a process of its own, alone: as the one on a thread, and begun anew where it is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from draftd.core import FinishReason, SamplingParams
from draftd.engine.handle import EngineHandle, EngineState
from draftd.engine.limits import Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import ModelPaths
from draftd.errors import InvalidRequest, NotServing, QueueFull
from draftd.group import GroupState, Loss
from draftd.models.grammar import choice
from draftd.process.handle import EngineProcess
from draftd.service.answer import stop_matcher
from draftd.service.endings import error_of
from draftd.service.text import StopConditions
from draftd.settings import DistributedSettings
from tests.rig import Collected, autoregressive, request, speculative
from tests.wait_until import until

_PROMPT = tuple(range(100, 130))
_LIMITS = Limits(queue_capacity=4, max_batch=2, prefix_cache_bytes=1 << 20)
_LOADED_SECONDS = 120.0


class Alone:
    """`OtherRanks` of a group of one."""

    def start(self) -> None:
        return None

    def describe_exit(self) -> str:
        return ""

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Heard(EngineObserver):
    def __init__(self) -> None:
        self.steps = list[tuple[Any, Any]]()

    def on_step(self, request: Any, result: Any, gap: float | None) -> None:
        self.steps.append((request, result))


HEARD = Heard()


@pytest.fixture(scope="module")
def models(nano_pair) -> ModelPaths:
    """The embedded draft for both: a pair that always agrees."""
    return ModelPaths(nano_pair.draft, nano_pair.draft)


@pytest.fixture(scope="module")
def thread(models) -> Iterator[EngineWorker]:
    worker = EngineWorker(models, limits=_LIMITS)
    worker.start()
    until(lambda: worker.state is not EngineState.LOADING, _LOADED_SECONDS, "the thread's models")
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def begun(models, thread) -> Iterator[Callable[..., EngineProcess]]:
    """Starts engines; closes them. What steps cost is known from the one on the thread."""
    made = list[EngineProcess]()

    def begin(*, served: ModelPaths = models, observer: EngineObserver | None = None, **settings: Any) -> EngineProcess:
        watched = () if observer is None else (observer,)
        distributed = DistributedSettings(**{"timeout_seconds": 10.0, **settings})
        engine = EngineProcess(
            served, Alone(), distributed, group="g", observers=watched, limits=_LIMITS, recall=thread.learnt
        )
        made.append(engine)
        engine.start()
        until(lambda: engine.state is not EngineState.LOADING, _LOADED_SECONDS, "the process's models")
        return engine

    yield begin
    for engine in made:
        assert engine.close()


@pytest.fixture(scope="module")
def engine(begun) -> EngineProcess:
    """For all tests but the last: they leave it as it was, or begun anew."""
    return begun(observer=HEARD, timeout_seconds=5.0)


def ended(sink: Collected) -> Collected:
    until(lambda: sink.outcome is not None, 120, "the request's end")
    return sink


def ask(engine: EngineHandle, **more: Any) -> Collected:
    sink = Collected()
    engine.submit(request(_PROMPT, autoregressive(), **more), sink)
    return sink


def kill(engine: EngineProcess, number: int) -> None:
    """The only such process of this one."""
    (found,) = (one for one in psutil.Process().children() if "draftd.process.main" in one.cmdline())
    os.kill(found.pid, number)


def texts(engine: EngineHandle, grammar: str) -> list[Collected]:
    """Of requests of all kinds, one after the other; the last ends with a stop string of the first."""
    sinks = list[Collected]()
    for more in (
        {"plan": speculative(4)},
        {"plan": speculative(3), "sampling": SamplingParams(0.9, seed=7)},
        {"grammar": grammar},
        {"plan": speculative(2)},
    ):
        asked = request(_PROMPT, **{"plan": autoregressive(), "max_tokens": 24, **more})
        if len(sinks) == 3:
            stop = engine.tokenizer.decode(sinks[0].tokens)[8:12]
            asked = replace(asked, stop=stop_matcher(engine.tokenizer, StopConditions((stop,)), None))
        sink = Collected()
        engine.submit(replace(asked, logprobs=2), sink)
        sinks.append(ended(sink))
    return sinks


def test_texts_and_counts_are_those_of_thread(thread, engine):
    grammar = choice(["yes it is", "no it is not"])
    here, there = texts(thread, grammar), texts(engine, grammar)
    for one, other in zip(here, there, strict=True):
        assert (one.tokens, one.done.reason) == (other.tokens, other.done.reason)
        assert [p.logprob for p in one.logprobs] == pytest.approx([p.logprob for p in other.logprobs], abs=1e-4)
        for sink in (one, other):  # on a slow machine plain steps are measured among those that draft
            counts = sink.done.stats.counts
            assert (counts.emitted, counts.steps) == (sum(sink.chunks), len(sink.chunks))
            assert sum(sink.from_draft) == counts.accepted - max(0, counts.cut - 1)
    assert sum(there[0].from_draft), "the draft agrees"
    assert there[3].done.reason is FinishReason.STOP
    status = engine.status()
    emitted = sum(step.emitted for _, step in HEARD.steps)
    assert status.counts.emitted == emitted == sum(len(one.tokens) for one in there)
    assert sum(status.finished.values()) == len(there)
    assert engine.logit_gap(_PROMPT, 5, 6).result(60) == pytest.approx(
        thread.logit_gap(_PROMPT, 5, 6).result(60), abs=1e-4
    )


def test_failing_receiver_ends_its_request_alone(engine):
    class Failing(Collected):
        def on_tokens(self, emission: Any) -> None:
            raise RuntimeError("no room")

    failing = Failing()
    engine.submit(request(_PROMPT, autoregressive(), max_tokens=900), failing)
    other = ask(engine)
    assert "no room" in ended(failing).done.error
    assert ended(other).done.reason is FinishReason.LENGTH


@pytest.mark.parametrize(("number", "loss"), [(signal.SIGKILL, Loss.DIED), (signal.SIGSTOP, Loss.SILENT)])
def test_lost_process_is_told_and_begins_anew(engine, number, loss):
    assert engine.keep(frozenset()).result(60) == 0
    running, waiting = [ask(engine, max_tokens=900) for _ in range(2)], ask(engine)
    until(lambda: all(one.tokens for one in running), 60, "first tokens")
    gap = engine.reload_draft() if loss is Loss.SILENT else None
    kill(engine, number)
    for one in (*running, waiting):
        outcome = ended(one).done
        assert (outcome.reason, outcome.stats.counts.emitted) == (FinishReason.ERROR, len(one.tokens))
        refused = error_of(outcome)
        assert isinstance(refused, NotServing)
        assert outcome.unavailable == refused.retry_after
        assert refused.retry_after
    assert gap is None or gap.done()
    with pytest.raises(NotServing) as told:
        ask(engine)
    assert told.value.retry_after
    group = engine.status().group
    assert group is not None
    assert (group.state, group.losses[loss]) == (GroupState.RESTARTING, 1)
    until(lambda: engine.state is EngineState.READY, _LOADED_SECONDS, "the next process")
    assert ended(ask(engine)).done.reason is FinishReason.LENGTH
    until(lambda: engine.status().loaded == frozenset(), 60, "what was held before")


def test_engine_process_refuses_ends_and_drains_like_a_thread(engine):
    with pytest.raises(InvalidRequest, match="prompt"):
        engine.submit(request((), autoregressive()), Collected())
    running = [ask(engine, max_tokens=900) for _ in range(2)]
    until(lambda: all(one.tokens for one in running), 60, "first tokens")
    until(lambda: engine.status().active == 2, 60, "two that run")
    late, cancelled = ask(engine, deadline=time.monotonic() + 0.2), Collected()
    asked = request(_PROMPT, autoregressive())
    engine.submit(asked, cancelled)
    engine.cancel(asked.id)
    ends = [ended(late), ended(cancelled)]
    waiting = [ask(engine) for _ in range(4)]
    with pytest.raises(QueueFull):
        ask(engine)
    assert engine.close(0.2)
    ends += [ended(one) for one in (*running, *waiting)]
    assert [one.done.reason for one in ends[:2]] == [FinishReason.DEADLINE, FinishReason.CANCELLED]
    assert {one.done.reason for one in ends[2:]} == {FinishReason.CANCELLED}
    assert [one.finishes for one in ends] == [1] * len(ends)
    assert engine.state is EngineState.STOPPED
    with pytest.raises(NotServing):
        ask(engine)


def test_engine_process_that_cannot_begin_is_failed(begun, tmp_path):
    nothing = begun(served=ModelPaths(str(tmp_path)))
    assert nothing.state is EngineState.FAILED
    assert str(tmp_path) in nothing.error
    once = begun(restart=False)
    kill(once, signal.SIGKILL)
    until(lambda: once.state is EngineState.FAILED, 30)
    assert "SIGKILL" in once.error


_DAEMON = """
import sys, time
from draftd.process.handle import EngineProcess
from draftd.engine.pair import ModelPaths
from draftd.settings import DistributedSettings

class Alone:
    start = stop = close = lambda self: None
    describe_exit = lambda self: ""

engine = EngineProcess(ModelPaths(sys.argv[1], prompt_lookup=False), Alone(), DistributedSettings(), group="g")
engine.start()
time.sleep(120)
"""


def test_process_ends_with_killed_daemon(nano_pair):
    daemon = subprocess.Popen([sys.executable, "-c", _DAEMON, nano_pair.draft], stderr=subprocess.DEVNULL)
    try:
        until(lambda: bool(psutil.Process(daemon.pid).children()), 60, "the engine's process")
        (child,) = psutil.Process(daemon.pid).children()
    finally:
        daemon.kill()
        daemon.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60, "its end")
