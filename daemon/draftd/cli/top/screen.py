"""Lays the rows out for a terminal of any size from 80 × 24; a smaller one is cut."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich import box
from rich.console import RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from draftd.cli import figures
from draftd.cli.figures import NOTHING
from draftd.cli.top import rows
from draftd.cli.top.bars import bar, spark
from draftd.cli.top.history import curve
from draftd.cli.top.machine import machine
from draftd.cli.top.rows import DIM, Compared, Row
from draftd.cli.top.view import View

_ACCENT = "cyan"
_BORDERS = 2  # lines that a panel's frame takes
_FRAME = 4  # columns that it takes
_LEAST = (80, 24)  # columns and lines; a smaller terminal shows the upper left of that
_WIDE = 120  # columns from which three panels stand side by side
_LEFT_SHARE = 0.43  # of two columns; the right one's rows are longer
_SIDE = 17  # columns for the figures beside a curve
_LEAST_CURVE = 4  # lines, its frame included
_MOST_CURVE, _MOST_LISTED = 12, 12  # lines
_SHORT = 45  # columns below which transitions are told in fewer words
_COLUMN_SECONDS = 2.0  # at least so much time in each column of a curve
_MACHINE, _COMPARED = 7, 8  # lines of each panel's contents, a heading included


def screen(view: View, width: int, height: int, now: datetime, *, keys: bool = True) -> Layout:
    """One frame. `now` is the present, for the times of transitions; without `keys` none are offered."""
    width, height = max(width, _LEAST[0]), max(height, _LEAST[1])
    body = height - (2 if keys else 1)
    layout = Layout()
    parts = [Layout(_header(view), size=1), Layout(name="body", size=body)]
    layout.split_column(*parts, *([Layout(_footer(view), size=1)] if keys else []))
    fill = _three_columns if width >= _WIDE else _two_columns
    fill(layout["body"], view, width, body, now)
    return layout


def _two_columns(layout: Layout, view: View, width: int, height: int, now: datetime) -> None:
    compared = _COMPARED + max(len(view.whole.per_position), 1) + _BORDERS
    listed = _listed(view)
    served = rows.serving(view, now)
    right = len(served) + _MACHINE + 2 * _BORDERS
    top = min(max(height - max(right, compared + listed), _LEAST_CURVE), _MOST_CURVE + _BORDERS)
    rest = height - top
    if right > rest:
        served = rows.serving(view, now, brief=True)
    last = max(rest - compared, 4)
    serving = min(len(served) + _BORDERS, rest - 3)
    layout.split_column(Layout(_throughput(view, width, top), size=top), Layout(name="rest", size=rest))
    left = round(width * _LEFT_SHARE)
    layout["rest"].split_row(Layout(name="left", size=left), Layout(name="right"))
    layout["left"].split_column(
        Layout(_speculation(view, rest - last), size=rest - last),
        Layout(_transitions(view, left, last, now), size=last),
    )
    layout["right"].split_column(
        Layout(_panel("serving", _table(served), view), size=serving),
        Layout(_panel("machine", _table(machine(view)), view), size=rest - serving),
    )


def _three_columns(layout: Layout, view: View, width: int, height: int, now: datetime) -> None:
    compared = _COMPARED + max(len(view.whole.per_position), 1) + _BORDERS
    served = rows.serving(view, now)
    middle = min(max(compared, _MACHINE + _BORDERS, len(served) + _BORDERS), max(height - 9, _MACHINE + _BORDERS))
    if len(served) > middle - _BORDERS:
        served = rows.serving(view, now, brief=True)
    last = min(_listed(view), max(height - middle - 5, 3))
    top = height - middle - last
    half = width // 2
    layout.split_column(
        Layout(name="curves", size=top),
        Layout(name="middle", size=middle),
        Layout(_transitions(view, width, last, now), size=last),
    )
    layout["curves"].split_row(
        Layout(_throughput(view, half, top), size=half), Layout(_acceptance(view, width - half, top))
    )
    layout["middle"].split_row(
        Layout(_speculation(view, middle)),
        Layout(_panel("serving", _table(served), view)),
        Layout(_panel("machine", _table(machine(view)), view)),
    )


def _listed(view: View) -> int:
    """Lines that the transitions would like."""
    return min(max(len(view.status.transitions), 3), _MOST_LISTED) + _BORDERS


def _header(view: View) -> Text:
    made = rows.lost(view) if view.lost is not None else rows.state(view)
    made.no_wrap, made.overflow = True, "ellipsis"
    return made


def _footer(view: View) -> Text:
    turn = {"on": "turn the flag off", "off": "turn the flag on"}.get(view.status.flag_variant, "flag")
    made = Text.assemble(
        (" f ", "reverse"), f" {turn}  ", (" p ", "reverse"), f" {'go on' if view.paused else 'pause'}  ",
        (" q ", "reverse"), " quit  ", ("paused  " if view.paused else "", "yellow"), (view.notice, "bold"),
    )  # fmt: skip
    made.no_wrap, made.overflow = True, "ellipsis"
    return made


def _throughput(view: View, width: int, lines: int) -> Panel:
    now = view.now.tokens_per_second if view.now is not None else None
    minute = view.minute.tokens_per_second if view.minute is not None else None
    columns, seconds = _span(view, width)
    values = curve(view.stretches, lambda s: s.rate, columns=columns, seconds=seconds, now=view.at)
    peak = max((value for value in values if value is not None), default=0.0)
    side = (
        Text.assemble((figures.rate(now), "bold"), " tokens/s"),
        Text(f"{figures.rate(minute)} over {rows.period(view)}", DIM),
    )
    return _curve(
        f"throughput, {figures.rate(peak) if peak else NOTHING} at most", side, values, peak, lines, seconds, view
    )


def _acceptance(view: View, width: int, lines: int) -> Panel:
    now = view.now.drafting.acceptance if view.now is not None else None
    minute = view.minute.drafting.acceptance if view.minute is not None else None
    columns, seconds = _span(view, width)
    values = curve(view.stretches, lambda s: s.acceptance, columns=columns, seconds=seconds, now=view.at)
    side = (
        Text.assemble((figures.percent(now), "bold"), " accepted"),
        Text(f"{figures.percent(minute)} over {rows.period(view)}", DIM),
    )
    return _curve("acceptance, of 100%", side, values, 1.0, lines, seconds, view)


def _span(view: View, width: int) -> tuple[int, float]:
    """Columns of a curve in a panel so wide, and how much time they show."""
    columns = max(width - _FRAME - _SIDE, 10)
    return columns, columns * max(_COLUMN_SECONDS, view.interval)


def _curve(
    title: str, side: Sequence[Text], values: Sequence[float | None], top: float, lines: int, seconds: float, view: View
) -> Panel:
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=_SIDE, no_wrap=True)
    grid.add_column(no_wrap=True)
    for number, line in enumerate(spark(values, max(lines - _BORDERS, 1), top)):
        grid.add_row(side[number] if number < len(side) else "", Text(line, _ACCENT))
    return _panel(title, grid, view, f"last {max(round(seconds / 60), 1)} min")


def _speculation(view: View, lines: int) -> Panel:
    room = lines - _BORDERS - _COMPARED
    places = rows.positions(view)
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style=DIM)
    grid.add_row("", Text(rows.period(view).removeprefix("a "), DIM), "in all")
    for row in rows.speculation(view):
        grid.add_row(row.name, Text(row.minute, row.style), row.whole)
    if len(places) <= room:
        for place in places:
            grid.add_row(_Bar(place), place.minute, place.whole)
    outer = Table.grid(expand=True)
    outer.add_row(grid)
    if reason := rows.unavailable(view):
        outer.add_row(reason)
    elif not places:
        outer.add_row(Text("nothing drafted yet", DIM))
    elif len(places) > room:
        outer.add_row(_line(places))
    return _panel("speculation", outer, view)


class _Bar:
    """A position's bar, as wide as it may be."""

    def __init__(self, place: Compared) -> None:
        self._place = place

    def __rich_console__(self, console: object, options: object) -> Sequence[RenderableType]:
        width = max(getattr(options, "max_width", 20) - 3, 1)
        share = self._place.share
        return [
            Text.assemble(f"{self._place.name:>2} ", (bar(share, width) if share is not None else NOTHING, _ACCENT))
        ]


def _line(places: Sequence[Compared]) -> Text:
    """All positions in one line, where there is no room for a bar each."""
    shown = " ".join(f"{place.share:.0%}" if place.share is not None else NOTHING for place in places)
    return Text(f"by position {shown}", no_wrap=True, overflow="ellipsis")


def _transitions(view: View, width: int, lines: int, now: datetime) -> Panel:
    made = rows.transitions(view, now, short=width < _SHORT)[: max(lines - _BORDERS, 1)]
    return _panel("transitions", _table(made) if made else Text("none yet", DIM), view)


def _table(made: Sequence[Row]) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, style=DIM, min_width=max(len(row.name) for row in made))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in made:
        grid.add_row(row.name, row.value)
    return grid


def _panel(title: str, content: RenderableType, view: View, subtitle: str | None = None) -> Panel:
    return Panel(
        content,
        title=title,
        title_align="left",
        subtitle=Text(subtitle, DIM) if subtitle else None,
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="red" if view.lost is not None else "bright_black",
    )
