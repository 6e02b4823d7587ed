"""Transitions for clients: those that are kept, and those that happen while a client watches. A watcher that does not
read delays nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

from draftd.errors import ClientStalled, InvalidRequest, NotServing, QueueFull
from draftd.journal import Journal, Transition
from draftd.service.stream import stall_guard

MOST_WATCHERS = 32
MOST_LISTED, LISTED = 1000, 100  # transitions in one answer: at most, and where no limit is given

T = TypeVar("T")


class Transitions:
    """What clients may read of the journal, and watch until `stopping` is set. Event loop only."""

    def __init__(self, journal: Journal, stopping: asyncio.Event, write_stall_seconds: float | None = None) -> None:
        self._journal, self._stopping, self._stall = journal, stopping, write_stall_seconds
        self.watchers = 0

    def latest(self, limit: int, after: int) -> Sequence[Transition]:
        """The latest `limit` of those after number `after`; limit 0 is the usual many. Raises InvalidRequest."""
        if not 0 <= limit <= MOST_LISTED:
            raise InvalidRequest("limit", limit, f"1 to {MOST_LISTED}; 0 is {LISTED}")
        self._check(after)
        return self._later(after)[-(limit or LISTED) :]

    async def watch(
        self, after: int | None, begun: Callable[[], Awaitable[None]], send: Callable[[Transition], Awaitable[None]]
    ) -> NoReturn:
        """Calls `begun` as soon as the watcher misses nothing any more, then sends those that are kept and later than
        `after` (None: none of them), then each as it happens.

        Raises InvalidRequest, QueueFull where too many watch already, NotServing once the daemon is stopping,
        ClientStalled for a watcher that does not read, and where the journal no longer keeps the next one."""
        if after is not None:
            self._check(after)
        if self.watchers >= MOST_WATCHERS:
            raise QueueFull(f"there are already {MOST_WATCHERS} watchers, which is the limit", retry_after=10.0)
        self.watchers += 1
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        last = self._last if after is None else after
        unread = self._later(last)  # some of those that are long past may be gone, which is no hole

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
                    unread = self._later(last)
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

    def _later(self, last: int) -> list[Transition]:
        return [one for one in self._journal.latest(MOST_LISTED) if one.number > last]

    def _check(self, after: int) -> None:
        """A number that is yet to come is refused: it was counted elsewhere, and nothing after it would be missed."""
        if not 0 <= after <= self._last:
            raise InvalidRequest("after_number", after, f"0 to {self._last}, the latest transition's")

    @property
    def _last(self) -> int:
        """The latest transition's number; 0 before the first."""
        latest = self._journal.latest(1)
        return latest[-1].number if latest else 0


async def unless_set(stopping: asyncio.Event, wanted: Awaitable[T]) -> T:
    """What `wanted` ends with. Raises NotServing as soon as the daemon stops; what is not done by then is given up."""
    result, ending = asyncio.ensure_future(wanted), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((result, ending), return_when=asyncio.FIRST_COMPLETED)
        if result.done() and not result.cancelled():
            return result.result()
        raise NotServing("the daemon is stopping", retry_after=1.0)
    finally:
        result.cancel()
        ending.cancel()
        await asyncio.gather(result, ending, return_exceptions=True)
