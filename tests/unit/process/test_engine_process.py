"""The engine in its own process, without other ranks: it serves like the engine on a thread, and restarts when lost."""

from __future__ import annotations

import json
import os
import shutil
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
_ENDLESS = 30_000  # tokens: minutes of decoding, so such a request ends only when something ends it


class NoOtherRanks:
    """The `OtherRanks` of a group of one rank."""

    def start(self) -> None:
        return None

    def describe_exit(self) -> str:
        return ""

    def stop(self) -> None: ...

    def close(self) -> None: ...


class StepRecorder(EngineObserver):
    def __init__(self) -> None:
        self.steps = list[tuple[Any, Any]]()

    def on_step(self, request: Any, result: Any, gap: float | None) -> None:
        self.steps.append((request, result))


RECORDER = StepRecorder()


@pytest.fixture(scope="module")
def models(nano_pair, tmp_path_factory) -> ModelPaths:
    """The embedded draft as target and as draft: a pair that always agrees. Its context has room for `_ENDLESS`."""
    folder = tmp_path_factory.mktemp("models") / "draft"
    shutil.copytree(nano_pair.draft, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2 * _ENDLESS}))
    return ModelPaths(str(folder), str(folder))


@pytest.fixture(scope="module")
def thread(models) -> Iterator[EngineWorker]:
    worker = EngineWorker(models, limits=_LIMITS)
    worker.start()
    until(lambda: worker.state is not EngineState.LOADING, _LOADED_SECONDS, "the thread's models")
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def start_engine(models, thread) -> Iterator[Callable[..., EngineProcess]]:
    """Starts engines, and closes them at the end. They know step costs from the engine on the thread."""
    engines = list[EngineProcess]()

    def start(*, served: ModelPaths = models, observer: EngineObserver | None = None, **settings: Any) -> EngineProcess:
        watched = () if observer is None else (observer,)
        distributed = DistributedSettings(**{"timeout_seconds": 10.0, **settings})
        engine = EngineProcess(
            served, NoOtherRanks(), distributed, group="g", observers=watched, limits=_LIMITS, recall=thread.learnt
        )
        engines.append(engine)
        engine.start()
        until(lambda: engine.state is not EngineState.LOADING, _LOADED_SECONDS, "the process's models")
        return engine

    yield start
    for engine in engines:
        assert engine.close()


@pytest.fixture(scope="module")
def engine(start_engine) -> EngineProcess:
    """One engine for several tests, which leave it ready or restarted, until one closes it."""
    return start_engine(observer=RECORDER, timeout_seconds=5.0)


def wait_for_end(sink: Collected) -> Collected:
    until(lambda: sink.outcome is not None, 120, "the request's end")
    return sink


def ask(engine: EngineHandle, **more: Any) -> Collected:
    sink = Collected()
    engine.submit(request(_PROMPT, autoregressive(), **more), sink)
    return sink


def kill(engine: EngineProcess, signal_number: int) -> None:
    """Sends a signal to the only engine process of this test."""
    (child,) = (process for process in psutil.Process().children() if "draftd.process.main" in process.cmdline())
    os.kill(child.pid, signal_number)


def decode_all_kinds(engine: EngineHandle, grammar: str) -> list[Collected]:
    """Decodes requests of all kinds, one after another. The last one ends at a stop string from the first text."""
    sinks = list[Collected]()
    for options in (
        {"plan": speculative(4)},
        {"plan": speculative(3), "sampling": SamplingParams(0.9, seed=7)},
        {"grammar": grammar},
        {"plan": speculative(2)},
    ):
        decode_request = request(_PROMPT, **{"plan": autoregressive(), "max_tokens": 24, **options})
        if len(sinks) == 3:
            stop = engine.tokenizer.decode(sinks[0].tokens)[8:12]
            decode_request = replace(decode_request, stop=stop_matcher(engine.tokenizer, StopConditions((stop,)), None))
        sink = Collected()
        engine.submit(replace(decode_request, logprobs=2), sink)
        sinks.append(wait_for_end(sink))
    return sinks


def test_engine_process_gives_same_texts_and_counts_as_engine_thread(thread, engine):
    grammar = choice(["yes it is", "no it is not"])
    from_thread, from_process = decode_all_kinds(thread, grammar), decode_all_kinds(engine, grammar)
    for expected, actual in zip(from_thread, from_process, strict=True):
        assert (expected.tokens, expected.done.reason) == (actual.tokens, actual.done.reason)
        assert [p.logprob for p in expected.logprobs] == pytest.approx([p.logprob for p in actual.logprobs], abs=1e-4)
        for sink in (expected, actual):  # steps may differ: a slow machine measures plain ones between drafting ones
            counts = sink.done.stats.counts
            assert (counts.emitted, counts.steps) == (sum(sink.chunks), len(sink.chunks))
            assert sum(sink.from_draft) == counts.accepted - max(0, counts.cut - 1)
    assert sum(from_process[0].from_draft), "the draft agrees"
    assert from_process[3].done.reason is FinishReason.STOP
    status = engine.status()
    emitted = sum(step.emitted for _, step in RECORDER.steps)
    assert status.counts.emitted == emitted == sum(len(sink.tokens) for sink in from_process)
    assert sum(status.finished.values()) == len(from_process)
    assert engine.logit_gap(_PROMPT, 5, 6).result(60) == pytest.approx(
        thread.logit_gap(_PROMPT, 5, 6).result(60), abs=1e-4
    )


def test_failing_sink_ends_only_its_own_request_in_engine_process(engine):
    class Failing(Collected):
        def on_tokens(self, emission: Any) -> None:
            raise RuntimeError("no room")

    failing = Failing()
    engine.submit(request(_PROMPT, autoregressive(), max_tokens=_ENDLESS), failing)
    other = ask(engine)
    assert "no room" in wait_for_end(failing).done.error
    assert wait_for_end(other).done.reason is FinishReason.LENGTH


@pytest.mark.parametrize(("signal_number", "loss"), [(signal.SIGKILL, Loss.DIED), (signal.SIGSTOP, Loss.SILENT)])
def test_lost_engine_process_fails_its_requests_and_restarts(engine, signal_number, loss):
    assert engine.keep(frozenset()).result(60) == 0
    running, waiting = [ask(engine, max_tokens=_ENDLESS) for _ in range(2)], ask(engine)
    until(lambda: all(sink.tokens for sink in running), 60, "first tokens")
    reload = engine.reload_draft() if loss is Loss.SILENT else None
    kill(engine, signal_number)
    for sink in (*running, waiting):
        outcome = wait_for_end(sink).done
        assert (outcome.reason, outcome.stats.counts.emitted) == (FinishReason.ERROR, len(sink.tokens))
        refused = error_of(outcome)
        assert isinstance(refused, NotServing)
        assert outcome.unavailable == refused.retry_after
        assert refused.retry_after
    assert reload is None or reload.done()
    with pytest.raises(NotServing) as refusal:
        ask(engine)
    assert refusal.value.retry_after
    group = engine.status().group
    assert group is not None
    assert (group.state, group.losses[loss]) == (GroupState.RESTARTING, 1)
    until(lambda: engine.state is EngineState.READY, _LOADED_SECONDS, "the next process")
    assert wait_for_end(ask(engine)).done.reason is FinishReason.LENGTH
    until(lambda: engine.status().loaded == frozenset(), 60, "the same loaded drafts as before")


def test_engine_process_rejects_cancels_and_drains_requests_like_engine_thread(engine):
    with pytest.raises(InvalidRequest, match="prompt"):
        engine.submit(request((), autoregressive()), Collected())
    running = [ask(engine, max_tokens=_ENDLESS) for _ in range(2)]
    until(lambda: all(sink.tokens for sink in running), 60, "first tokens")
    until(lambda: engine.status().active == 2, 60, "two running requests")
    late, cancelled = ask(engine, deadline=time.monotonic() + 0.2), Collected()
    queued = request(_PROMPT, autoregressive())
    engine.submit(queued, cancelled)
    engine.cancel(queued.id)
    sinks = [wait_for_end(late), wait_for_end(cancelled)]
    waiting = [ask(engine) for _ in range(4)]
    with pytest.raises(QueueFull):
        ask(engine)
    assert engine.close(0.2)
    sinks += [wait_for_end(sink) for sink in (*running, *waiting)]
    assert [sink.done.reason for sink in sinks[:2]] == [FinishReason.DEADLINE, FinishReason.CANCELLED]
    assert {sink.done.reason for sink in sinks[2:]} == {FinishReason.CANCELLED}
    assert [sink.finishes for sink in sinks] == [1] * len(sinks)
    assert engine.state is EngineState.STOPPED
    with pytest.raises(NotServing):
        ask(engine)


def test_engine_process_that_cannot_load_or_restart_is_reported_as_failed(start_engine, tmp_path):
    without_model = start_engine(served=ModelPaths(str(tmp_path)))
    assert without_model.state is EngineState.FAILED
    assert str(tmp_path) in without_model.error
    not_restarted = start_engine(restart=False)
    kill(not_restarted, signal.SIGKILL)
    until(lambda: not_restarted.state is EngineState.FAILED, 30)
    assert "SIGKILL" in not_restarted.error


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


def test_engine_process_exits_after_its_daemon_is_killed(nano_pair):
    daemon = subprocess.Popen([sys.executable, "-c", _DAEMON, nano_pair.draft], stderr=subprocess.DEVNULL)
    try:
        until(lambda: bool(psutil.Process(daemon.pid).children()), 60, "the engine's process")
        (child,) = psutil.Process(daemon.pid).children()
    finally:
        daemon.kill()
        daemon.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60, "its end")
