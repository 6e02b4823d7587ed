"""`make stack`'s program, as a person runs it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from draftd.server.client import DraftdClient
from tests.stack.components import ROOT, Prometheus, collector_binary, prometheus_binary
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PORTS = (4317, 4318, 8888, 9090, 9464, 13133)  # the pipeline's own: where one is taken, there is nothing to test


def test_the_pipeline_runs_in_one_log_and_stops_in_order() -> None:
    collector_binary(), prometheus_binary()
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is taken on this machine: stop what listens there")
    patient = ["--set", "telemetry.shutdown_seconds=30"]  # the machine may be busy: what counts is the order
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "stack.py"), "--port", "0", *patient], stdout=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)  # type: ignore[arg-type]
    reader.start()
    try:
        until(lambda: any(line.startswith("stack") and "ready" in line for line in lines), 90, "all is ready")
        address = next(found[1] for line in lines if (found := re.search(r"serving \S+ on (\S+:\d+)", line)))
        with DraftdClient(address) as client:
            events = list(client.generate("def add(a, b):", max_tokens=8, timeout=30))
        tokens = sum(len(event.chunk.token_ids) for event in events)
        counted = 'sum(draftd_tokens_total{gen_ai_token_type="output"})'
        until(lambda: (Prometheus(9090).number(counted) or 0) >= tokens, 40, "Prometheus has counted the tokens")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait()
        reader.join(5)
    log = "".join(lines)
    assert "Traceback" not in log
    assert "warning: shutdown" not in log, log  # the collector was still there when the daemon flushed
    assert "Dropping data" not in log, log
