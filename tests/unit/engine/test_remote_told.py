"""What the engine tells of sequences that another daemon's target decodes, while they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DecodeRequest, WorkloadClass
from draftd.engine.observer import EngineObserver
from draftd.engine.remote.mode_control import RemoteCosts, RemoteTimes, break_even
from draftd.engine.remote.verifier_link import OpenSequence
from draftd.strategies import RemoteMode, Strategy
from draftd.verifier_client.codec import from_edge, to_verifier
from tests.rig import Rig, autoregressive, request, speculative
from tests.scripted import scripted_models
from tests.scripted_link import MODEL, Clock, Edge, ScriptedLink

PROMPT = [3, 1, 4, 1, 5]
ROUND_TRIP = 0.05
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Trips(EngineObserver):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_round_trip(self, request: DecodeRequest, seconds: float) -> None:
        self.seconds.append(seconds)


def test_remote_request_reports_round_trips_steps_in_flight_break_even_time_and_trace_id() -> None:
    models, heard, opened = scripted_models(1.0), Trips(), list[OpenSequence]()
    whole = [*PROMPT, *Rig(models).run([request(PROMPT, autoregressive(), max_tokens=80)])[0].tokens]

    def text(message: OpenSequence) -> list[int]:
        opened.append(message)
        return whole

    edge = Edge(Rig(models, observer=heard), ScriptedLink(text, Clock(), round_trip=ROUND_TRIP))
    asked = replace(request(PROMPT, speculative(4), max_tokens=40), trace=TRACE)
    sink = edge.add(replace(asked, plan=replace(asked.plan, strategy=Strategy.SPECULATIVE)))
    most = 0
    while not edge.remote.idle:
        edge.turn()
        edge.remote.estimate()
        most = max(most, edge.remote.status.in_flight)
    assert sink.remote.round_trips == len(heard.seconds) > 0
    assert sum(heard.seconds) == pytest.approx(sink.remote.round_trip_seconds)
    assert min(heard.seconds) >= ROUND_TRIP * 0.9, "the verifier's own time is left out, the way is not"
    assert 0 < most <= sink.remote.steps
    edge.remote.estimate()
    assert edge.remote.status.in_flight == 0
    assert edge.remote.status.break_even is not None
    assert opened[0].trace == TRACE
    sent = from_edge(to_verifier(opened[0]))
    assert isinstance(sent, OpenSequence)
    assert sent.trace == TRACE
    endless = from_edge(to_verifier(replace(opened[0], trace="0" * 10_000)))
    assert isinstance(endless, OpenSequence)
    assert endless.trace == "", "a peer's text is kept no longer than a trace can be"


def test_remote_rate_estimates_use_only_a_step_time_announced_by_the_verifier() -> None:
    rig, says = Rig(scripted_models(1.0)), replace(MODEL, step_seconds=0.01)
    for model, rates in ((says, [100.0]), (replace(MODEL, step_seconds=0.0), [])):
        edge = Edge(rig, ScriptedLink(lambda _: PROMPT, Clock(), round_trip=ROUND_TRIP, model=model))
        edge.remote.estimate()
        estimates = edge.remote.status.estimates
        assert list({estimate.rates[RemoteMode.STREAM] for estimate in estimates.values()}) == pytest.approx(rates)
        assert edge.remote.status.break_even is None, "nothing was drafted for it"
        assert (edge.remote.control.learnt() is not None) == bool(rates), "a guess is not kept"


def test_remote_break_even_round_trip_follows_the_cost_formula() -> None:
    times = RemoteTimes(round_trip=0.015, plain=0.03, verify=[0.03, 0.032, 0.034], draft=0.004)
    assert break_even(times, [1.0, 1.9, 2.6]) == pytest.approx(2.6 * 0.03 - 2 * 0.004 - 0.034)
    assert break_even(times, [1.0, 1.0, 1.0]) == pytest.approx(-0.006), "at no distance"
    assert break_even(times, [1.0]) is None


def test_streamed_tokens_arriving_simultaneously_do_not_update_streaming_cost() -> None:
    costs = RemoteCosts(0.01)
    assert not costs.learn_streaming(WorkloadClass.CODE, 16, 0.0, drafted=True)
    assert costs.streaming(WorkloadClass.CODE) == 0.01
    assert costs.learn_streaming(WorkloadClass.CODE, 16, 0.08, drafted=True)
    assert costs.streaming(WorkloadClass.CODE) == pytest.approx(0.005)
