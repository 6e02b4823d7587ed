"""Lists transitions for clients, and sends new ones to watchers. A watcher that does not read delays nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

from draftd.errors import ClientStalled, InvalidRequest, NotServing, QueueFull
from draftd.journal import Journal, Transition
from draftd.service.stream import stall_guard

MOST_WATCHERS = 32
MOST_LISTED, LISTED = 1000, 100  # transitions in one answer: the maximum, and the default

T = TypeVar("T")


class Transitions:
    """The journal's transitions, for clients to list, or to watch until `stopping` is set. Event loop only."""

    def __init__(self, journal: Journal, stopping: asyncio.Event, write_stall_seconds: float | None = None) -> None:
        self._journal, self._stopping, self._stall = journal, stopping, write_stall_seconds
        self.watchers = 0

    def latest(self, limit: int, after: int) -> Sequence[Transition]:
        """Returns the latest `limit` transitions after number `after`; limit 0 means LISTED. Raises InvalidRequest."""
        if not 0 <= limit <= MOST_LISTED:
            raise InvalidRequest("limit", limit, f"1 to {MOST_LISTED}; 0 means {LISTED}")
        self._check(after)
        return self._newer(after)[-(limit or LISTED) :]

    async def watch(
        self, after: int | None, begun: Callable[[], Awaitable[None]], send: Callable[[Transition], Awaitable[None]]
    ) -> NoReturn:
        """Calls `begun` as soon as the watcher cannot miss a transition. Then sends the kept ones after number `after`
        (None: none of them), then each new one.

        Raises InvalidRequest; QueueFull if too many watch already; NotServing once the daemon is stopping;
        ClientStalled for a watcher that does not read, or that falls so far behind that the journal no longer has its
        next one."""
        if after is not None:
            self._check(after)
        if self.watchers >= MOST_WATCHERS:
            raise QueueFull(f"there are already {MOST_WATCHERS} watchers, which is the limit", retry_after=10.0)
        self.watchers += 1
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        last = self._last if after is None else after
        unread = self._newer(last)  # old ones may be dropped already, which is no gap

        def wake(transition: Transition) -> None:  # on any thread
            loop.call_soon_threadsafe(woken.set)

        end = self._journal.listen(wake)
        try:
            async with stall_guard(self._stall) as write:
                await write(begun())
                while True:
                    for transition in unread:
                        last = transition.number
                        await write(send(transition))
                    woken.clear()
                    unread = self._newer(last)
                    if not unread:
                        await unless_set(self._stopping, woken.wait())
                    elif unread[0].number > last + 1:
                        raise ClientStalled(
                            f"after_number: the watcher fell more than {MOST_LISTED} transitions behind; "
                            f"watch again with after_number {last}"
                        )
        finally:
            end()
            self.watchers -= 1

    def _newer(self, last: int) -> list[Transition]:
        return [one for one in self._journal.latest(MOST_LISTED) if one.number > last]

    def _check(self, after: int) -> None:
        """Raises InvalidRequest unless `after` is 0 or the number of a past transition. A higher number comes from
        another journal, and would make a watcher miss the next transitions."""
        if not 0 <= after <= self._last:
            raise InvalidRequest("after_number", after, f"0 to {self._last}, the latest transition's")

    @property
    def _last(self) -> int:
        """The latest transition's number; 0 before the first."""
        latest = self._journal.latest(1)
        return latest[-1].number if latest else 0


async def unless_set(stopping: asyncio.Event, awaitable: Awaitable[T]) -> T:
    """Returns the result of `awaitable`. If `stopping` is set first, cancels it and raises NotServing."""
    result, ending = asyncio.ensure_future(awaitable), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((result, ending), return_when=asyncio.FIRST_COMPLETED)
        if result.done() and not result.cancelled():
            return result.result()
        raise NotServing("the daemon is stopping", retry_after=1.0)
    finally:
        result.cancel()
        ending.cancel()
        await asyncio.gather(result, ending, return_exceptions=True)
