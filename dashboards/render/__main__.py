"""Draws the dashboards of the last half hour: `python -m dashboards.render --prometheus http://127.0.0.1:9090`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dashboards.generate import PACKAGED, ROOT
from dashboards.render.asking import Shown, Source
from dashboards.render.page import save
from dashboards.render.reading import read


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards.render", description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="default: that of make stack")
    parser.add_argument("--minutes", type=float, default=30.0, help="how far back")
    parser.add_argument("--scrape-seconds", type=float, default=5.0, help="how often it scrapes")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "dashboards")
    parser.add_argument("dashboards", nargs="*", help="overview, speculation, …; default: all")
    options = parser.parse_args(arguments)
    now = time.time()
    shown = Shown(now - options.minutes * 60, now, options.scrape_seconds)
    for path in sorted((ROOT / PACKAGED / "dashboards").glob("*.json")):
        if not options.dashboards or path.stem in options.dashboards:
            print(save(read(path), Source(options.prometheus), shown, options.out / f"{path.stem}.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
