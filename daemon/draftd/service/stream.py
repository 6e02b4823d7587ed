"""Carries the engine's output to clients: one wake-up of the event loop per step for all sequences, one stream for each
request, and a guard against clients that do not read.

The engine never waits for a client. Output that a slow client has not taken is merged into one message. Its size is
bounded by the answer: a request may emit only so many tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from draftd.errors import ClientStalled
from draftd.outcome import Emission, Outcome

log = logging.getLogger(__name__)

_MERGE_TOKENS = 4096  # most tokens in one message: far below what clients take


class Receiver(Protocol):
    def receive(self, item: Any, /) -> None: ...


class Mailbox:
    """Carries the engine's messages to one event loop. All messages posted before the loop runs share one wake-up.

    The wake-up keeps the interpreter lock. `call_soon_threadsafe` would release it during its system call: the loop
    would take the lock, and the engine would wait while the loop writes to clients. With the lock kept, the loop runs a
    moment later, when the engine releases the lock to wait for MLX."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[Receiver, Any]] = deque()
        self._awake = False
        self._write = ctypes.PyDLL(None).write  # libc's write(2), called so that it keeps the interpreter lock
        self._write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        self._write.restype = ctypes.c_ssize_t
        self._closed = False
        self._lock = threading.Lock()  # the number of a closed descriptor may be reused at once
        self._out, self._in = os.pipe()
        for end in (self._out, self._in):
            os.set_blocking(end, False)
        loop.add_reader(self._out, self._deliver)

    def post(self, to: Receiver, item: Any) -> None:
        """Posts `item`, on the engine thread. Drops it after `close`."""
        with self._lock:
            if self._closed:
                return
            self._queue.append((to, item))
            if not self._awake:
                self._awake = True
                if self._write(self._in, b"\0", 1) != 1:  # slower, but cannot fail
                    self._loop.call_soon_threadsafe(self._deliver)

    def close(self) -> None:
        """Closes the mailbox, on the event loop. Undelivered items are dropped."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.remove_reader(self._out)
                os.close(self._out)
                os.close(self._in)
                self._queue.clear()

    def _deliver(self) -> None:
        if not self._closed:
            with contextlib.suppress(BlockingIOError):  # woken by `call_soon_threadsafe`
                os.read(self._out, 1)
        self._awake = False  # before the deliveries: an item posted from now on wakes the loop again
        while self._queue:
            to, item = self._queue.popleft()
            try:
                to.receive(item)
            except Exception:  # other streams go on
                log.exception("a message of the engine could not be delivered to its stream")


class TokenStream:
    """The `outcome.TokenSink` of one request. The request's handler takes from the stream.

    `on_late` gets the outcome if it comes after the handler has gone. `arrived` is shared by the streams of one
    request, so that their handler can wait for all of them."""

    def __init__(
        self, mailbox: Mailbox, on_late: Callable[[Outcome], None], arrived: asyncio.Event | None = None
    ) -> None:
        self._mailbox = mailbox
        self._on_late = on_late
        self._pending: deque[Emission] = deque()
        self._arrived = arrived or asyncio.Event()
        self._abandoned = False
        self.outcome: Outcome | None = None

    # engine thread

    def on_tokens(self, emission: Emission) -> None:
        self._mailbox.post(self, emission)

    def on_finish(self, outcome: Outcome) -> None:
        self._mailbox.post(self, outcome)

    # event loop

    def receive(self, item: Emission | Outcome) -> None:
        if isinstance(item, Outcome):
            self.outcome = item
            if self._abandoned:
                self._on_late(item)
        elif not self._abandoned:
            self._pending.append(item)
        self._arrived.set()

    async def take(self) -> Emission | None:
        """Merges pending emissions from the same verifier; one with log-probabilities of the prompt stays alone.
        Returns None when the request has ended and everything was taken."""
        while not self._pending:
            if self.outcome is not None:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        first = self._pending.popleft()
        if first.prompt is not None or not self._pending:
            return first
        tokens, from_draft, logprobs = list(first.tokens), list(first.from_draft), list(first.logprobs)
        while (
            self._pending
            and len(tokens) + len(self._pending[0].tokens) <= _MERGE_TOKENS
            and self._pending[0].verifier is first.verifier
        ):
            emission = self._pending.popleft()
            tokens += emission.tokens
            from_draft += emission.from_draft
            logprobs += emission.logprobs
        return Emission(tuple(tokens), tuple(from_draft), tuple(logprobs), first.verifier)

    @property
    def ready(self) -> bool:
        """Whether `take` would return at once."""
        return bool(self._pending) or self.outcome is not None

    @property
    def exhausted(self) -> bool:
        """Whether everything was taken and no more will come."""
        return self.outcome is not None and not self._pending

    def abandon(self) -> None:
        """Drops what was not taken: the handler goes away."""
        self._abandoned = True
        self._pending.clear()


Write = Callable[[Awaitable[None]], Awaitable[None]]


@contextlib.asynccontextmanager
async def stall_guard(seconds: float | None) -> AsyncIterator[Write]:
    """Yields the function with which the stream's task writes. A write that takes longer than `seconds` (noticed within
    twice that) ends the block with ClientStalled. None: no limit. One timer serves the whole stream: a timer for each
    write would take half as long as the write itself."""
    loop = asyncio.get_running_loop()
    since: float | None = None
    timer: asyncio.TimerHandle | None = None

    async def write(sent: Awaitable[None]) -> None:
        nonlocal since
        since = loop.time()
        await sent
        since = None

    def check(seconds: float) -> None:
        nonlocal timer
        now = loop.time()
        if since is not None and now >= since + seconds:
            timeout.reschedule(now)
        else:
            # The earliest time at which this write, or the next one, can be late.
            timer = loop.call_at((now if since is None else since) + seconds, check, seconds)

    timeout = asyncio.timeout(None)
    try:
        async with timeout:
            if seconds is not None:
                check(seconds)
            yield write
    except TimeoutError:
        if timeout.expired():
            raise ClientStalled(f"the client read nothing for {seconds:g} s: the request was cancelled") from None
        raise
    finally:
        if timer is not None:
            timer.cancel()
