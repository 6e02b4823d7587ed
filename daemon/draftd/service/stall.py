"""Gives up on a client that takes nothing. One timer for a whole stream: one for each write would cost half a write."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from draftd.errors import ClientStalled


class StallGuard:
    """Around a stream, in its task: a `write` that lasts longer than `seconds` (within twice that) ends the block.

    Raises ClientStalled then. `seconds` None waits for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing_since: float | None = None
        self._cancelling = 0
        self._fired = False

    def writing(self) -> None:
        self._writing_since = self._loop.time()

    def written(self) -> None:
        self._writing_since = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        if self._seconds is not None:
            self._timer = self._loop.call_later(self._seconds, self._check)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        assert self._task is not None
        # As asyncio.timeout does it: a cancellation from elsewhere, the client's own, is never swallowed.
        if self._fired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientStalled(f"nothing was read for {self._seconds:g} s: the request was cancelled") from None

    def _check(self) -> None:
        assert self._task is not None
        assert self._seconds is not None
        now, since = self._loop.time(), self._writing_since
        if since is not None and now >= since + self._seconds:
            self._fired = True
            self._task.cancel()
        else:
            # No sooner than the write in hand could be late, or the next one.
            self._timer = self._loop.call_at((now if since is None else since) + self._seconds, self._check)
