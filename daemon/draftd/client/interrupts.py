"""Signals: who answers them for a while, and what must not be left half done when one comes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def answered(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """These answer signals for as long as the block runs, and then who did before. Signals are answered on the main
    thread; on another this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    try:
        for number, handler in handlers.items():
            before[number] = signal.getsignal(number)
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """What the block does is done whole: a signal that a handler in Python answers comes when the block has ended.

    For what takes no time.
    """
    came: list[int] = []
    handlers = {one: lambda number, _: came.append(number) for one in _SIGNALS if callable(signal.getsignal(one))}
    try:
        with answered(handlers):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])
