"""The live screen: asks, draws, and obeys keys until it is told to quit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import datetime

from rich.console import Console
from rich.control import Control
from rich.live import Live

from draftd.cli.failures import explain
from draftd.cli.top import keys
from draftd.cli.top.history import CURVE_SECONDS, History
from draftd.cli.top.link import Link, pause
from draftd.cli.top.rates import Snapshot
from draftd.cli.top.screen import screen
from draftd.cli.top.view import Lost, View
from draftd.client.client import DraftdClient

_DRAW_SECONDS = 1.0  # while the daemon is away, how often the time it has been so is drawn anew
_NOTICE_SECONDS = 8.0
_CURVE_LOOKS = 300  # as many as the widest terminal has columns for


class Session:
    """What `draftd top` knows, and what is under way. Used from one thread; `clock` is monotonic."""

    def __init__(
        self, link: Link, first: Snapshot, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._link, self._interval, self._clock = link, interval, clock
        self._history = History(curve=max(CURVE_SECONDS, interval * _CURVE_LOOKS))
        self._history.add(first)
        self._latest = first
        self._asked: Future[Snapshot] | None = None
        self._next = first.at + interval
        self._setting: Future[str] | None = None
        self._why, self._failures = "", 0
        self._paused = False
        self._notice, self._notice_until = "", 0.0

    def step(self) -> float:
        """Takes up the answers that are there, asks again where it is time, and says how long nothing need be done."""
        now = self._clock()
        if self._asked is not None and self._asked.done():
            answer, self._asked = self._asked, None
            self._answered(answer, now)
        if self._setting is not None and self._setting.done():
            answer_set, self._setting = self._setting, None
            self._say(_outcome(answer_set))
            self._next = now
        if self._asked is None and not self._paused and now >= self._next:
            self._asked = self._link.ask()
            self._next = max(self._next + self._interval, now)
        waits = [_DRAW_SECONDS]
        if self._asked is None and not self._paused:
            waits.append(self._next - now)
        return max(0.0, min(waits))

    def press(self, key: str) -> bool:
        """Obeys one key. False where it is the one to quit."""
        if key in ("q", "Q"):
            return False
        if key in ("p", "P"):
            self._paused = not self._paused
            self._next = min(self._next, self._clock()) if not self._paused else self._next
        if key in ("f", "F") and self._setting is None:
            variant = {"on": "off", "off": "on"}.get(self._latest.status.flag_variant)
            if variant is None:
                self._say(f"the flag is neither on nor off, but {self._latest.status.flag_variant or 'unknown'}")
            else:
                self._say(f"turning the flag {variant} …")
                self._setting = self._link.set_flag(variant)
        return True

    def view(self, target: str) -> View:
        now = self._clock()
        lost = None
        if self._failures:
            retry = None if self._asked is not None else self._next - now
            lost = Lost(self._why, now - self._latest.at, retry)
        return View.of(
            self._history,
            self._latest,
            target,
            self._interval,
            at=now if not self._paused else self._latest.at,
            lost=lost,
            paused=self._paused,
            notice=self._notice if now < self._notice_until else "",
        )

    def _answered(self, answer: Future[Snapshot], now: float) -> None:
        try:
            snapshot = answer.result()
        except Exception as error:
            self._why, self._failures = _words(error), self._failures + 1
            self._history.gap()
            self._next = now + pause(self._failures, self._interval)
            return
        if self._failures:
            self._say("it answers again")
        self._failures = 0
        self._latest = snapshot
        self._history.add(snapshot)

    def _say(self, notice: str) -> None:
        self._notice, self._notice_until = notice, self._clock() + _NOTICE_SECONDS


def watch(connect: Callable[[], DraftdClient], target: str, interval: float, console: Console) -> View:
    """Returns what was shown last, when `q` or Ctrl-C was pressed. Raises what the first question to the daemon
    raised."""
    with contextlib.ExitStack() as stack:
        wakes: list[Callable[[], None]] = []
        link = Link(connect, lambda: wakes[0]() if wakes else None)
        stack.callback(link.close)
        session = Session(link, link.ask().result(), interval)
        with contextlib.suppress(KeyboardInterrupt, EOFError), keys.opened() as typed:
            stack.callback(wakes.clear)
            wakes.append(typed.wake)
            with Live(console=console, screen=True, auto_refresh=False) as live, _cleared(console):
                going = True
                while going:
                    seconds = session.step()
                    width, height = console.size
                    live.update(screen(session.view(target), width, height, datetime.now().astimezone()), refresh=True)
                    going = all(session.press(key) for key in typed.wait(seconds))
        return session.view(target)


@contextlib.contextmanager
def _cleared(console: Console) -> Iterator[None]:
    """A terminal whose size has changed may keep some of a screen that is left as it is: tmux does."""
    try:
        yield
    finally:
        console.control(Control.clear(), Control.home())


def _outcome(answer: Future[str]) -> str:
    try:
        return answer.result()
    except Exception as error:
        return f"the flag stays as it is: {_words(error)}"


def _words(error: Exception) -> str:
    failure = explain(error)
    return failure.message if failure is not None else repr(error)
