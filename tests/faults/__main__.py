"""`python -m tests.faults --minutes 30`: injects random faults from a seed, under traffic. `make faults` runs it.

--minutes N, --steps N   duration; ten minutes without either
--seed N                 seed of the faults; a new one without it
--only NAME              only this fault; may be repeated
--break NAME             breaks the daemon on purpose (tests/faults/breaking.py)
--prove                  breaks the daemon in each way once: the violated invariant must be detected
--cancels N --idle N     cancels so many streams beside so many idle connections: does a second client notice?
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from draftd.models.blas import load_blas
from tests.faults import cancels
from tests.faults.breaking import BREAKS
from tests.faults.faults import FAULTS, named
from tests.faults.run import Result, replayed, run

_MOST_STEPS = 60  # of a proof
_NONE = "none"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__, add_help=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = [_NONE, *(one.name for one in FAULTS)]
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME")
    parser.add_argument("--break", dest="broken", default="", choices=["", *BREAKS], metavar="NAME")
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--cancels", type=int, default=0)
    parser.add_argument("--idle", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was mounted is not left behind
    load_blas()
    if given.prove:
        return _prove(given.seed)
    with tempfile.TemporaryDirectory(prefix="draftd-faults-") as folder:
        if given.cancels:
            return cancels.main(Path(folder), given.cancels, given.idle, given.seed)
        faults = [named(name) for name in given.only if name != _NONE] if given.only else FAULTS
        seconds = 60 * (given.minutes or (10.0 if given.steps is None else float("inf")))

        def enough(result: Result) -> bool:
            return result.seconds >= seconds or (given.steps is not None and result.steps >= given.steps)

        print(f"seed {given.seed}", flush=True)
        result = run(Path(folder), given.seed, enough=enough, faults=faults, broken=given.broken, told=_say)
    print(result.report(replayed(given.seed, result.steps + bool(result.broken), given.broken, given.only)))
    return 1 if result.broken else 0


def _prove(seed: int) -> int:
    """Applies each deliberate break in an execution of its own, with a shorter wait for hangs. Returns 0 if each is
    detected as the invariant that it violates."""
    missed = 0
    for name, one in BREAKS.items():
        only = [part for fault in one.faults or (_NONE,) for part in ("--only", fault)]
        arguments = ["--break", name, "--seed", str(seed), "--steps", str(_MOST_STEPS), *only]
        environ = {**os.environ, "FAULTS_HANG_SECONDS": "15"}
        command = [sys.executable, "-m", "tests.faults", *arguments]
        said = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        found = re.search(r"^BROKEN: (.*)$", said, re.MULTILINE)
        seen = found is not None and one.invariant in found[1].split(", ")
        missed += not seen
        _say(f"{'seen' if seen else 'MISSED':6}  {name}: {found[0] if found is not None else 'nothing was broken'}")
    return 1 if missed else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
