"""Signal handlers that are set while a block runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Sets these signal handlers while the block runs, then restores the earlier ones. Does nothing outside the main
    thread, where Python cannot set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    try:
        for number, handler in handlers.items():
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Delays SIGINT and SIGTERM until the block has ended, if they have handlers in Python. Use it for short blocks
    only."""
    came: list[int] = []
    handled = [one for one in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(one))]
    try:
        with handle_signals(dict.fromkeys(handled, lambda one, _: came.append(one))):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


def hangup_reloads() -> bool:
    """Whether SIGHUP asks for a reload: this process has no terminal, or it ignores SIGHUP (`nohup`)."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return True
    return False
