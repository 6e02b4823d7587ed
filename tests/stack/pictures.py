"""Draws docs/dashboards/: `python -m tests.stack.pictures`, about seven minutes.

Runs the whole real pipeline under traffic of every kind: both modes, an overload, the flag off for a while, clients
that leave. Then draws the dashboards from Prometheus's data. Last, the collector is away for a while, for the picture
of telemetry's health. The alerts' windows are shortened, so that a few minutes contain a baseline.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dashboards.board import written
from dashboards.boards import boards
from dashboards.render.asking import Shown, Source
from dashboards.render.page import save
from dashboards.render.reading import parsed
from dashboards.settings import Alerting
from tests.stack.traffic import Traffic, flag_off
from tests.stack.whole import Whole, whole

ROOT = Path(__file__).parents[2]
WINDOW_SECONDS = 20.0
SCRAPE_SECONDS = 5.0  # as `make stack` has it, and so as finely as its dashboards draw


def exercise(running: Whole, seconds: float) -> None:
    """Sends traffic for so long, with the events of a working day."""
    part = seconds / 8
    with Traffic(running.address, pause=0.3) as traffic:
        time.sleep(2 * part)
        traffic.trouble()
        time.sleep(part)
        with flag_off(running.address):
            time.sleep(part)
        time.sleep(part)
        for _ in range(3):
            traffic.overload(32)
            traffic.trouble()
            time.sleep(part / 3)
        time.sleep(2 * part)


def outage(running: Whole, seconds: float) -> None:
    """Stops the collector under traffic, and starts it again."""
    with Traffic(running.address, pause=0.3):
        running.collector.kill()
        time.sleep(seconds)
        running.collector.start()
        time.sleep(2 * seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.pictures", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of traffic; the outage comes on top")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "dashboards")
    options = parser.parse_args(arguments)
    note = f"alerts' windows shortened to {WINDOW_SECONDS:g} s"
    made = {board.key: parsed(written(board)) for board in boards(Alerting(window_seconds=WINDOW_SECONDS))}
    with tempfile.TemporaryDirectory() as folder, whole(Path(folder), instance="demo") as running:
        source, started = Source(running.prometheus.url), time.time()
        exercise(running, options.minutes * 60)
        shown = Shown(started, time.time(), SCRAPE_SECONDS)
        for key in ("overview", "speculation", "latency", "machine"):
            print(save(made[key], source, shown, options.out / f"{key}.png", note), flush=True)
        outage(running, options.minutes * 5)
        shown = Shown(started, time.time(), SCRAPE_SECONDS)
        print(save(made["telemetry"], source, shown, options.out / "telemetry.png", note), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
