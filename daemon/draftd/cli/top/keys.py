"""Single keys from a terminal, and the terminal as it was before, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType

from draftd.client.interrupts import answered

_VDISABLE = b"\0"  # _POSIX_VDISABLE on Linux and macOS alike is what no key sends
_READ_BYTES = 64


class Keys:
    """`wait` returns what was typed. Any thread, and any signal that is handled, can end a wait early."""

    def __init__(self, terminal: int | None, wake_read: int, wake_write: int) -> None:
        self._terminal, self._wake_read, self._wake_write = terminal, wake_read, wake_write

    def wake(self) -> None:
        """Ends the wait under way, or else the next one."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake
            os.write(self._wake_write, b"\0")

    def wait(self, seconds: float) -> str:
        """What was typed within `seconds`; empty where nothing was. Raises EOFError when the terminal is gone."""
        sources = [self._wake_read] if self._terminal is None else [self._wake_read, self._terminal]
        ready, _, _ = select.select(sources, [], [], max(seconds, 0.0))
        if self._wake_read in ready:
            os.read(self._wake_read, _READ_BYTES)
        if self._terminal is None or self._terminal not in ready:
            return ""
        try:
            typed = os.read(self._terminal, _READ_BYTES)
        except OSError:
            typed = b""
        if not typed:
            raise EOFError
        return typed.decode(errors="replace")


@contextlib.contextmanager
def opened() -> Iterator[Keys]:
    """Keys come singly and unseen while the block runs; SIGTERM and SIGHUP end it as SystemExit does.

    Where stdin is no terminal there are no keys. For the main thread only, which is where signals go.
    """
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    try:
        with _signals(write), _single_keys() as terminal:
            yield Keys(terminal, read, write)
    finally:
        os.close(read)
        os.close(write)


@contextlib.contextmanager
def _signals(wake: int) -> Iterator[None]:
    ending = (signal.SIGTERM, signal.SIGHUP)

    def end(number: int, frame: FrameType | None) -> None:
        for other in ending:  # a second one must not cut the clearing up short
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    # That of a new size does nothing: that there is one ends the wait, and the screen is drawn anew.
    with answered({**dict.fromkeys(ending, end), signal.SIGWINCH: lambda number, frame: None}):
        woken_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken_before)


@contextlib.contextmanager
def _single_keys() -> Iterator[int | None]:
    if not sys.stdin.isatty():
        yield None
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        modes = termios.tcgetattr(terminal)
        modes[6][termios.VSUSP] = _VDISABLE  # stopped by a key, it would leave its screen behind
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        yield terminal
    finally:
        # What was typed ahead is dropped: it was meant for this screen.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
