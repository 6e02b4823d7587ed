"""The daemon tells of the machine it runs on: on its metrics and its spans, from a real sample."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from draftd.client.client import DraftdClient
from tests.custom_daemon import composed
from tests.otlp import OtlpReceiver
from tests.wait_until import until

DAEMON = """
import sys
from draftd.models.blas import load_blas
load_blas()
from draftd.cli.serve import run_daemon
from tests.scripted import scripted_models
from draftd.settings import HardwareSettings, ServerSettings, Settings
settings = Settings(
    server=ServerSettings(port=0, drain_seconds=5),
    hardware=HardwareSettings(period_seconds=0.1, memory_floor_bytes=12345),
)
say = lambda line: print("draftd: " + line, file=sys.stderr, flush=True)
sys.exit(run_daemon(settings, announce=say, load=lambda progress: scripted_models(0.7)))
"""


def test_daemon_exports_real_memory_values_as_metrics_and_on_spans(tmp_path: Path) -> None:
    with (
        OtlpReceiver() as receiver,
        composed(DAEMON, tmp_path, receiver.environ()) as address,
        DraftdClient(address) as client,
    ):
        until(client.serving, 30)
        time.sleep(0.5)  # a few samples
        assert list(client.generate("a prompt", max_tokens=4, timeout=60))

    total = psutil.virtual_memory().total
    assert receiver.total("system.memory.limit") == total
    assert receiver.total("draftd.memory.floor") == 12345
    assert 0 < receiver.total("draftd.memory.headroom") < total
    assert 2**20 < receiver.total("process.memory.usage") < total
    assert set(receiver.by("draftd.memory.mlx", "draftd.memory.mlx.state")) == {"active", "cache", "peak"}
    assert "draftd.hardware.errors" not in receiver.metric_names()
    (span,) = [span for span in receiver.spans() if "draftd.spec_decode.draft_tokens" in span.attributes]
    assert 0 < span.attributes["draftd.memory.headroom"] < total
