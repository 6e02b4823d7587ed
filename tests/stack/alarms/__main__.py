"""`python -m tests.stack.alarms`: brings about the cause of each alert with real daemons, the real collector,
Prometheus and Alertmanager, with windows of four seconds, and prints a table. It takes about twelve minutes."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.stack.alarms.one import around, certificates, drafts, machine, no_daemon, requests
from tests.stack.alarms.ranks import several_ranks
from tests.stack.alarms.two import two_daemons_apart
from tests.stack.alarms.watch import RULES, line, watching
from tests.stack.components import free_ports

SCENES = {
    "none": no_daemon,  # first: a daemon that another scene has killed would be missed meanwhile
    "drafts": drafts,
    "machine": machine,
    "requests": requests,
    "around": around,
    "certificates": certificates,
    "remote": two_daemons_apart,
    "ranks": several_ranks,
}
_INSTANCES = ("one", "edge", "verifier", "ranks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.alarms", description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; all without one")
    chosen = parser.parse_args(arguments).scenes or list(SCENES)
    with tempfile.TemporaryDirectory(prefix="draftd-alarms-") as name:
        folder = Path(name)
        webhooks = dict(zip(_INSTANCES, free_ports(len(_INSTANCES)), strict=True))
        with watching(folder, webhooks) as watch:
            for scene in chosen:
                (own := folder / scene).mkdir()
                SCENES[scene](watch, own)
    print("\n| alert | cause | fires after | effect | resolved after |\n| --- | --- | --- | --- | --- |")
    for row in watch.rows:
        print(line(row))
    missing = set(RULES) - {row.alert for row in watch.rows} if set(chosen) == set(SCENES) else set()
    for name in sorted(missing):
        print(f"{name}: no cause is known here")
    return 1 if missing or not all(row.complete for row in watch.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
