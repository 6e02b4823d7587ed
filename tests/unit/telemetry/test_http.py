"""Traces and metrics of HTTP requests, and the metrics in Prometheus's text format."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import grpc
import pytest
from opentelemetry.context import Context
from prometheus_client.parser import text_string_to_metric_families

from draftd.strategies import PeerCounts
from draftd.telemetry import catalog
from draftd.telemetry.attributes import InstrumentKind
from draftd.telemetry.recording import Stopwatch
from draftd.telemetry.rpc import RpcCall
from draftd.telemetry.spans import call_context
from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import ADDRESS, Scene, across
from tests.unit.telemetry.test_metrics import fall_back

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"Traceparent": f"00-{TRACE}-{PARENT}-01"}
CHAT = "/v1/chat/completions"


def test_prometheus_exposition_has_every_catalog_metric_by_name(open_scene: Callable[..., Scene]) -> None:
    scene = open_scene({}, scraped=True, port=50551)
    scene.serve()
    across(scene)
    scene.telemetry._on.guard.caught("test", ValueError("on purpose"))
    fall_back(scene)
    scene.telemetry.http.begin("POST", CHAT, {}, "http").end(200)
    text = scene.telemetry.http.exposition().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    metric_names = {sample.name for sample in samples}
    expected = {
        metric.prometheus + part
        for metric in catalog.METRICS
        if metric is not catalog.RPC_DURATION
        for part in (("_bucket", "_sum", "_count") if metric.kind is InstrumentKind.HISTOGRAM else ("",))
    }
    assert {name for name in metric_names if not name.startswith("otel_sdk_")} == expected | {"target_info"}
    tokens = f"{catalog.TOKENS.prometheus}{{"
    assert sum(line.startswith(tokens) for line in text.splitlines()) == 2 * 2  # by strategy
    assert "otel_scope" not in text
    assert {(one.labels["job"], one.labels["instance"]) for one in samples} == {("draftd", scene.telemetry.instance)}
    (resource,) = (sample.labels for sample in samples if sample.name == "target_info")
    assert (resource["host_name"], resource["server_port"]) == (socket.gethostname(), "50551")
    assert not {label for label in resource if label.startswith("service_")} - {"service_version"}


def test_http_span_joins_the_callers_trace_and_records_each_outcome(scene: Scene, receiver: OtlpReceiver) -> None:
    http = scene.telemetry.http
    call = http.begin("POST", CHAT, CALLER, "https")
    scene.serve()
    headers = call.headers()
    call.end(200)
    call_context.set(None)
    http.begin("POST", CHAT, {}, "http").end(503)
    http.begin("POST", CHAT, {}, "http").end(499, asyncio.CancelledError())
    http.begin("BREW", None, {}, "http").end(404)
    http.begin("GET", "/health", {}, "http").end(200)
    scene.telemetry.shutdown(30.0)
    spans = [span for span in receiver.spans() if span.kind == "SERVER"]
    first, failed, gone, lost = sorted(spans, key=lambda span: span.start)
    assert (first.name, first.trace_id, first.parent_id, first.status) == (f"POST {CHAT}", TRACE, PARENT, "UNSET")
    assert headers == {"X-Trace-Id": TRACE, "Traceparent": f"00-{TRACE}-{first.span_id}-01"}
    assert first.attributes["http.response.status_code"] == 200
    assert (first.attributes["server.address"], first.attributes["server.port"]) == ADDRESS
    (asked,) = [span for span in receiver.spans() if span.name.startswith("chat ")]
    assert (asked.trace_id, asked.parent_id) == (TRACE, first.span_id)
    assert (failed.status, failed.attributes["error.type"]) == ("ERROR", "503")
    assert (gone.status, gone.attributes["error.type"]) == ("UNSET", "Cancelled")
    assert (lost.name, lost.attributes["http.request.method"]) == ("_OTHER", "_OTHER")
    assert receiver.count("http.server.request.duration") == 4


def test_http_metrics_count_rejected_but_not_successful_scrapes_of_metrics_endpoint(
    scene: Scene, receiver: OtlpReceiver
) -> None:
    for status in (200, 401, 401):
        scene.telemetry.http.begin("GET", "/metrics", {}, "http").end(status)
    scene.telemetry.http.begin("GET", "/health", {}, "http").end(503)
    scene.telemetry.shutdown(30.0)
    (point,) = receiver.points("http.server.request.duration")
    assert receiver.count("http.server.request.duration") == 2
    assert (point.attributes["http.route"], point.attributes["http.response.status_code"]) == ("/metrics", 401)
    assert not receiver.spans("GET /metrics")


@pytest.mark.parametrize("hours", [2, -2])
def test_changed_wall_clock_does_not_affect_span_or_metric_durations(
    hours: int, scene: Scene, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = scene.telemetry.http.begin("POST", CHAT, {}, "http")
    rpc = RpcCall("test.Service/one", Context(), Stopwatch(), scene.telemetry._on)
    verification = scene.telemetry.begin_verification("", 3)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3_600_000_000_000)
    http.end(200)
    rpc.end(grpc.StatusCode.OK)
    verification.end(PeerCounts(), "finished")
    monkeypatch.undo()
    scene.telemetry.shutdown(30.0)
    spans = receiver.spans()
    assert len(spans) == 3
    for span in spans:
        assert 0 <= span.end - span.start < 60e9, span.name
    for name in ("http.server.request.duration", "rpc.server.call.duration"):
        (point,) = receiver.points(name)
        assert 0 < point.value < 60
