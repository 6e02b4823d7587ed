"""docs/demo.png and docs/top.png: what `make demo` and `draftd top` show, drawn by a browser.

Drawn by `python -m scripts.terminal_pictures` in five minutes. Needs chromium.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from draftd.cli.runs import own_daemon
from draftd.client.client import DraftdClient
from draftd.core import WorkloadClass
from scripts.alert_pictures import DOCS, shoot
from scripts.first_session import Screen
from tests.waiting import repeating

_PROMPTS = (
    ("Complete this Python function: def unique(data):", WorkloadClass.CODE),
    ("Please tell me: How many legs does a beetle have?", WorkloadClass.CHAT),
    ("Book a flight from Miami to Venice on Thursday.", WorkloadClass.TOOL_CALL),
)
_PART_SECONDS = 45.0  # with the flag on, then off for a shorter while, then on
_OFF_SECONDS = 25.0


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        demo, top = Path(folder) / "demo.svg", Path(folder) / "top.svg"
        subprocess.run([sys.executable, "-m", "draftd", "demo", "--save", str(demo)], check=True)
        _draw(demo, DOCS / "demo.png")
        _watch(top, Path(folder))
        _draw(top, DOCS / "top.png")
    return 0


def _watch(picture: Path, folder: Path) -> None:
    with own_daemon() as daemon, DraftdClient(daemon.address) as client:
        client.loaded(120)

        def ask() -> None:
            for prompt, workload in _PROMPTS:
                list(client.generate(messages=[("user", prompt)], workload=workload, timeout=60))

        watching = [sys.executable, "-m", "draftd", "top", "--target", daemon.address, "--save", str(picture)]
        with repeating(ask, 0.01), repeating(ask, 0.01):
            screen = Screen(watching, folder, os.environ)
            for variant, seconds in (("on", _PART_SECONDS), ("off", _OFF_SECONDS), ("on", _PART_SECONDS)):
                client.set_flag(variant)
                time.sleep(seconds)
            screen.type("q")
            screen.until()


def _draw(svg: Path, to: Path) -> None:
    """As large as the picture says that it is."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text(encoding="utf-8"))
    assert found is not None
    shoot(svg.as_uri(), to, round(float(found[2])), width=round(float(found[1])))


if __name__ == "__main__":
    sys.exit(main())
