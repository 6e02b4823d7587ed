"""How far a run is, as its commands show it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from draftd.cli.output import stderr
from draftd_acceptance.session import Advance, Progress

_REPORT_SECONDS = 30.0  # between two lines of progress where there is no terminal


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """How far a run is: a bar on a terminal, a line now and then elsewhere."""
    console = stderr()
    if not console.is_terminal:
        yield _progress_lines()
        return
    columns = (TextColumn("{task.fields[stage]}"), BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", stage="")

        def draw(advance: Advance) -> None:
            line = escape(f"{time_left(advance.remaining)} · {advance.doing}")
            done, total = advance.done, advance.total
            bar.update(task, completed=done, total=total, stage=advance.stage, description=line, refresh=True)

        yield draw


def _progress_lines() -> Progress:
    last: dict[object, float] = {}

    def write(advance: Advance) -> None:
        now = time.monotonic()
        if now - last.get(advance.stage, -_REPORT_SECONDS) >= _REPORT_SECONDS:
            last[advance.stage] = now
            share = advance.done / advance.total if advance.total else 1.0
            stderr().print(f"{advance.stage}: {share:.0%}, {time_left(advance.remaining)}", markup=False)

    return write


def time_left(seconds: float | None) -> str:
    """No more exact than it is known."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5)):.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"
