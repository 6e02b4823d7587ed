"""Draws what `draftd demo` and `draftd top` show with a real model: docs/demo.png, its beginning docs/answer.png, and
docs/top.png.

`python -m scripts.terminal_pictures` takes ten minutes, after `make real-model`. It needs chromium.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from draftd.cli.own_daemon import own_daemon
from draftd.client.client import DraftdClient
from draftd.core import WorkloadClass
from scripts.alert_pictures import DOCS, shoot
from scripts.first_session import Screen
from tests.wait_until import repeating

_MODEL = "build/models/SmolLM2-135M-Instruct"
_TOKENS = 96
_PROMPTS = (
    ("Complete this Python function: def unique(data):", WorkloadClass.CODE),
    ("How many legs does a beetle have?", WorkloadClass.CHAT),
    (
        'Change the city to Oslo and repeat the whole record: {"name": "Ada Byron", "street": "12 Mill Lane", '
        '"city": "Leeds", "country": "Norway", "active": true, "tags": ["reader", "walker"], "visits": 14}',
        WorkloadClass.EDIT,
    ),
)
_PART_SECONDS = 45.0  # with the flag on, before and after it is off
_OFF_SECONDS = 25.0


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        demo, top = Path(folder) / "demo.svg", Path(folder) / "top.svg"
        shown = [sys.executable, "-m", "draftd", "demo", "--model", _MODEL, "--each", "2", "--save", str(demo)]
        subprocess.run(shown, check=True)
        _draw(demo, DOCS / "demo.png")
        _draw(demo, DOCS / "answer.png", until="tool_call")
        _watch(top, Path(folder))
        _draw(top, DOCS / "top.png")
    return 0


def _watch(picture: Path, folder: Path) -> None:
    with own_daemon("--model", _MODEL) as daemon, DraftdClient(daemon.address) as client:
        client.wait_until_loaded(120)

        def ask() -> None:
            for prompt, workload in _PROMPTS:
                messages = [("user", prompt)]
                list(client.generate(messages=messages, workload=workload, max_tokens=_TOKENS, timeout=120))

        watching = [sys.executable, "-m", "draftd", "top", "--target", daemon.address, "--save", str(picture)]
        with repeating(ask, 0.01), repeating(ask, 0.01):
            screen = Screen(watching, folder, os.environ)
            for variant, seconds in (("on", _PART_SECONDS), ("off", _OFF_SECONDS), ("on", _PART_SECONDS)):
                client.set_flag(variant)
                screen.watch(seconds)
            screen.type("q")
            screen.until()


def _draw(svg: Path, to: Path, until: str = "") -> None:
    """Converts the SVG to a PNG of its own size; with `until`, only the lines above the first one that has this
    word."""
    text = svg.read_text(encoding="utf-8")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    width, height = float(size[1]), float(size[2])
    if until:
        top = re.search(r'transform="translate\(\d+, (\d+)\)" clip-path', text)
        assert top is not None
        lines = [(float(y), words) for y, words in re.findall(r'y="([\d.]+)" textLength[^>]*>([^<]*)', text)]
        below = next(y for y, words in lines if until in words)
        height = float(top[1]) + 8 + max(y for y, _ in lines if y < below)
        svg = svg.with_name("beginning.svg")
        svg.write_text(text.replace(size[0], f'viewBox="0 0 {width} {height}"', 1), encoding="utf-8")
    shoot(svg.as_uri(), to, round(height), width=round(width))


if __name__ == "__main__":
    sys.exit(main())
