"""Output of commands: plain text into a pipe, colours and boxes on a terminal, JSON on request."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, track
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from draftd.protocol import plain

if TYPE_CHECKING:
    from draftd.client.gathering import Piece
    from draftd.v1 import inference_pb2

T = TypeVar("T")

# Control characters are shown as signs. Codes below a space, except tabs and line breaks, have pictures from U+2400 on;
# those from 0x80 on, which include single-byte escape sequences, have none.
_OBEYED = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_SHOWN = _OBEYED | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

GOOD, WARN, BAD, DIM = "green", "yellow", "bold red", "dim"
Row = tuple[str, Text]  # a name, and what it is now

DRAFTED = "#10240f on #a6d189"  # text that the draft proposed and the target accepted
REMOTE = "underline"  # text that the remote chose
_PIPE_WIDTH = 240  # wide enough that no line of a table breaks in a file
_STILL_LOADING = re.compile(r"the model is still loading \((.*)\)")
_WAITING_SECONDS = 10.0  # between two lines on the wait, without a terminal


def stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def stderr() -> Console:
    return Console(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH, highlight=False)


def visible(text: str) -> str:
    """Replaces control characters in a text of a model or of another program, so that a terminal cannot obey them."""
    return text.translate(_SHOWN)


def bracket_drafts(pieces: Iterable[Piece]) -> str:
    """Marks pieces by brackets, for output without colours: accepted drafts in ⟦ ⟧, the remote's text in ⟪ ⟫."""
    marked = ((f"⟦{piece.text}⟧" if piece.from_draft else piece.text, piece.remote) for piece in pieces)
    return "".join(f"⟪{text}⟫" if remote else text for text, remote in marked)


def say(line: str, **style: Any) -> None:
    """Prints one line on stdout, never wrapped."""
    stdout().print(visible(line), markup=False, soft_wrap=True, **style)


def complain(message: str) -> None:
    """Prints one line on stderr."""
    stderr().print(f"draftd: {visible(message)}", style="red", markup=False, soft_wrap=True)


def print_fields(fields: Iterable[tuple[str, str | Text]], width: int) -> None:
    """Prints a line for each name and value, names padded to `width` columns. An empty name continues the line
    above."""
    out = stdout()
    for name, value in fields:
        out.print(f"[bold]{name:<{width}}[/]", end=" ")
        out.print(visible(value) if isinstance(value, str) else value, markup=False, soft_wrap=True)


def table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> Table:
    """Builds a table: names in the first column, figures (or text with `words`) in the others. Line breaks in headings
    are kept on a terminal, and become spaces elsewhere."""
    grid = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1 if console.is_terminal else 2, 0, 0),
    )
    for i, name in enumerate(columns):
        heading, right = name if console.is_terminal else name.replace("\n", " "), i > 0 and not words
        grid.add_column(heading, justify="right" if right else "left", no_wrap=i > 0 or words, overflow="ellipsis")
    for row in rows:
        grid.add_row(*map(visible, row))
    return grid


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> None:
    out = stdout()
    out.print(table(out, columns, rows, words=words))


def recording() -> Console:
    """Returns a terminal of 112 columns that records what is drawn on it, for a picture."""
    return Console(record=True, width=112, force_terminal=True, color_system="truecolor", highlight=False)


def save_picture(path: Path, svg: str) -> None:
    """Writes an SVG, without the fonts that it would fetch from the web."""
    path.write_text(re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL), encoding="utf-8")


def print_json(value: Message | dict[str, Any] | list[Any]) -> None:
    """Prints one line of JSON."""
    document = plain(value) if isinstance(value, Message) else value
    print(json.dumps(document, ensure_ascii=False), flush=True)


# Progress is drawn only within calls. A thread that draws would take time from the measurements.


def track_items(items: Sequence[T], console: Console | None = None) -> Iterable[T]:
    """Yields the items, and shows on a terminal how many are done. `console`: where other output goes meanwhile, which
    then appears above the bar; stderr by default."""
    console = console or stderr()
    return track(items, "", console=console, transient=True, auto_refresh=False, disable=not console.is_terminal)


class WaitingBar:
    """Shows what an answer waits for, until it begins: a bar on a terminal, nothing elsewhere. Use it with
    `closing`."""

    def __init__(self) -> None:
        console, columns = stderr(), (TextColumn("{task.description}"), BarColumn())
        hidden, self._shown_at = not console.is_terminal, -_WAITING_SECONDS
        self._bar = Bar(*columns, console=console, transient=True, auto_refresh=False, disable=hidden)

    def hear(self, response: inference_pb2.GenerateResponse) -> None:
        """Draws a `loading` or `prompt_progress` event."""
        prompt = response.prompt_progress
        if response.HasField("loading"):
            self._draw(response.loading.progress)
        else:
            self._draw(f"prompt: {prompt_progress(prompt)}", prompt.processed_tokens, prompt.prompt_tokens)

    def hear_loading(self, line: str) -> None:
        """Draws how far a daemon or a long check is; without a terminal, prints a line every ten seconds."""
        if not self._bar.disable:
            loading = _STILL_LOADING.fullmatch(line)
            self._draw(loading[1] if loading else line)  # a terminal has few columns
        elif time.monotonic() - self._shown_at >= _WAITING_SECONDS:
            self._shown_at = time.monotonic()
            complain(line)

    def _draw(self, line: str, done: float = 0, total: float | None = None) -> None:
        """Draws the bar. `total`: None if it is unknown."""
        if not self._bar.tasks:
            self._bar.add_task("")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=escape(line), completed=done, total=total, refresh=True)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar.live.is_started:
            self._bar.stop()

    def before(self, shown: Callable[[T], None]) -> Callable[[T], None]:
        """Wraps a function that shows a part of the answer, so that it removes the bar first."""

        def show(part: T) -> None:
            self.close()
            shown(part)

        return show


def prompt_progress(progress: inference_pb2.PromptProgress) -> str:
    """Says how many of a prompt's tokens are prefilled, and how many tokens a second were computed, not counting cached
    ones."""
    computed, seconds = progress.processed_tokens - progress.cached_tokens, progress.elapsed.ToNanoseconds() / 1e9
    rate = f", {computed / seconds:.0f} tokens/s" if computed > 0 and seconds > 0 else ""
    cached = f" ({progress.cached_tokens:,} cached)" if progress.cached_tokens else ""
    return f"{progress.processed_tokens:,} of {progress.prompt_tokens:,} tokens{cached}{rate}"
