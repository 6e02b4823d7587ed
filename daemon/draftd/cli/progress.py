"""How far a run is, and how long it still takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from draftd.cli import terminal

if TYPE_CHECKING:
    from draftd.acceptance.session import Advance, Progress

_SAY_SECONDS = 30.0  # between two lines where there is no terminal


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Says how far a run is: a bar on a terminal, a line now and then elsewhere.

    It is drawn when told and never by itself: a thread would take time from what is measured.
    """
    console = terminal.stderr()
    if not console.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.fields[stage]}"), BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", stage="")

        def draw(advance: Advance) -> None:
            bar.update(
                task,
                completed=advance.done,
                total=advance.total,
                stage=advance.stage,
                description=escape(f"{left(advance.remaining)} · {advance.doing}"),
                refresh=True,
            )

        yield draw


def _lines() -> Progress:
    said: dict[object, float] = {}

    def say(advance: Advance) -> None:
        now = time.monotonic()
        if now - said.get(advance.stage, -_SAY_SECONDS) >= _SAY_SECONDS:
            said[advance.stage] = now
            share = advance.done / advance.total if advance.total else 1.0
            terminal.stderr().print(f"{advance.stage}: {share:.0%}, {left(advance.remaining)}", markup=False)

    return say


def left(seconds: float | None) -> str:
    """How long it still takes, as exactly as one may say."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5)):.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"
