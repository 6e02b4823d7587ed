"""The `draftd` command."""

from __future__ import annotations

import sys


def main() -> None:
    """As `draftd.cli.main.main`; one that is interrupted while it imports ends as quietly as any other."""
    try:
        from draftd.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
