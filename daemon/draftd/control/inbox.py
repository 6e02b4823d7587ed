"""What others ask the controller's thread to do: bounded, answered once what follows from it is done too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from draftd.errors import NotServing, QueueFull

T = TypeVar("T")

_ANSWER_SECONDS = 5.0  # whoever asks waits so long at most: a look takes milliseconds, and saving may take a second
_RETRY_SECONDS = 1.0


class Asked:
    """One thing to do at a time that it is given. `run` does it, `finish` tells who asked."""

    def __init__(self, what: Callable[[float], Any], future: Future[Any]) -> None:
        self._what, self._future = what, future
        self._found: Any = None
        self._error: Exception | None = None

    def run(self, now: float) -> None:
        try:
            self._found = self._what(now)
        except Exception as error:
            self._error = error

    def finish(self) -> None:
        if self._error is not None:
            fail(self._future, self._error)
        else:
            settle(self._future, self._found)


class Inbox:
    """Any thread asks, one takes. `wake` is called when there is something to take."""

    def __init__(self, capacity: int, wake: Callable[[], None]) -> None:
        self._capacity, self._wake = capacity, wake
        self._lock = threading.Lock()
        self._waiting: list[Asked] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, what: Callable[[float], T]) -> Future[T]:
        """Ends with what `what` returns or raises. Raises NotServing once it is closed, QueueFull when it is full."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise NotServing("the daemon is stopping")
            if len(self._waiting) >= self._capacity:
                raise QueueFull(f"{self._capacity} wait for the fallback already", retry_after=_RETRY_SECONDS)
            self._waiting.append(Asked(what, future))
        self._wake()
        return future

    def answer(self, what: Callable[[float], T]) -> T:
        """`ask`, and waits for it. Raises QueueFull too where that takes too long; it is done all the same then."""
        try:
            return self.ask(what).result(_ANSWER_SECONDS)
        except TimeoutError:
            raise QueueFull("the fallback is busy", retry_after=_RETRY_SECONDS) from None

    def take(self) -> list[Asked]:
        """All that waits."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken

    def close(self) -> None:
        """Takes no more; what waits is to be taken still."""
        with self._lock:
            self._closed = True
        self._wake()


def settle(future: Future[T], found: T) -> None:
    """Ends it, unless whoever asked has given up."""
    try:
        future.set_result(found)
    except InvalidStateError:
        return


def fail(future: Future[Any], error: BaseException) -> None:
    """Ends it with an error, unless whoever asked has given up."""
    try:
        future.set_exception(error)
    except InvalidStateError:
        return
