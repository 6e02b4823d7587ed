"""Draws docs/dashboards/ranks.png: `python -m tests.stack.ranks_picture`, about four minutes.

Two ranks on this machine export to the real collector, under traffic; the follower is killed once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from dashboards.board import written
from dashboards.boards import boards
from dashboards.render.asking import Shown, Source
from dashboards.render.page import save
from dashboards.render.reading import parsed
from dashboards.settings import Alerting
from draftd.client.child import serve_command, serving
from draftd.client.client import CallError, DraftdClient
from draftd.core import WorkloadClass
from tests.stack.pictures import ROOT, SCRAPE_SECONDS, WINDOW_SECONDS
from tests.stack.remote_picture import exporting
from tests.stack.traffic import prompts
from tests.stack.whole import pipeline

_CLASSES = (WorkloadClass.CODE, WorkloadClass.CHAT)


def traffic(address: str, until: float) -> None:
    """Runs a client for each category, which asks again if the group was lost."""

    def one(workload: WorkloadClass) -> None:
        with DraftdClient(address) as client:
            asked = prompts(workload.value)
            while time.monotonic() < until:
                for messages in asked[:3]:
                    try:
                        list(client.generate(messages=messages, workload=workload, max_tokens=32, timeout=60))
                    except CallError:
                        time.sleep(1.0)

    threads = [threading.Thread(target=one, args=(workload,), daemon=True) for workload in _CLASSES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(until - time.monotonic() + 60)


def kill_the_follower(after: float) -> None:
    time.sleep(after)
    for child in psutil.Process().children(recursive=True):
        if "follow" in child.cmdline():
            child.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.ranks_picture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="of traffic")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "dashboards" / "ranks.png")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60
    board = next(one for one in boards(Alerting(window_seconds=WINDOW_SECONDS)) if one.key == "ranks")
    with tempfile.TemporaryDirectory() as name, pipeline(Path(name)) as (running, found):
        environ = {**os.environ, **exporting(running, "studio"), "DRAFTD_FLAG__FILE": f"{name}/flags.json"}
        command = serve_command("--host", "127.0.0.1", "--port", "0", "--ranks", "2")
        with serving(command, environ, timeout=120) as daemon:
            started = time.time()
            threading.Thread(target=kill_the_follower, args=(seconds / 2,), daemon=True).start()
            traffic(daemon.address, time.monotonic() + seconds)
            time.sleep(2)
            shown = Shown(started, time.time(), SCRAPE_SECONDS)
            print(save(parsed(written(board)), Source(found.url), shown, options.out), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
