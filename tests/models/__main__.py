"""`python -m tests.models`: is every text architecture of the installed mlx-lm served, with mlx-lm's own texts?

Examines each as a tiny model with random weights, in a process of its own. Results are kept in .benchmarks/models, and
used again while configuration, libraries and code are the same. Writes docs/models.md; the last line is JSON.

--only NAME    only this architecture; may be repeated; docs/models.md stays as it is
--again        examine everything again
--jobs N       concurrent processes; default: 2
--seconds N    maximum time of a process; default: 300
"""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from draftd.models.blas import load_blas
from tests.models import page, run
from tests.models.architectures import architectures

_WIDTH = 150  # columns of the table where the terminal has fewer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = architectures()
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        load_blas()
        from tests.models.scene import examine  # brings MLX in, after the BLAS

        return run.child(given.child, examine)
    asked, console = given.only or names, Console(stderr=True)
    found = []
    for result, before in run.results(asked, again=given.again, jobs=given.jobs, seconds=given.seconds):
        found.append(result)
        how = "as before" if before else f"{result.seconds:.0f} s"
        line = f"{len(found)} of {len(asked)}: {result.name}: {page.verdict(result)} ({how})"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    found.sort(key=lambda result: result.name.lower())
    Console(width=max(console.width, _WIDTH)).print(page.table(found))
    if not given.only:
        page.PATH.write_text(page.render(found), encoding="utf-8")
    print(json.dumps(page.summary(found)))
    return 1 if any(result.broken for result in found) else 0


if __name__ == "__main__":
    sys.exit(main())
