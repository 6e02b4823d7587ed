"""The live screen of `draftd top`: a Textual app that asks the daemon, draws what it answers, and obeys keys."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import Static

from draftd.cli import figures
from draftd.cli.failures import explain
from draftd.cli.figures import NOTHING
from draftd.cli.top import rows
from draftd.cli.top.rates import History, Snapshot, View
from draftd.cli.top.rows import DIM, Row
from draftd.client.client import DraftdClient

LEAST = (60, 20)  # columns and lines
_WIDE = 120  # columns from which three panels are side by side
_SIDE = 18  # columns for the figures beside a curve
_STATUS_SECONDS = 5.0  # a daemon that takes longer does not answer
_LONGEST_PAUSE = 10.0
_NOTICE_SECONDS = 8.0
_DRAW_SECONDS = 1.0  # how often the time that the daemon has been away is drawn anew
_ACCENT = "cyan"
_UP = " ▁▂▃▄▅▆▇█"


def pause(failures: int, interval: float) -> float:
    """Seconds until the next try after so many failures in a row."""
    return min(interval * 2.0 ** min(failures - 1, 16), max(_LONGEST_PAUSE, interval))


class Curve(Static):
    """A curve that fills its panel, a column for each two snapshots, with two figures beside it."""

    def show(self, values: Sequence[float | None], beside: Sequence[Text], interval: float, top: float | None) -> float:
        """Draws the latest; `top` is the value that fills the height, None the highest seen. Returns that value."""
        columns = max(self.content_size.width - _SIDE, 10)
        drawn = [*([None] * columns), *values][-columns:]
        most = max((value for value in drawn if value is not None), default=0.0) if top is None else top
        grid = Table.grid()
        grid.add_column(width=_SIDE, no_wrap=True)
        grid.add_column(no_wrap=True)
        for number, line in enumerate(spark(drawn, max(self.content_size.height, 1), most)):
            grid.add_row(beside[number] if number < len(beside) else "", Text(line, _ACCENT))
        self.update(grid)
        self.border_subtitle = f"last {figures.span(round(columns * interval))}"
        return most


class TopApp(App[None]):
    """`picture` is the screen as SVG when it was quit. Without a client the history is drawn as it is.

    Calls block on threads of their own; closing the client, which the app does at its end, ends those under way.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "draftd top"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("f", "flag", "flag"),
        ("p", "pause", "pause"),
        ("q", "quit", "quit"),
        ("ctrl+c", "quit", "quit"),
    ]
    CSS = """
    #header, #footer { height: 1; }
    #small { display: none; height: 1fr; content-align: center middle; }
    .-small #small { display: block; }
    .-small #header, .-small #body, .-small #footer { display: none; }
    #body { height: 1fr; scrollbar-size-vertical: 1; }
    .panel { border: round $foreground 35%; height: auto; padding: 0 1; border-title-color: $foreground; }
    .-lost .panel { border: round $error; }
    #curves { height: 1fr; min-height: 4; max-height: 16; }
    #curves .panel { height: 1fr; width: 1fr; }
    #panels { height: auto; }
    #left { width: 43fr; height: auto; }
    #right { width: 57fr; height: auto; }
    #acceptance, #below { display: none; }
    .-narrow #panels { layout: vertical; }
    .-narrow #left, .-narrow #right { width: 1fr; }
    .-narrow #curves { height: 6; }
    .-wide #acceptance, .-wide #below { display: block; }
    .-wide #beside { display: none; }
    .-wide #left { width: 3fr; }
    .-wide #right { width: 7fr; layout: horizontal; }
    .-wide #serving { width: 1fr; }
    .-wide #machine { width: 48; }
    """

    def __init__(
        self,
        client: DraftdClient | None,
        history: History,
        target: str,
        interval: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`history` has the first snapshot, or more; `clock` is monotonic."""
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-normal"), (_WIDE, "-wide")]
        self.picture = ""
        self._client, self._history, self._clock = client, history, clock
        self._target, self._interval = target, interval
        self._unpaused, self._wake = asyncio.Event(), asyncio.Event()
        self._unpaused.set()
        self._asking = self._setting = False
        self._next = history.latest.at + interval
        self._why, self._failures = "", 0
        self._notice, self._notice_until = "", 0.0

    def compose(self) -> ComposeResult:
        yield Static(id="small")
        yield Static(id="header")
        with VerticalScroll(id="body"):
            with Horizontal(id="curves"):
                yield Curve(id="throughput", classes="panel")
                yield Curve(id="acceptance", classes="panel")
            with Horizontal(id="panels"):
                with Vertical(id="left"):
                    yield Static(id="speculation", classes="panel")
                    yield Static(id="beside", classes="panel transitions")
                with Vertical(id="right"):
                    yield Static(id="serving", classes="panel")
                    yield Static(id="machine", classes="panel")
            yield Static(id="below", classes="panel transitions")
        yield Static(id="footer")

    def on_mount(self) -> None:
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):  # the terminal is to be left as it was
                asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)
        for panel in ("speculation", "serving", "machine"):
            self.query_one(f"#{panel}").border_title = panel
        self.query_one("#acceptance").border_title = "acceptance, of 100%"
        for widget in self.query(".transitions"):
            widget.border_title = "transitions"
        self.set_interval(_DRAW_SECONDS, self.draw)
        if self._client is not None:
            self.run_worker(self._follow(self._client))

    def on_unmount(self) -> None:
        if self._client is not None:
            self._client.close()

    def on_resize(self, event: Resize) -> None:
        small = event.size.width < LEAST[0] or event.size.height < LEAST[1]
        self.screen.set_class(small, "-small")
        told = "this terminal has {} × {} characters;\ndraftd top needs {} × {}".format(*event.size, *LEAST)
        self.query_one("#small", Static).update(Text(told, justify="center"))
        self.call_after_refresh(self.draw)  # when the panels have their new sizes

    async def _follow(self, client: DraftdClient) -> None:
        """Asks again and again, ever more seldom while the daemon does not answer."""
        while True:
            await self._unpaused.wait()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, self._next - self._clock()))
            if self._unpaused.is_set():
                await self._ask(client)

    async def _ask(self, client: DraftdClient) -> None:
        began = self._clock()
        self._next, self._asking = max(self._next + self._interval, began), True
        try:
            status = await asyncio.to_thread(client.status, timeout=_STATUS_SECONDS)
        except Exception as error:
            self._why, self._failures = _message(error), self._failures + 1
            self._history.gap()
            self._next = self._clock() + pause(self._failures, self._interval)
        else:
            if self._failures:
                self._say("it answers again")
            self._failures = 0
            self._history.add(Snapshot((began + self._clock()) / 2, status))
        self._asking = False
        self.draw()

    def action_pause(self) -> None:
        if self._unpaused.is_set():
            self._unpaused.clear()
        else:
            self._next = min(self._next, self._clock())
            self._unpaused.set()
        self._wake.set()
        self.draw()

    def action_flag(self) -> None:
        now = self.view().status.flag_variant
        variant = {"on": "off", "off": "on"}.get(now)
        if variant is None:
            self._say(f"the flag is neither on nor off, but {now or 'unknown'}")
        elif self._client is not None and not self._setting:
            self._say(f"turning the flag {variant} …")
            self._setting = True
            self.run_worker(self._set_flag(self._client, variant))
        self.draw()

    async def _set_flag(self, client: DraftdClient, variant: str) -> None:
        try:
            reply = await asyncio.to_thread(client.set_flag, variant)
        except Exception as error:
            self._say(f"the flag stays as it is: {_message(error)}")
        else:
            now, before = reply.flag.default_variant, reply.previous_variant
            self._say(f"flag {now} (was {before})" if now != before else f"flag {now} already")
        self._setting, self._next = False, self._clock()
        self._wake.set()
        self.draw()

    async def action_quit(self) -> None:
        self.picture = self.export_screenshot(title=self.TITLE)
        self.exit()

    def _say(self, notice: str) -> None:
        self._notice, self._notice_until = notice, self._clock() + _NOTICE_SECONDS

    def view(self) -> View:
        return self._history.view(self._target)

    def draw(self) -> None:
        if not self.is_running or self.screen.has_class("-small"):
            return
        view, now = self.view(), datetime.now().astimezone()
        self.screen.set_class(bool(self._failures), "-lost")
        self._fill("header", _cut(self._lost() if self._failures else rows.state(view)))
        self._fill("footer", self._footer(view.status.flag_variant))
        self._draw_curves(view)
        self._fill("speculation", _speculation(view))
        self._fill("serving", _grid(rows.serving(view, now)))
        self._fill("machine", _grid(rows.machine(view)))
        for name, short in (("beside", True), ("below", False)):
            made = rows.transitions(view, now, short=short)
            self._fill(name, _grid(made) if made else Text("none yet", DIM))

    def _lost(self) -> Text:
        now = self._clock()
        return rows.lost(self._why, now - self._history.latest.at, None if self._asking else self._next - now)

    def _footer(self, variant: str) -> Text:
        turn = {"on": "turn the flag off", "off": "turn the flag on"}.get(variant, "flag")
        paused = not self._unpaused.is_set()
        notice = self._notice if self._clock() < self._notice_until else ""
        return _cut(
            Text.assemble(
                (" f ", "reverse"), f" {turn}  ", (" p ", "reverse"), f" {'continue' if paused else 'pause'}  ",
                (" q ", "reverse"), " quit  ", ("paused  " if paused else "", "yellow"), (notice, "bold"),
            )
        )  # fmt: skip

    def _draw_curves(self, view: View) -> None:
        seen = (view.now, view.minute, *view.past)
        speeds = [None if one is None else one.tokens_per_second for one in seen]
        shares = [None if one is None else one.drafting.acceptance for one in seen]
        for name, what, shown, (now, lately, *past), top in (
            ("throughput", "tokens/s", figures.rate, speeds, None),
            ("acceptance", "accepted", figures.percent, shares, 1.0),
        ):
            over = Text(f"{shown(lately)} over {rows.period(view)}", DIM)
            curve = self.query_one(f"#{name}", Curve)
            peak = curve.show(past, (Text.assemble((shown(now), "bold"), f" {what}"), over), self._interval, top)
            if top is None:
                curve.border_title = f"{name}, {shown(peak) if peak else NOTHING} at most"

    def _fill(self, name: str, content: RenderableType) -> None:
        self.query_one(f"#{name}", Static).update(content)


def _message(error: Exception) -> str:
    failure = explain(error)
    return failure.message if failure is not None else repr(error)


def _cut(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _grid(made: Sequence[Row]) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, style=DIM, min_width=max(len(row.name) for row in made))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in made:
        grid.add_row(row.name, row.value)
    return grid


def _speculation(view: View) -> Table:
    places = rows.positions(view)
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style=DIM)
    grid.add_row("", Text(rows.period(view).removeprefix("a "), DIM), "in all")
    for row in rows.speculation(view):
        grid.add_row(row.name, Text(row.minute, row.style), row.whole)
    for place in places:
        drawn = NOTHING if place.share is None else Bar(1.0, 0.0, place.share, color=_ACCENT)
        beside = Table.grid(padding=(0, 1), expand=True)
        beside.add_column(justify="right", width=2)
        beside.add_column(ratio=1)
        beside.add_row(place.name, drawn)
        grid.add_row(beside, place.minute, place.whole)
    outer = Table.grid(expand=True)
    outer.add_row(grid)
    if reason := rows.unavailable(view):
        outer.add_row(reason)
    elif not places:
        outer.add_row(Text("nothing drafted yet", DIM))
    return outer


def spark(values: Sequence[float | None], height: int, top: float) -> list[str]:
    """`height` lines, the upper one first; `top` fills them. A zero shows as the thinnest line, None as nothing."""
    eighths = [0 if value is None else max(1, round(value / top * height * 8)) if top else 1 for value in values]
    return ["".join(_UP[min(max(one - row * 8, 0), 8)] for one in eighths) for row in reversed(range(height))]
