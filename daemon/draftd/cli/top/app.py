"""The live screen of `draftd top`: a Textual app that polls the daemon, draws its status, and handles keys."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
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
from draftd.cli.output import DIM, Row
from draftd.cli.top import rows
from draftd.cli.top.rates import StatusHistory, StatusSnapshot
from draftd.client.client import DraftdClient

LEAST = (60, 20)  # columns and lines
_BESIDE = 80  # columns from which panels are side by side
_WHOLE = {False: 42, True: 24}  # lines that the whole screen takes, by whether panels are side by side
_SIDE = 18  # columns for the figures beside a curve
_STATUS_SECONDS = 5.0  # a daemon that takes longer does not answer
_LONGEST_PAUSE = 10.0
_NOTICE_SECONDS = 8.0
_DRAW_SECONDS = 1.0  # between two drawings of the time since the last answer
_ACCENT = "cyan"
_UP = " ▁▂▃▄▅▆▇█"
_EFFECT = {"on": "may be decoded with drafts", "off": "is decoded without drafts"}
_LOOSE = re.compile(r"(\s+([−\d.,]+|[·+→])|,)+$")  # at the end of a cut text: a figure without its unit, a lone sign


def pause(failures: int, interval: float) -> float:
    """Returns the seconds until the next try, after so many failures in a row."""
    return min(interval * 2.0 ** min(failures - 1, 16), max(_LONGEST_PAUSE, interval))


class Curve(Static):
    """Throughput as a curve that fills its panel, with figures beside it. Each column shows the rate between two
    successive snapshots. `resized` is called when the panel's size has changed."""

    def __init__(self, resized: Callable[[], None]) -> None:
        super().__init__(id="curve", classes="panel")
        self.resized = resized

    def on_resize(self) -> None:
        """Runs also when the scrollbar comes or goes."""
        self.call_after_refresh(self.resized)

    def show(self, seen: StatusHistory, interval: float) -> None:
        """Draws the latest; the highest seen fills the height."""
        rates = (seen.now, seen.minute, *seen.past)
        now, lately, *past = (None if one is None else one.tokens_per_second for one in rates)
        beside = [
            Text.assemble((figures.rate(now), "bold"), " tokens/s"),
            Text(f"{figures.rate(lately)} over {rows.period(seen)}", DIM),
        ]
        columns = max(self.content_size.width - _SIDE, 10)
        drawn = [*([None] * columns), *past][-columns:]
        most = max((value for value in drawn if value is not None), default=0.0)
        grid = Table.grid()
        grid.add_column(width=_SIDE, no_wrap=True)
        grid.add_column(no_wrap=True)
        for number, line in enumerate(spark(drawn, max(self.content_size.height, 1), most)):
            grid.add_row(beside[number] if number < len(beside) else "", Text(line, _ACCENT))
        self.update(grid)
        self.border_title = f"throughput, {figures.rate(most) if most else NOTHING} at most"
        self.border_subtitle = f"last {figures.span(round(columns * interval))}"


class ClippedLine:
    """Text that is cut between words if it is longer than a line. A number is never cut, nor left without its unit."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, text = max(options.max_width, 2), self.text
        if len(text.wrap(console, width)) > 1:
            whole = text.wrap(console, width - 1)[0].plain.rstrip()
            text = text[: len(_LOOSE.sub("", whole))].append("…")
        yield text


class TopApp(App[None]):
    """The app. `picture`: the screen as SVG when it was quit. Without a client the history is drawn as it is.

    Calls to the daemon block on threads of their own. At its end the app closes the client, which ends running calls.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "draftd top"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("f", "flag", "flag"),
        ("y", "answer(True)", "yes"),
        ("n,escape", "answer(False)", "no"),
        ("p", "pause", "pause"),
        ("q", "quit", "quit"),
        ("ctrl+c", "quit", "quit"),
    ]
    CSS_PATH = "app.tcss"

    def __init__(self, client: DraftdClient | None, seen: StatusHistory, interval: float) -> None:
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_BESIDE, "-normal")]
        self.picture = ""
        self._client, self._seen, self._interval = client, seen, interval
        self._wake = asyncio.Event()
        self._paused = self._asking = self._setting = False
        self._next = seen.at + interval
        self._why, self._failures = "", 0
        self._notice, self._notice_until = "", 0.0
        self._question = ""  # the variant to set the flag to, if that is confirmed

    def compose(self) -> ComposeResult:
        yield Static(id="small")
        yield Static(id="header")
        with VerticalScroll(id="body"):
            yield Curve(self.draw)
            yield Static(id="essential", classes="panel")
            with Horizontal(id="panels"):
                with Vertical(id="left"):
                    yield Static(id="speculation", classes="panel")
                    yield Static(id="transitions", classes="panel")
                with Vertical(id="right"):
                    yield Static(id="serving", classes="panel")
                    yield Static(id="ranks", classes="panel")
                    yield Static(id="remote", classes="panel")
                    yield Static(id="machine", classes="panel")
        yield Static(id="footer")
        yield Static(id="told")

    def on_mount(self) -> None:
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):  # exits in order, to restore the terminal
                asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)
        for panel in ("speculation", "transitions", "serving", "ranks", "remote", "machine"):
            self.query_one(f"#{panel}").border_title = panel
        self.query_one("#essential").border_title = "at a glance"
        self.query_one("#transitions").border_title = f"transitions, {datetime.now().astimezone():%Z}"
        self.set_interval(_DRAW_SECONDS, self.draw)
        if self._client is not None:
            self.run_worker(self._follow(self._client))

    def on_unmount(self) -> None:
        if self._client is not None:
            self._client.close()

    def on_resize(self, event: Resize) -> None:
        width, height = event.size
        small = width < LEAST[0] or height < LEAST[1]
        if small:
            self._question = ""  # the question can no longer be seen
        self.screen.set_class(small, "-small")
        self.screen.set_class(height < _WHOLE[width >= _BESIDE], "-compact")
        text = f"this terminal is {width} × {height}; draftd top needs {LEAST[0]} × {LEAST[1]}"
        self.query_one("#small", Static).update(Text(text, justify="center"))
        self.call_after_refresh(self.draw)  # when the panels have their new sizes

    async def _follow(self, client: DraftdClient) -> None:
        """Polls the daemon, ever more seldom while it does not answer."""
        while True:
            left = None if self._paused else max(0.0, self._next - time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left)
            self._wake.clear()
            if not self._paused:
                await self._ask(client)

    async def _ask(self, client: DraftdClient) -> None:
        began = time.monotonic()
        self._next, self._asking = max(self._next + self._interval, began), True
        try:
            status = await asyncio.to_thread(client.status, timeout=_STATUS_SECONDS)
        except Exception as error:
            self._why, self._failures = _message(error), self._failures + 1
            self._seen.gap()
            self._next = time.monotonic() + pause(self._failures, self._interval)
        else:
            if self._failures:
                self._say("it answers again")
            self._failures = 0
            self._seen.add(StatusSnapshot((began + time.monotonic()) / 2, status))
        self._asking = False
        self.draw()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._wake.set()
        self.draw()

    def action_flag(self) -> None:
        """Asks for confirmation first: the flag changes how a running daemon decodes."""
        now = self._seen.status.flag_variant
        if self._client is None or self._setting or self.screen.has_class("-small"):
            return
        if self._failures:
            self._say("the flag cannot be changed while the daemon does not answer")
        elif now not in _EFFECT:
            self._say(f"the flag is neither on nor off, but {now or 'unknown'}")
        else:
            self._question = "off" if now == "on" else "on"
        self.draw()

    def action_answer(self, yes: bool) -> None:
        variant, self._question = self._question, ""
        if not variant or self._client is None:
            return
        if yes:
            self._say(f"turning the flag {variant} …")
            self._setting = True
            self.run_worker(self._set_flag(self._client, variant))
        else:
            self._say("the flag was left as it is")
        self.draw()

    async def _set_flag(self, client: DraftdClient, variant: str) -> None:
        try:
            reply = await asyncio.to_thread(client.set_flag, variant)
        except Exception as error:
            self._say(f"the flag could not be turned {variant}: {_message(error)}")
        else:
            now, before = reply.flag.default_variant, reply.previous_variant
            if now == before:
                self._say(f"flag {now} already")
            else:
                self._say(f"flag {now} (was {before}), from the next request on")
        self._setting, self._next = False, time.monotonic()
        self._wake.set()
        self.draw()

    async def action_quit(self) -> None:
        self.picture = self.export_screenshot(title=self.TITLE)
        self.exit()

    def _say(self, notice: str) -> None:
        self._notice, self._notice_until = notice, time.monotonic() + _NOTICE_SECONDS

    def draw(self) -> None:
        if not self.is_running or self.screen.has_class("-small"):
            return
        seen, now = self._seen, datetime.now().astimezone()
        self.screen.set_class(bool(self._failures), "-lost")
        silent, left = time.monotonic() - seen.at, None if self._asking else self._next - time.monotonic()
        self._fill("header", ClippedLine(rows.lost(self._why, silent, left) if self._failures else rows.state(seen)))
        self._fill("footer", self._footer(seen.status.flag_variant))
        self._draw_told()
        self.query_one(Curve).show(seen, self._interval)
        self._fill("essential", _grid(rows.essential(seen, now)))
        self._fill("speculation", _speculation(seen))
        self._fill("serving", _grid(rows.serving(seen, now)))
        for name, others in (("ranks", rows.ranks(seen)), ("remote", rows.remote(seen))):
            self.screen.set_class(not others, f"-no-{name}")
            self._fill(name, _grid(others) if others else Text())
        self._fill("machine", _grid(rows.machine(seen)))
        lines = rows.transitions(seen, now, short=True)
        self._fill("transitions", _grid(lines) if lines else Text("none yet", DIM))

    def _footer(self, variant: str) -> Text:
        if self._question:
            keys = [("y", f"yes, turn it {self._question}"), ("n", "no")]
        else:
            turn = {"on": "turn the flag off", "off": "turn the flag on"}.get(variant, "flag")
            keys = [("f", turn), ("p", "continue" if self._paused else "pause"), ("q", "quit")]
        parts = [part for key, what in keys for part in ((f" {key} ", "reverse"), (f" {what}  ", ""))]
        return Text.assemble(*parts, ("paused" if self._paused else "", "yellow"), no_wrap=True, overflow="ellipsis")

    def _draw_told(self) -> None:
        """Draws the question, or the result of the last one, over the panels without moving them."""
        text = self._notice if time.monotonic() < self._notice_until else ""
        if self._question:
            text = (
                f"Turn the flag {self._question} at {self._seen.target}? "
                f"Unless a targeting rule says otherwise, the next request {_EFFECT[self._question]}."
            )
            if (flag := self._seen.status.flag).shared:
                text += f" Every daemon whose flag.file is {flag.source} follows."
        self.screen.set_class(bool(text), "-told")
        self.screen.set_class(bool(self._question), "-asked")
        self._fill("told", Text(text))

    def _fill(self, name: str, content: RenderableType) -> None:
        self.query_one(f"#{name}", Static).update(content)


def _message(error: Exception) -> str:
    failure = explain(error)
    return failure.message if failure is not None else repr(error)


def _grid(lines: Sequence[Row]) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, style=DIM, min_width=max(len(name) for name, _ in lines))
    grid.add_column(ratio=1)
    for name, value in lines:
        grid.add_row(name, ClippedLine(value))
    return grid


def _speculation(seen: StatusHistory) -> Table:
    places = rows.positions(seen)
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style=DIM)
    grid.add_row("", Text(rows.period(seen).removeprefix("a "), DIM), "in all")
    for row in rows.speculation(seen):
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
    if reason := rows.unavailable(seen):
        outer.add_row(reason)
    elif not places:
        outer.add_row(Text("nothing drafted yet", DIM))
    return outer


def spark(values: Sequence[float | None], height: int, top: float) -> list[str]:
    """Draws values as `height` lines of text, the upper one first; the value `top` fills the height. Zero shows as the
    thinnest line, None as nothing."""
    eighths = [0 if value is None else max(1, round(value / top * height * 8)) if top else 1 for value in values]
    return ["".join(_UP[min(max(one - row * 8, 0), 8)] for one in eighths) for row in reversed(range(height))]
