"""The whole pipeline: a daemon on the embedded pair, the real collector, and the real Prometheus that scrapes both."""

from __future__ import annotations

import contextlib
import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from draftd.client.child import clean_environ
from tests import forked_daemon
from tests.otlp import OtlpReceiver
from tests.stack.components import Collector, Prometheus, collector, prometheus

SCRAPE_SECONDS = 0.5  # as tests.stack.components has it


@dataclass(frozen=True)
class Whole:
    """The running pipeline. `address` is the daemon's."""

    address: str
    collector: Collector
    prometheus: Prometheus


@contextlib.contextmanager
def pipeline(folder: Path, *, share_percent: float = 100.0) -> Iterator[tuple[Collector, Prometheus]]:
    """Runs the collector, and a Prometheus that scrapes it, for any daemon that exports to it. Traces and log events go
    to receivers that keep them, instead of Tempo and Loki."""
    with (
        OtlpReceiver() as traces,
        OtlpReceiver(protocol="http/protobuf") as logs,
        collector(folder, traces.port, logs_port=logs.port, share_percent=share_percent) as running,
        prometheus(folder, running.scrape, own=running.own) as found,
    ):
        yield running, found


@contextlib.contextmanager
def whole(
    folder: Path, *, instance: str = "test", queue_capacity: int = 6, share_percent: float = 100.0
) -> Iterator[Whole]:
    """Runs the pipeline with a daemon. `queue_capacity` is small, so that a test can make it overflow."""
    models = importlib.resources.files("draftd.models.nano")
    with pipeline(folder, share_percent=share_percent) as (running, found):
        environ = clean_environ(str(folder / "flags.json")) | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_BSP_SCHEDULE_DELAY": "500",
            "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
            "DRAFTD_ENGINE__QUEUE_CAPACITY": str(queue_capacity),
            "DRAFTD_HARDWARE__PERIOD_SECONDS": "1",
        }
        arguments = (
            "serve", "--model", str(models / "target"), "--draft-model", str(models / "draft"), "--port", "0",
            "--depth-mode", "fixed",  # every panel of drafts is to have some, however busy the machine
        )  # fmt: skip
        with forked_daemon.serving(forked_daemon.command, *arguments, environ=environ) as daemon:
            yield Whole(daemon.address, running, found)
