"""What the webhook and the poller share: an event loop on a thread of its own, and a log that cannot be flooded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class LoopThread:
    """Runs `main` until it ends or is told to: it is cancelled, and cleans up in its `finally`."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._begun.wait()

    def close(self, seconds: float) -> bool:
        """True when the thread has ended within `seconds`. Harmless again, and before `start`."""
        if not self._begun.is_set():
            return True
        deadline = time.monotonic() + seconds
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                asyncio.run(self._hold())
            except Exception:
                log.exception("%s ended by itself", self._thread.name)
            finally:
                self._begun.set()

    async def _hold(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        await self._main()


class RateLimitedLog:
    """Writes one line per reason and interval. Any thread. `reason` is one of a few: each is remembered for good."""

    def __init__(self, log: logging.Logger, seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._written: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def write(self, level: int, reason: str, text: str, *, error: BaseException | None = None) -> None:
        """Logs it, with how many of its kind were left out before; or leaves it out itself."""
        now = self._clock()
        with self._lock:
            if reason in self._written and now - self._written[reason] < self._seconds:
                self._left_out[reason] = self._left_out.get(reason, 0) + 1
                return
            self._written[reason] = now
            left_out = self._left_out.pop(reason, 0)
        more = f" ({left_out} more of {reason} since the last one)" if left_out else ""
        self._log.log(level, "%s%s", text, more, exc_info=error)
