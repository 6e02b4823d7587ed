"""Draws docs/dashboards/remote.png: `python -m tests.stack.remote_picture`, about four minutes.

An edge and a verifier on one machine, with a proxy that adds a round trip of 15 ms, both export to the real collector.
Each category is asked for with every strategy; the network is cut once, and is slow for a while.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dashboards.board import written
from dashboards.boards import boards
from dashboards.render.asking import Shown, Source
from dashboards.render.page import save
from dashboards.render.reading import parsed
from dashboards.settings import Alerting
from draftd.client.client import CallError, DraftdClient
from draftd.core import WorkloadClass
from draftd.strategies import Strategy
from tests.remote.daemons import Two, draft_edge, two_daemons
from tests.stack.components import Collector
from tests.stack.pictures import ROOT, SCRAPE_SECONDS, WINDOW_SECONDS
from tests.stack.traffic import prompts
from tests.stack.whole import pipeline

_WAYS = (Strategy.SPECULATIVE, Strategy.SPECULATIVE, Strategy.REMOTE, Strategy.LOCAL)
_CLASSES = (WorkloadClass.CODE, WorkloadClass.CHAT, WorkloadClass.TOOL_CALL)


def exporting(running: Collector, instance: str) -> dict[str, str]:
    """Returns the environment variables of a daemon that exports here."""
    exporters = {f"OTEL_{signal}_EXPORTER": "otlp" for signal in ("TRACES", "METRICS", "LOGS")}
    return exporters | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
        "DRAFTD_FALLBACK__WINDOW_SECONDS": str(WINDOW_SECONDS),
        "DRAFTD_FALLBACK__COOLDOWN_SECONDS": str(WINDOW_SECONDS / 2),
        "DRAFTD_FALLBACK__LEAST_REQUESTS": "3",
    }


def traffic(two: Two, seconds: float) -> None:
    """Runs a client for each category, with each strategy in turn."""
    until = time.monotonic() + seconds

    def one(workload: WorkloadClass) -> None:
        with DraftdClient(two.edge.address) as client:
            for number in itertools.count():
                if time.monotonic() > until:
                    return
                asked = prompts(workload.value)
                way = _WAYS[number % len(_WAYS)] if number % 3 else None  # none named: it may go on locally
                try:
                    list(
                        client.generate(
                            messages=asked[number % len(asked)],
                            workload=workload,
                            max_tokens=48,
                            strategy=way,
                            timeout=30,
                        )
                    )
                except CallError:
                    time.sleep(0.2)  # demanded while the remote is away

    threads = [threading.Thread(target=one, args=(workload,), daemon=True) for workload in _CLASSES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)


def events(two: Two, seconds: float) -> None:
    """Cuts and slows the network meanwhile."""
    part = seconds / 6
    two.network(0.015)
    time.sleep(2 * part)
    two.proxy.cut()
    time.sleep(part / 2)
    two.proxy.restore()
    time.sleep(part)
    two.network(0.9)
    time.sleep(part * 1.5)
    two.network(0.015)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.remote_picture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="of traffic")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "dashboards" / "remote.png")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60
    board = next(one for one in boards(Alerting(window_seconds=WINDOW_SECONDS)) if one.key == "remote")
    with tempfile.TemporaryDirectory() as name, pipeline(Path(name)) as (running, found):
        prices = {
            "DRAFTD_COST__REMOTE_PER_TARGET_HOUR": "2",
            "DRAFTD_COST__PER_HOUR": "0.02",
            "DRAFTD_MODEL__QUALITY": "draft",
            "DRAFTD_REMOTE__DEFAULT_STRATEGY": "speculative",
            "DRAFTD_REMOTE__PROBE_SECONDS": "2",
        }
        edge = {**draft_edge(), **exporting(running, "edge"), **prices}
        verifier = {**exporting(running, "verifier"), "DRAFTD_MODEL__QUALITY": "professional"}
        with two_daemons(edge=edge, verifier=verifier) as two:
            started = time.time()
            happening = threading.Thread(target=events, args=(two, seconds), daemon=True)
            happening.start()
            traffic(two, seconds)
            happening.join(seconds)
            time.sleep(2)
            shown = Shown(started, time.time(), SCRAPE_SECONDS)
            note = f"alerts' windows shortened to {WINDOW_SECONDS:g} s"
            print(save(parsed(written(board)), Source(found.url), shown, options.out, note), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
