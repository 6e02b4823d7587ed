"""Where output goes. Colours and boxes on a terminal only; into a pipe the same words, plain."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

DRAFTED = "#10240f on #a6d189"  # text that the draft proposed and the target accepted
_PIPE_WIDTH = 240  # wide enough that no line of a table breaks in a file


def stdout() -> Console:
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def recording(width: int = 112, height: int | None = None) -> Console:
    """A terminal that also remembers what was drawn on it, for a picture. With a `height` nobody else sees it."""
    return Console(
        file=None if height is None else io.StringIO(),
        record=True,
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )


def save_picture(console: Console, path: Path, title: str) -> None:
    """An SVG of all that a recording console was told, with no font fetched from anywhere."""
    picture = console.export_svg(title=title)
    path.write_text(re.sub(r"\s*@font-face \{.*?\n    \}", "", picture, flags=re.DOTALL), encoding="utf-8")


def complain(message: str) -> None:
    """One line on stderr."""
    stderr().print(f"draftd: {message}", style="red", markup=False, soft_wrap=True)


@contextlib.contextmanager
def steps(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """A line that says which step of how many is under way; on a terminal only. Call it when a step begins.

    It is drawn when told and never by itself: a spinner's thread would take time from what is measured.
    """
    columns = (TextColumn("{task.completed} of {task.total}"), BarColumn(), TextColumn("{task.description}"))
    if not console.is_terminal:
        yield lambda line: None
        return
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=total)
        progress.update(task, completed=-1)

        def step(line: str) -> None:
            progress.update(task, advance=1, description=escape(line), refresh=True)

        yield step


def table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """The first column names, the others are figures. A line break in a heading counts on a terminal only."""
    made = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1 if console.is_terminal else 2, 0, 0),
    )
    for i, name in enumerate(columns):
        heading = name if console.is_terminal else name.replace("\n", " ")
        made.add_column(heading, justify="right" if i else "left", no_wrap=i > 0, overflow="ellipsis")
    for row in rows:
        made.add_row(*row)
    return made
