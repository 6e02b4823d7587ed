"""The OTEL_* variables work as in any OpenTelemetry program; without an endpoint there is nothing at all."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import opentelemetry.metrics
import opentelemetry.trace
import psutil
import pytest

from draftd import __version__
from draftd.engine.observer import EngineObserver
from draftd.journal import Subject, Transition
from draftd.telemetry import catalog
from draftd.telemetry.pipeline import process_uptime, propagator, wanted_exporters
from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import Scene, errors_of, telemetry
from tests.wait_until import until

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def otel_threads() -> int:
    return sum(thread.name.startswith("Otel") for thread in threading.enumerate())


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {ENDPOINT: ""},
        {"OTEL_SERVICE_NAME": "somebody"},
        {ENDPOINT: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {
            ENDPOINT: "http://127.0.0.1:1",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        },
    ],
)
def test_telemetry_without_an_endpoint_starts_no_thread(
    open_scene: Callable[..., Scene], environ: dict[str, str]
) -> None:
    before = otel_threads()
    scene = open_scene(environ)
    assert not scene.telemetry.exporting
    assert otel_threads() == before
    assert isinstance(scene.telemetry.observer, EngineObserver)
    scene.serve()
    assert scene.telemetry.shutdown(1.0)


def test_telemetry_sets_no_global_opentelemetry_provider(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    tracers = opentelemetry.trace.get_tracer_provider()
    meters = opentelemetry.metrics.get_meter_provider()
    open_scene(receiver.environ())
    assert opentelemetry.trace.get_tracer_provider() is tracers
    assert opentelemetry.metrics.get_meter_provider() is meters


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_telemetry_exports_over_both_otlp_protocols(open_scene: Callable[..., Scene], protocol: str) -> None:
    with OtlpReceiver(protocol, 60_000) as receiver:
        scene = open_scene(receiver.environ())
        scene.serve(steps=4)
        assert scene.telemetry.shutdown(30.0)
        assert len(receiver.spans("chat nano")) == 1
        assert receiver.total("draftd.spec_decode.drafts") == 4


def test_traces_and_metrics_can_be_exported_to_different_otlp_endpoints(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    with OtlpReceiver("http/protobuf") as other:
        scene = open_scene(
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": receiver.endpoint,
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{other.endpoint}/v1/metrics",
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
                "OTEL_METRIC_EXPORT_INTERVAL": "60000",
            }
        )
        scene.serve()
        assert scene.telemetry.shutdown(30.0)
        assert receiver.spans("chat nano")
        assert not receiver.metric_names()
        assert other.total("draftd.requests") == 1
        assert not other.spans()


@pytest.mark.parametrize("variables", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_SAMPLER": "always_off"}])
def test_metrics_are_complete_if_trace_export_is_off(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, variables: dict[str, str]
) -> None:
    scene = open_scene(receiver.environ(**variables))
    assert scene.telemetry.exporting
    scene.serve()
    assert scene.telemetry.shutdown(30.0)
    assert receiver.spans() == []
    assert receiver.total("draftd.requests") == 1
    assert receiver.total("draftd.spec_decode.drafts") == 3


def test_otlp_headers_and_compression_come_from_the_environment(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    scene = open_scene(
        receiver.environ(
            OTEL_EXPORTER_OTLP_HEADERS="x-tenant=blue",
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
            OTEL_BSP_SCHEDULE_DELAY="50",
        )
    )
    scene.serve()
    assert scene.telemetry.shutdown(30.0)
    assert {headers.get("x-tenant") for headers in receiver.store.headers} == {"blue"}


def test_otel_sdk_metrics_of_the_catalog_are_exported(open_scene: Callable[..., Scene], receiver: OtlpReceiver) -> None:
    scene = open_scene(receiver.environ(OTEL_BSP_SCHEDULE_DELAY="50", OTEL_METRIC_EXPORT_INTERVAL="100"))
    scene.serve()
    until(lambda: receiver.total("otel.sdk.exporter.span.exported") >= 4, 10, "the spans' export is counted")
    scene.telemetry.fallback_recorder.log(Transition(datetime.now(UTC), Subject.FLAG, "on", "off", "a test"))
    until(lambda: receiver.total("otel.sdk.exporter.log.exported") >= 1, 10, "the event's export is counted")
    assert scene.telemetry.shutdown(30.0)
    sdk_metrics = {name for name in receiver.metric_names() if name.startswith("otel.")}
    assert sdk_metrics == {metric.name for metric in catalog.SDK_METRICS}
    for metric in catalog.SDK_METRICS:
        for point in receiver.points(metric.name):
            assert point.unit == metric.unit
            assert set(point.attributes) <= {attribute.name for attribute in metric.attributes}


def test_otel_sdk_metrics_can_be_turned_off_by_environment(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    scene = open_scene(receiver.environ(OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED="false"))
    scene.serve()
    assert scene.telemetry.shutdown(30.0)
    assert not any(name.startswith("otel.") for name in receiver.metric_names())


@pytest.mark.parametrize(
    ("variables", "resource"),
    [
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=attic"},
            {"service.name": "draftd", "service.version": __version__, "deployment.environment.name": "attic"},
        ),
        (
            {"OTEL_SERVICE_NAME": "mini-3", "OTEL_RESOURCE_ATTRIBUTES": "service.version=9,service.instance.id=me"},
            {"service.name": "mini-3", "service.version": "9", "service.instance.id": "me"},
        ),
    ],
    ids=["completed", "the environment wins"],
)
def test_otel_resource_attributes_come_from_the_environment(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, variables: dict[str, str], resource: dict[str, str]
) -> None:
    scene = open_scene(receiver.environ(**variables))
    scene.serve()
    scene.telemetry.shutdown(30.0)
    found = receiver.spans("chat nano")[0].resource
    assert {name: found[name] for name in resource} == resource
    assert found["service.instance.id"] == scene.telemetry.instance
    assert len(found["service.instance.id"]) == 36 or "service.instance.id" in resource
    assert found["host.name"] == socket.gethostname()
    assert found["process.pid"] == os.getpid()
    created = found["process.creation.time"]
    assert created.endswith("Z")
    age = datetime.now(UTC) - datetime.fromisoformat(created)
    assert timedelta(seconds=-2) < age < timedelta(days=1), "it is this process's, in UTC"


def test_process_uptime_is_unaffected_by_a_wall_clock_change(monkeypatch: pytest.MonkeyPatch) -> None:
    uptime, now = process_uptime(), time.time()
    first = uptime()
    assert first == pytest.approx(now - psutil.Process().create_time(), abs=2)
    monkeypatch.setattr(time, "time", lambda: now + 86_400)
    assert first < uptime() < first + 3_600


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "allowed: grpc, http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "'zipkin' is not installed"),
        ({"OTEL_PROPAGATORS": "smoke"}, "'smoke' is not installed"),
    ],
)
def test_invalid_otel_variable_turns_telemetry_off_with_a_log_line(
    receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture, variables: dict[str, str], said: str
) -> None:
    started = telemetry(receiver.environ(**variables))
    assert not started.exporting
    assert said in caplog.text
    assert started.shutdown(1.0)


def test_failure_at_telemetry_start_turns_export_off_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: 1 / 0)
    started = telemetry(receiver.environ())
    assert not started.exporting
    assert errors_of(started) == {"start": 1}
    assert "requests are not affected" in caplog.text


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, []),
        ({ENDPOINT: "http://x"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://x"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"]),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://x"}, []),
        ({"OTEL_SDK_DISABLED": "TRUE", ENDPOINT: "http://x"}, []),
        ({"OTEL_SDK_DISABLED": "no", ENDPOINT: "http://x"}, ["otlp"]),
    ],
)
def test_trace_exporters_are_chosen_by_the_otel_variables(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], names: list[str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert wanted_exporters("traces") == names


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        (None, {"traceparent", "tracestate", "baggage"}),
        ("tracecontext", {"traceparent", "tracestate"}),
        ("none", set()),
    ],
)
def test_trace_propagators_are_chosen_by_the_otel_variable(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, fields: set[str]
) -> None:
    if asked is not None:
        monkeypatch.setenv("OTEL_PROPAGATORS", asked)
    assert propagator().fields == fields


def test_otel_sdk_log_lines_stay_out_of_the_daemon_log(
    open_scene: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    others = {thread.ident for thread in threading.enumerate()}  # an earlier test's pipeline may still complain
    with caplog.at_level(logging.INFO):
        scene = open_scene({ENDPOINT: "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "10"})
        scene.serve()
        scene.telemetry.shutdown(0.5)
    ours = [record for record in caplog.records if record.thread not in others - {threading.get_ident()}]
    assert [record.getMessage() for record in ours if record.name.startswith("opentelemetry")] == []
