"""`python -m tests.clients [NAMES…]`: do popular clients work with the daemon?

Installs each client, in its pinned version, in build/clients. Runs it against two real daemons over HTTP: one with
SmolLM2-135M-Instruct, one whose model writes what the conversation asks for. The last line is JSON.

NAMES   only clients whose names begin with one of these
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.clients.catalog import CHECKS, CLIENTS
from tests.clients.daemons import real_daemon, talking_daemon
from tests.clients.run import NOT_APPLICABLE, OK, Daemons, examine

_MODEL = Path("build/models/SmolLM2-135M-Instruct")
_WIDTH = 120  # columns of the table where the terminal has fewer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAMES")
    names = tuple(parser.parse_args().names)
    clients = [client for client in CLIENTS if not names or client.name.startswith(names)]
    if not clients:
        parser.error(f"no client's name begins with {' or '.join(names)}: {', '.join(c.name for c in CLIENTS)}")
    console = Console(stderr=True)
    results: dict[str, dict[str, str]] = {}
    table = Table(title=f"{len(clients)} clients")
    for head in ("client", "version", *CHECKS):
        table.add_column(head)
    with real_daemon(_MODEL) as real, talking_daemon() as talker:
        for client in clients:
            began = time.monotonic()
            results[client.name] = outcome = examine(client, Daemons(real, talker))
            wrong = {check: why for check, why in outcome.items() if why not in (OK, NOT_APPLICABLE)}
            line = f"{len(results)} of {len(clients)}: {client.name}: {'right' if not wrong else 'wrong'}"
            console.print(f"{line} ({time.monotonic() - began:.0f} s)", highlight=False, markup=False, soft_wrap=True)
            for check, why in wrong.items():
                console.print(f"    {check}: {why}", highlight=False, markup=False, soft_wrap=True)
            cells = (outcome[check] if outcome[check] in (OK, NOT_APPLICABLE) else "no" for check in CHECKS)
            table.add_row(client.name, escape(client.version), *cells)
    Console(width=max(console.width, _WIDTH)).print(table)
    print(json.dumps(results))
    return 0 if all(why in (OK, NOT_APPLICABLE) for outcome in results.values() for why in outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
