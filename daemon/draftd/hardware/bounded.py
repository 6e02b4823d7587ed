"""Calls that may never return, made on a thread that can be left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class Hung(Exception):
    """A call did not return in time, or one that did not before has still not returned."""


class BoundedCalls(Generic[T]):
    """Makes calls one after another, each within `seconds`. Used from one thread.

    All are made on one thread. A call that hangs keeps it; the next gets another, and the name of the one that hangs
    is refused until it has returned, so that no more threads are left behind than there are names.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._worker: _Worker[T] | None = None
        self._hung: dict[str, _Worker[T]] = {}

    def call(self, name: str, function: Callable[[], T]) -> T:
        """What `function` returns or raises. Raises Hung where it takes too long."""
        stuck = self._hung.get(name)
        if stuck is not None:
            if not stuck.free():
                raise Hung("an earlier reading has still not returned")
            del self._hung[name]
        worker = self._worker or _Worker[T]()
        self._worker = worker
        answer = worker.ask(function)
        wait([answer], self._seconds)
        if not answer.done():
            worker.leave()
            self._worker, self._hung[name] = None, worker
            raise Hung(f"no answer within {self._seconds:g} s")
        return answer.result()

    def close(self, seconds: float) -> None:
        """Ends the thread; not those that hang, which nothing can end."""
        if self._worker is not None:
            self._worker.leave()
            self._worker.join(seconds)
            self._worker = None


class _Worker(Generic[T]):
    """One thread, daemonic: a call that never returns must not keep the process from ending."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[T], Callable[[], T]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="draftd-reading", daemon=True)
        self._thread.start()

    def ask(self, function: Callable[[], T]) -> Future[T]:
        answer: Future[T] = Future()
        self._asked.put((answer, function))
        return answer

    def leave(self) -> None:
        """Ends it after the call that it is in."""
        self._asked.put(None)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def free(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            answer, function = asked
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)
