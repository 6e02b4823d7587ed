"""The `draftd` command."""

from __future__ import annotations

import signal
import sys

from draftd.client.signals import hangup_reloads


def main() -> None:
    """Runs `draftd.cli.main.main`. A Ctrl-C during its import also ends the process quietly."""
    if sys.argv[1:2] in (["serve"], ["follow"]) and hangup_reloads():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # while it imports there is nothing to reload yet
    try:
        from draftd.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
