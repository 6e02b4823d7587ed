"""A whole daemon marks its transitions in Grafana, and does not mind a Grafana that hangs; canaries over the wire."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from draftd.client.client import DraftdClient
from draftd.core import FallbackLevel
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from tests.custom_daemon import composed
from tests.http_server import Answer, Request, serving
from tests.otlp import OtlpReceiver
from tests.wait_until import until

DAEMON = """
import sys
from draftd.cli.serve import run_daemon
from draftd.models.blas import load_blas
load_blas()
from tests.scripted import scripted_models
from draftd.settings import FallbackSettings, ServerSettings, Settings
from draftd.settings import AnnotationSettings
settings = Settings(
    server=ServerSettings(port=0, drain_seconds=2),
    fallback=FallbackSettings(canary_period_seconds=0),
    annotations=AnnotationSettings(grafana_url="{url}"),
)
say = lambda line: print("draftd: " + line, file=sys.stderr, flush=True)
load = lambda progress: scripted_models(0.9)
sys.exit(run_daemon(settings, announce=say, load=load))
"""


@pytest.mark.slow
def test_level_and_flag_changes_are_annotated_in_grafana(tmp_path: Path) -> None:
    marks: list[Request] = []

    def answer(request: Request) -> Answer:
        marks.append(request)
        return 200, {"id": len(marks)}

    with (
        serving(answer) as url,
        OtlpReceiver() as receiver,
        composed(
            DAEMON.format(url=url),
            tmp_path,
            receiver.environ(OTEL_RESOURCE_ATTRIBUTES="service.instance.id=mini-7"),
        ) as address,
        DraftdClient(address) as client,
    ):
        until(client.serving, 60)
        run = client.canaries()
        assert (run.verdict, len(run.results)) == ("good", 24), run.reason
        assert not any(result.diverged for result in run.results)
        client.hold_level(FallbackLevel.SHORT_BLOCK)
        client.set_flag("off")
        until(lambda: len(marks) == 2, 20.0, "both marks")
        sent = {a.RESULT.name: "sent"}
        assert receiver.wait_for(lambda: receiver.total(catalog.ANNOTATIONS.name, sent) == 2)
        assert receiver.total(catalog.CANARIES.name, {a.RESULT.name: "good"}) == 1
        assert not any(client.status().finished_requests.values())  # nothing of its own is among callers' requests
    assert [mark.body["tags"] for mark in marks] == [["draftd", "level", "mini-7"], ["draftd", "flag", "mini-7"]]
    assert marks[0].body["text"].startswith("Fallback level: full → short_block 3\n")


@pytest.mark.slow
def test_hanging_grafana_delays_neither_level_changes_nor_requests(tmp_path: Path) -> None:
    go, asked = threading.Event(), threading.Event()
    marks: list[Request] = []

    def hang(request: Request) -> Answer:
        marks.append(request)
        asked.set()
        go.wait(60)
        return 200, {}

    with serving(hang) as url:
        with composed(DAEMON.format(url=url), tmp_path, {}) as address, DraftdClient(address) as client:
            until(client.serving, 60)
            client.hold_level(FallbackLevel.AUTOREGRESSIVE)
            assert asked.wait(30)
            assert marks[0].body["tags"] == [
                "draftd",
                "level",
                socket.gethostname(),
            ]  # it has no other name: no exports
            began = time.monotonic()
            client.hold_level(FallbackLevel.FULL)
            assert list(client.generate("a prompt", max_tokens=4, timeout=60))
            assert time.monotonic() - began < 30
        go.set()
