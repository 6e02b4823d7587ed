"""One look at the daemon: two snapshots and what lies between them, as a screen, as plain text, or as JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from draftd.cli import figures
from draftd.cli.output import plain
from draftd.cli.top import rows
from draftd.cli.top.history import History
from draftd.cli.top.machine import machine
from draftd.cli.top.rates import Snapshot
from draftd.cli.top.view import View
from draftd.v1 import control_pb2 as pb


def look(ask: Callable[[], pb.GetStatusResponse], target: str, interval: float) -> View:
    """Takes `interval` seconds."""
    history = History()
    for wait in (0.0, interval):
        time.sleep(wait)
        began = time.monotonic()
        status = ask()
        snapshot = Snapshot((began + time.monotonic()) / 2, status)
        history.add(snapshot)
    return View.of(history, snapshot, target, interval, at=time.monotonic())


def document(view: View) -> dict[str, Any]:
    """`now` is between the two snapshots, null where the daemon was started anew; `whole` since it started."""
    return {
        "target": view.target,
        "now": dataclasses.asdict(view.now) if view.now is not None else None,
        "whole": dataclasses.asdict(view.whole),
        "status": plain(view.status),
    }


def as_json(view: View) -> str:
    """One line of JSON."""
    return json.dumps(document(view), ensure_ascii=False)


def lines(view: View, now: datetime) -> Iterator[str]:
    """The screen's words without its frames, for a pipe."""
    rate = view.now.tokens_per_second if view.now is not None else None
    span = f"over {rows.period(view)}"
    yield rows.state(view).plain
    yield _line("tokens/s", f"{figures.rate(rate)} {span}")
    for compared in (*rows.speculation(view), *rows.positions(view)):
        name = f"position {compared.name}" if compared.share is not None else compared.name
        yield _line(name, f"{compared.minute:<9}{compared.whole} in all")
    for row in (*rows.serving(view, now), *machine(view)):
        yield _line(row.name, row.value.plain)
    for row in rows.transitions(view, now):
        yield _line(row.name, row.value.plain)


def _line(name: str, value: str) -> str:
    return f"{name:<17}{value}"
