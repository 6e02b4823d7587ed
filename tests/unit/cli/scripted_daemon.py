"""A whole daemon on a scripted pair, as a process of its own: `python scripted_daemon.py FLAG_FILE`."""

from __future__ import annotations

import sys

from draftd.cli.serve import run_daemon
from draftd.config import load_settings
from draftd.engine.scripted import scripted_models


def main() -> int:
    settings = load_settings(None, {"server.port": 0, "flag.file": sys.argv[1]}, {})
    return run_daemon(
        settings,
        announce=lambda line: print(f"draftd: {line}", file=sys.stderr, flush=True),
        load=lambda progress: scripted_models(0.7),
    )


if __name__ == "__main__":
    sys.exit(main())
