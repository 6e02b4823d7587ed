"""Each invariant is seen broken where it is: what a run compares, without a daemon."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from draftd.core import FallbackLevel
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb
from tests.faults.model import Demand, Events, Invariant, Levels, Model, Reference, Request, false_lines
from tests.faults.surroundings import Collector

FULL, SHORT, LIGHT, PLAIN = sorted(FallbackLevel, reverse=True)


def request(**fields: object) -> Request:
    """One that was answered well between 1 s and 2 s of the clock, but for `fields`."""
    finished = pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=pb.Usage(output_tokens=3))
    found = {
        "life": 1,
        "reference": Reference((1, 2, 3), "abc"),
        "began": 1.0,
        "started": 1.1,
        "ended": 2.0,
        "id": "r",
        "level": FULL,
        "tokens": [1, 2, 3],
        "text": "abc",
        "finished": finished,
        "code": "OK",
    }
    return Request(**{**found, **fields})  # type: ignore[arg-type]


def seen(model: Model) -> list[Invariant]:
    return [one.invariant for one in model.broken]


UNFINISHED = {"finished": None, "tokens": [1], "text": "a"}


@pytest.mark.parametrize(
    ("fields", "broken"),
    [
        ({}, []),
        ({"code": "", **UNFINISHED}, []),
        ({"code": "UNAVAILABLE", **UNFINISHED}, [Invariant.REQUESTS]),
        ({"code": "DEADLINE_EXCEEDED", "own": frozenset({"DEADLINE_EXCEEDED"}), **UNFINISHED}, []),
        ({"finished": None}, [Invariant.REQUESTS]),
        ({"disorder": "chunk came after the end"}, [Invariant.REQUESTS]),
        ({"tokens": [1, 2, 4]}, [Invariant.TEXT]),
        ({"code": "", "tokens": [7], "text": "a", "finished": None}, [Invariant.TEXT]),
        ({"text": "abd"}, [Invariant.TEXT]),
        ({"finished": pb.Finished(reason=pb.FINISH_REASON_STOP)}, [Invariant.COUNTERS]),
    ],
)
def test_fault_run_judges_request_by_final_status_and_answer_text_and_token_counts(
    fields: dict[str, object], broken: list[Invariant]
) -> None:
    model = Model()
    model.ended_request(request(**fields))
    assert seen(model) == broken


def test_fault_run_excuses_an_error_status_only_during_its_fault() -> None:
    model, now = Model(), time.monotonic()
    with model.excused({"UNAVAILABLE"}):
        model.ended_request(request(code="UNAVAILABLE", began=now, ended=now + 0.1, **UNFINISHED))
    assert not model.broken
    model.ended_request(request(code="UNAVAILABLE", began=now - 9, ended=now - 8, **UNFINISHED))
    assert seen(model) == [Invariant.REQUESTS]


def test_fault_run_caps_the_expected_level_once_an_alert_is_acknowledged() -> None:
    levels = Levels()
    alert = levels.alert(LIGHT, 1.0)
    assert levels.highest(2.0, 3.0) is FULL
    levels.acknowledged(alert, 4.0, saved=True)
    assert levels.highest(3.9, 5.0) is FULL
    assert levels.highest(4.0, 5.0) is LIGHT
    levels.ending(alert, 6.0)
    assert levels.highest(4.0, 6.1) is FULL


def test_fault_run_expects_level_holds_to_outrank_alerts() -> None:
    levels = Levels()
    levels.acknowledged(levels.alert(PLAIN, 1.0), 1.0, saved=True)
    hold = levels.hold(SHORT, 2.0)
    assert levels.highest(3.0, 3.0) is SHORT
    levels.acknowledged(hold, 4.0, saved=True)
    other = levels.hold(LIGHT, 5.0)
    levels.acknowledged(other, 6.0, saved=True)
    assert levels.highest(7.0, 8.0) is LIGHT
    levels.release(9.0)
    assert levels.highest(8.0, 10.0) is LIGHT
    levels.released(10.0)
    assert levels.highest(11.0, 11.0) is PLAIN


@pytest.mark.parametrize(("saved", "forgets", "most"), [(True, False, PLAIN), (False, False, FULL), (True, True, FULL)])
def test_fault_run_allows_restart_to_lose_only_alerts_unsaved_or_in_a_damaged_state_file(
    saved: bool, forgets: bool, most: FallbackLevel
) -> None:
    levels = Levels()
    levels.acknowledged(levels.alert(PLAIN, 1.0), 2.0, saved=saved)
    levels.restarted(3.0, forgets=forgets)
    assert levels.highest(4.0, 5.0) is most


def test_fault_run_detects_a_plan_above_the_acknowledged_level() -> None:
    model = Model()
    model.levels.acknowledged(Demand(PLAIN, 0.0), 0.5, saved=True)
    model.ended_request(request())
    assert not model.broken, "not one that was never asked for"
    model.levels.acknowledged(model.levels.alert(PLAIN, 0.0), 0.5, saved=True)
    model.ended_request(request())
    assert seen(model) == [Invariant.LEVEL]


def test_fault_run_detects_health_that_contradicts_request_outcomes() -> None:
    refused = {"code": "UNAVAILABLE", "refusal": "NOT_SERVING", "started": None, "own": frozenset({"UNAVAILABLE"})}
    model = Model()
    model.ended_request(request(**refused, **UNFINISHED))
    model.health(1, 0.1, 0.9, True)
    assert not model.broken, "the one says what was before the other"
    model.health(1, 0.1, 0.9, True)
    model.ended_request(request(**refused, **UNFINISHED))
    model.ended_request(request())
    model.health(1, 3.0, 4.0, False)
    assert seen(model) == [Invariant.HEALTH], "a little late"
    model.health(1, 30.0, 31.0, False)
    assert seen(model) == [Invariant.HEALTH] * 2


def counted(tokens: int = 3, accepted: int = 2, finished: int = 1, refused: int = 0) -> control_pb2.GetStatusResponse:
    counts = pb.DraftCounts(steps=1, drafted_tokens=4, accepted_tokens=accepted, rolled_back_tokens=2)
    return control_pb2.GetStatusResponse(
        output_tokens=tokens, counts=counts, finished_requests={"length": finished}, refused_requests=refused
    )


def test_fault_run_detects_counters_that_differ_from_client_results() -> None:
    model = Model()
    for _ in range(2):
        model.ended_request(request())
        model.reconcile(1, {"r": (3, ["length"])}, counted())
    model.totals(3, {"length": 1}, counted())
    assert not model.broken
    model.totals(4, {"length": 1}, counted())
    model.totals(3, {"length": 1}, counted(finished=2))
    model.reconcile(1, {}, counted(accepted=3))
    model.ended_request(request())
    model.reconcile(1, {}, counted())
    model.ended_request(request())
    model.reconcile(1, {"r": (2, ["length"])}, counted())
    assert set(seen(model)) == {Invariant.COUNTERS}
    assert len(model.broken) == 5
    model.reconcile(1, {"r": (2, ["length", "length"])}, counted())
    assert seen(model)[-1] is Invariant.REQUESTS


@pytest.mark.parametrize(("seconds", "well"), [(0.0, True), (0.9, True), (-0.1, False), (3600.9, False)])
def test_fault_run_detects_negative_or_too_long_request_durations(seconds: float, well: bool) -> None:
    model = Model()
    timings = pb.Timings()
    timings.total.FromNanoseconds(round(seconds * 1e9))
    finished = pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=pb.Usage(output_tokens=3), timings=timings)
    model.ended_request(request(finished=finished))
    assert seen(model) == ([] if well else [Invariant.DURATIONS])


def exported(length: float, longest: float, *, id: str = "r", lost: int = 0) -> tuple[Any, Any]:
    """What a collector is sent: a span of that length, and metrics."""
    traces, metrics = ExportTraceServiceRequest(), ExportMetricsServiceRequest()
    span = traces.resource_spans.add().scope_spans.add().spans.add(name="chat", start_time_unix_nano=10**18)
    span.end_time_unix_nano = 10**18 + int(length * 1e9)
    span.attributes.add(key="gen_ai.response.id").value.string_value = id
    scope = metrics.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="rpc", unit="s").histogram.data_points.add(min=0.0, max=longest, count=1)
    found = scope.metrics.add(name="otel.sdk.exporter.span.exported").sum
    found.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    point = found.data_points.add(as_int=lost)
    point.attributes.add(key="error.type").value.string_value = "timeout"
    return traces, metrics


def test_fault_run_detects_impossible_durations_in_telemetry() -> None:
    for length, longest, broken in ((0.0, 0.0, 0), (-1.0, 0.0, 1), (0.0, 3600.0, 1), (7200.0, -1.0, 2)):
        model = Model()
        collector = Collector(model)
        for kind, sent in zip(("traces", "metrics"), exported(length, longest), strict=True):
            collector.take(kind, sent, {})
        assert seen(model) == [Invariant.DURATIONS] * broken


def test_fault_run_accepts_a_missing_span_only_if_counted_as_lost() -> None:
    collector = Collector(Model())
    collector.take("traces", exported(0.0, 0.0)[0], {})
    assert not collector.lacks({"r"})
    assert "1 requests have no span" in collector.lacks({"r", "s"})
    collector.take("metrics", exported(0.0, 0.0, lost=1)[1], {})
    assert not collector.lacks({"r", "s"})
    assert collector.lacks({"r", "s", "t"})


def test_fault_run_detects_log_lines_that_contradict_the_daemon_state() -> None:
    lines = [
        "2026-01-01T00:00:00.000Z draftd: level light_draft, was full: alert",
        "2026-01-01T00:00:00.000Z draftd: warning: telemetry does not reach its collector at x (y). Requests",
        "2026-01-01T00:00:00.000Z draftd: warning: /s/ladder-1.json cannot be saved: No space; a restart",
        "2026-01-01T00:00:00.000Z draftd: probe of short_block: good",
    ]
    assert not false_lines([], {"level": "full", "unsaved": "", "collector": ""})
    assert not false_lines(lines, {"level": "light_draft", "unsaved": "yes"})
    assert "level is full" in false_lines(lines, {"level": "full"})
    assert "unsaved is well" in false_lines(lines, {"unsaved": ""})
    assert "collector is well" in false_lines(lines, {"collector": ""})
    lines += ["draftd: /s/ladder-1.json can be saved again", "draftd: warning: telemetry reaches its collector again"]
    assert not false_lines(lines, {"unsaved": "", "collector": ""})
    assert "unsaved is yes" in false_lines(lines, {"unsaved": "yes"})


def transitions(*numbers: int) -> list[control_pb2.Transition]:
    return [control_pb2.Transition(number=number, current=str(number)) for number in numbers]


def test_fault_run_detects_loss_of_a_transition_that_had_been_saved_to_disk() -> None:
    events = Events()
    assert not events.listed(transitions(1, 2), written=True)
    assert not events.listed(transitions(1, 2, 3), written=False)
    assert not events.listed(transitions(1, 2), written=True), "3 was not written"
    assert "2 (" in events.listed(transitions(1, 3), written=True)
