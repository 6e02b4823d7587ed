"""Probes and canaries are the daemon's own: their askers hear of them, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DecodeRequest, Origin
from draftd.engine.observer import EngineObserver
from draftd.errors import QueueFull
from tests.rig import autoregressive, request, speculative
from tests.scripted import ScriptedModel, scripted_models
from tests.wait_until import until

PROMPT = [3, 1, 4, 1, 5]


class Hears(EngineObserver):
    def __init__(self) -> None:
        self.of: list[DecodeRequest] = []

    def on_step(self, request, result, gap):
        self.of.append(request)

    def on_verifier_error(self, request, message):
        self.of.append(request)

    def on_finish(self, request, outcome):
        self.of.append(request)


def own(origin: Origin, **options) -> DecodeRequest:
    return replace(request(PROMPT, speculative(3), **options), origin=origin)


@pytest.mark.parametrize("origin", [Origin.PROBE, Origin.CANARY])
def test_probe_and_canary_requests_are_hidden_from_observers_and_counters(running, origin):
    hears = Hears()
    engine = running(lambda: scripted_models(0.7), hears)
    client = request(PROMPT, speculative(3))
    sinks = [engine.ask(own(origin)), engine.ask(client), engine.ask(own(origin))]
    engine.ended(*sinks)
    assert {r.origin for r in hears.of} == {Origin.CLIENT}
    assert all(s.tokens == sinks[1].tokens and s.done.stats.counts.drafted for s in sinks)
    status = engine.worker.status()
    assert sum(status.finished.values()) == 1
    assert status.counts.emitted == len(sinks[1].tokens)


def test_failing_canary_step_is_not_counted_as_verifier_error(running):
    hears = Hears()
    models = scripted_models(0.7)
    assert isinstance(models.target, ScriptedModel)
    engine = running(lambda: models, hears)
    models.target.fail_on_token = engine.answer(request(PROMPT, autoregressive()))[0][9]
    hears.of.clear()
    sink = engine.ask(own(Origin.CANARY))
    engine.ended(sink)
    assert "scripted failure" in sink.done.error
    assert hears.of == []
    assert engine.worker.status().verifier_errors == 0


def test_probe_requests_are_bounded_and_use_no_client_queue_places(running):
    engine = running(lambda: scripted_models(0.7, step_seconds=0.005), queue_capacity=2, max_batch=1)
    probe = own(Origin.PROBE, max_tokens=2000)
    runs = engine.ask(probe)
    engine.begun(runs)
    waiting = [engine.ask(own(Origin.PROBE)) for _ in range(14)]
    until(lambda: engine.worker._inbox._load.own == 15)
    assert (engine.worker.status().active, engine.worker.status().queued) == (0, 0)
    waiting += [engine.ask(request(PROMPT, autoregressive())) for _ in range(2)]
    until(lambda: engine.worker.status().queued == 2)
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        engine.ask(request(PROMPT, autoregressive()))
    waiting.append(engine.ask(own(Origin.CANARY)))  # nor do clients take theirs
    with pytest.raises(QueueFull, match="daemon's own"):
        engine.ask(own(Origin.PROBE))
    assert not any(sink.outcome for sink in waiting)
    engine.worker.cancel(probe.id)
    engine.ended(runs, *waiting)
    until(lambda: engine.worker._inbox._load.own == 0)
    engine.answer(own(Origin.PROBE))
