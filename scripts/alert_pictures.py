"""Draws docs/alerts-*.png: Prometheus's own pages while a draft's acceptance falls and recovers.

`python -m scripts.alert_pictures` takes four minutes. It needs chromium and a Prometheus with its web pages (Debian:
apt-get install chromium prometheus).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

from PIL import Image  # comes with matplotlib

from dashboards.evidence import ACCEPTANCE_BASELINE
from dashboards.ratios import acceptance_per_token, label
from dashboards.settings import Alerting
from draftd.telemetry import attributes as a
from tests.stack.degrading import Degrading, degrading
from tests.wait_until import until

DOCS = Path(__file__).parents[1] / "docs"
SETTINGS = Alerting(window_seconds=15)
ALERTS = ("DraftdAcceptanceBelowFloor", "DraftdAcceptanceDrift")
_PATIENCE = 240.0
_HISTORY_SECONDS = 90.0  # with the good draft; after less, the bad draft would soon be most of the baseline
_LIST = (0, 238, 1300, 730)  # the list of alerts, in pixels: the page above it names a file on this machine


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        degrading(Path(folder), SETTINGS, acceptance=0.8) as running,
        running.served("draftd-1"),
    ):
        began = time.monotonic()
        until(lambda: running.prometheus.number(ACCEPTANCE_BASELINE) is not None, _PATIENCE, "a baseline")
        time.sleep(_HISTORY_SECONDS)
        running.accept(0.15)
        until(lambda: _are(running, "firing"), _PATIENCE, "both fire")
        shoot(f"{running.prometheus.url}/classic/alerts", DOCS / "alerts-firing.png", 1100, _LIST)
        time.sleep(SETTINGS.window_seconds)
        running.accept(0.8)
        until(lambda: _are(running, "inactive"), _PATIENCE, "both are resolved")
        time.sleep(SETTINGS.window_seconds)
        shoot(_graphs(running, time.monotonic() - began), DOCS / "alerts-graph.png", 1610)
    return 0


def _are(running: Degrading, state: str) -> bool:
    return all(running.states(name)[-1:] == [state] for name in ALERTS)


def _graphs(running: Degrading, seconds: float) -> str:
    """Returns the URL of Prometheus's graphs of the last `seconds`: acceptance with its baseline and its floor; below,
    the alerts, where 1 is pending and 2 is firing."""
    now = acceptance_per_token("", SETTINGS.window, (label(a.WORKLOAD),))
    lines = f"{now} or {ACCEPTANCE_BASELINE} or vector({SETTINGS.acceptance_floor})"
    of = f'alertname=~"{"|".join(ALERTS)}", alertstate'
    states = f'sum by (alertname) (ALERTS{{{of}="pending"}} or 2 * ALERTS{{{of}="firing"}})'
    asked: dict[str, str] = {}
    for number, expression in enumerate((lines, states)):
        asked |= {f"g{number}.expr": expression, f"g{number}.tab": "0", f"g{number}.step_input": "1"}
        asked |= {f"g{number}.range_input": f"{int(seconds)}s"}
    return f"{running.prometheus.url}/classic/graph?{urllib.parse.urlencode(asked)}"


def shoot(url: str, to: Path, height: int, box: tuple[int, int, int, int] | None = None, width: int = 1300) -> None:
    """Saves a picture of the page `url`, as a browser window of `width` × `height` pixels shows it. `box` crops it to
    (left, top, right, bottom), in pixels."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
    command = ["chromium", *options, f"--window-size={width},{height}", f"--screenshot={to}", url]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)
    Image.open(to).convert("RGB").crop(box).quantize(64).save(to, optimize=True)
    print(to, to.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
