"""The embedded pair, the real collector, the real Prometheus: what Prometheus says is what the clients received."""

from __future__ import annotations

import json
import threading
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import DraftdClient
from draftd.core import ModePreference, WorkloadClass
from draftd.telemetry import catalog
from tests.conftest import NanoPair
from tests.otlp import OtlpReceiver
from tests.stack.components import Prometheus, collector, prometheus
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLASSES = ("code", "tool_call", "chat", "prose")
MODES = (ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE)


class Clients:
    """Concurrent clients, one for each class; sums of what they received, by mode."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self.received: dict[str, Counter[str]] = {mode.value: Counter() for mode in MODES}

    def run(self) -> None:
        threads = [threading.Thread(target=self._one, args=(name,)) for name in CLASSES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()

    def _one(self, name: str) -> None:
        lines = (files("draftd.models.nano") / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        with DraftdClient(self._address) as client:
            for line in lines[:3]:
                messages = [(one["role"], one["content"]) for one in json.loads(line)["messages"]]
                for mode in MODES:
                    sums: Counter[str] = Counter(requests=1)
                    for event in client.generate(
                        messages=messages, mode=mode, workload=WorkloadClass(name), max_tokens=40, timeout=60
                    ):
                        sums["tokens"] += len(event.chunk.token_ids)
                        sums["accepted"] += sum(event.chunk.from_draft)
                        sums["input"] += event.finished.usage.input_tokens
                        sums["drafted"] += event.finished.counts.drafted_tokens
                        sums["target_forwards"] += event.finished.counts.target_forwards
                    with self._lock:
                        self.received[mode.value] += sums


def counted(of: Prometheus, mode: str) -> Counter[str]:
    def total(metric: catalog.Metric, more: str = "") -> int:
        return int(of.number(f'sum({metric.prometheus}{{draftd_mode="{mode}"{more}}})') or 0)

    return +Counter(
        requests=total(catalog.REQUESTS),
        tokens=total(catalog.TOKENS, ', gen_ai_token_type="output"'),
        input=total(catalog.TOKENS, ', gen_ai_token_type="input"'),
        accepted=total(catalog.ACCEPTED_TOKENS),
        drafted=total(catalog.DRAFT_TOKENS),
        target_forwards=total(catalog.TARGET_FORWARDS),
    )


def test_counts_in_prometheus_equal_what_the_clients_received(tmp_path: Path, nano_pair: NanoPair) -> None:
    flags = str(tmp_path / "flags.json")
    with OtlpReceiver() as store, collector(tmp_path, store.port) as running:
        environ = clean_environ(flags) | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_SERVICE_INSTANCE_ID": "test",
        }
        pair = ("--model", nano_pair.target, "--draft-model", nano_pair.draft)
        command = serve_command(*pair, "--depth-mode", "fixed", "--port", "0")
        with prometheus(tmp_path, running.scrape) as found, serving(command, environ, timeout=60) as daemon:
            clients = Clients(daemon.address)
            clients.run()
            for mode, received in clients.received.items():
                assert received["requests"] == 12
                assert received["tokens"] > 100
                until(
                    lambda m=mode, r=received: counted(found, m) == +r,  # type: ignore[misc]
                    20,
                    f"{mode}: received {+received}, counted {counted(found, mode)}",
                )
            assert clients.received["speculative"]["accepted"] > 0
