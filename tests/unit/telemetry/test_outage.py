"""A collector that is dead, slow, refusing or killed costs requests nothing, memory is bounded, shutdown is in time."""

from __future__ import annotations

import gc
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan

from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import Scene, errors_of

FAULTS = ["dead", "slow", "unavailable", "exhausted", "invalid"]
QUEUE = {"OTEL_BSP_MAX_QUEUE_SIZE": "64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "32", "OTEL_BSP_SCHEDULE_DELAY": "20"}
LIMIT = 0.5
SLACK = 15.0  # for a machine that is busy; the SDK by itself takes thirty seconds for each signal


@contextmanager
def faulty(fault: str, protocol: str = "grpc") -> Iterator[OtlpReceiver]:
    with OtlpReceiver(protocol) as receiver:
        if fault == "dead":
            receiver.kill()
        receiver.delay = 60.0 if fault == "slow" else 0.0
        receiver.refuse = {
            "unavailable": grpc.StatusCode.UNAVAILABLE,
            "exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
            "invalid": grpc.StatusCode.INVALID_ARGUMENT,
        }.get(fault)
        yield receiver


@pytest.fixture
def new_objects_only() -> Iterator[None]:
    """Freezes the many existing objects, which would slow the garbage collector."""
    gc.freeze()
    yield
    gc.unfreeze()


def spans_in_memory() -> int:
    gc.collect()
    return sum(issubclass(type(thing), ReadableSpan) for thing in gc.get_objects())  # isinstance asks dead proxies


@pytest.mark.usefixtures("new_objects_only")
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("fault", FAULTS)
def test_broken_otlp_collector_delays_no_request_and_bounds_memory(
    open_scene: Callable[..., Scene], fault: str, protocol: str
) -> None:
    with faulty(fault, protocol) as broken:
        scene = open_scene(broken.environ(**QUEUE))
        began = time.monotonic()
        for _ in range(150):  # of four spans each
            scene.serve(steps=5)
        # Some twenty batches. An exporter tries each for a second at the least, and for ten by default.
        assert time.monotonic() - began < 15
        assert 0 < spans_in_memory() < 300, "the queue's 64 and the batches on their way, of 600"
        assert errors_of(scene.telemetry) == {}
        if fault != "dead":
            assert broken.wait_for(lambda: broken.calls > 0, 60)
        assert not broken.store.traces, "nothing arrived"
        began = time.monotonic()
        assert not scene.telemetry.shutdown(LIMIT)
        assert time.monotonic() - began < LIMIT + SLACK
        assert scene.telemetry.shutdown(LIMIT) is False
        scene.serve()  # late, and harmless


def test_exported_counters_catch_up_when_the_otlp_collector_returns(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    # An exporter waits a second before it tries again; its own limit keeps the test short, on a busy machine too.
    scene = open_scene(receiver.environ(OTEL_EXPORTER_OTLP_TIMEOUT="8", OTEL_METRIC_EXPORT_INTERVAL="1000"))
    for _ in range(5):
        scene.serve()
    assert receiver.wait_for(lambda: receiver.total("draftd.requests") == 5, 60)

    receiver.kill()
    for _ in range(7):
        scene.serve()
    # Only errors of this collector count: an export of an earlier test may still be retried, and fails.
    assert receiver.wait_for(lambda: f"does not reach its collector at 127.0.0.1:{receiver.port} " in caplog.text, 60)
    receiver.start()

    def back() -> bool:
        scene.serve()
        return "reaches its collector again" in caplog.text

    assert receiver.wait_for(back, 60)
    # The first signal that is back speaks for all; the metrics' connection may still pause.
    assert receiver.wait_for(lambda: receiver.total("draftd.requests") == scene.served, 60)
    assert scene.telemetry.shutdown(30.0)

    assert receiver.total("draftd.spec_decode.draft_tokens") == scene.engine.drafted
    assert receiver.total("draftd.tokens", {"gen_ai.token.type": "output"}) == scene.engine.emitted
    assert len(receiver.spans("chat nano")) > 5, "spans flow again"


def test_metric_export_continues_after_a_collection_raises(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, failures = PeriodicExportingMetricReader.collect, iter((True, True))

    def failing(reader: PeriodicExportingMetricReader, timeout_millis: float = 10_000) -> None:
        if next(failures, False):
            raise RuntimeError("a bug")
        collect(reader, timeout_millis)

    monkeypatch.setattr(PeriodicExportingMetricReader, "collect", failing)
    scene = open_scene(receiver.environ(OTEL_METRIC_EXPORT_INTERVAL="50"))
    scene.serve()
    assert receiver.wait_for(lambda: receiver.total("draftd.requests") == 1, 30)


def test_otlp_collector_outage_is_logged_once(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refuse = grpc.StatusCode.INVALID_ARGUMENT  # not tried again, so many fail in a short time
    with caplog.at_level(logging.INFO):
        scene = open_scene(receiver.environ(OTEL_METRIC_EXPORT_INTERVAL="50", **QUEUE))

        def failing() -> bool:
            scene.serve()
            return receiver.calls > 8

        assert receiver.wait_for(failing, 60)
        scene.telemetry.shutdown(LIMIT)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    # An export of an earlier test may still be tried, and then its own collector is missing.
    elsewhere = re.compile(rf"collector at 127\.0\.0\.1:(?!{receiver.port}\b)")
    (warning,) = [record for record in warnings if not elsewhere.search(record.getMessage())]
    assert warning.name == "draftd.telemetry"
    assert "Requests are not affected" in warning.getMessage()
    assert f"127.0.0.1:{receiver.port}" in warning.getMessage()
