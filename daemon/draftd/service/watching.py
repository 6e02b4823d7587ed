"""Those who watch transitions: how many there may be, and what each has yet to read. Nobody waits for any of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from draftd.errors import ClientStalled, QueueFull
from draftd.fallback.journal import Transition
from draftd.fronts.grpc.fallback import MOST_LISTED
from draftd.fronts.grpc.seams import Transitions

MOST_WATCHERS = 32
MOST_UNREAD = 64  # transitions that one watcher may have before it


class Feed:
    """What one watcher has yet to read. `put` is called on any thread and never blocks; the rest is the loop's."""

    def __init__(self, after: int, most: int = MOST_UNREAD) -> None:
        """`after` is the number of the transition that the watcher has seen last."""
        self.last = after
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._kept: deque[Transition] = deque()
        self._unread: deque[Transition] = deque()
        self._lost = False
        self._woken = asyncio.Event()

    def put(self, transition: Transition) -> None:
        with self._lock:
            if len(self._unread) >= self._most:
                self._lost = True
            if not self._lost:  # once one is lost, what follows would hide the hole
                self._unread.append(transition)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the watcher gone with it
            self._loop.call_soon_threadsafe(self._woken.set)

    def put_first(self, kept: Iterable[Transition]) -> None:
        """What was there before; what was put meanwhile is in it again, and comes once."""
        self._kept.extend(kept)

    async def take(self) -> Transition:
        """The next one. Raises ClientStalled when one could not be kept, after all that were."""
        while True:
            self._woken.clear()
            with self._lock:
                waiting = self._kept or self._unread
                found, lost = waiting.popleft() if waiting else None, self._lost
            if found is not None and found.number > self.last:
                self.last = found.number
                return found
            if found is None and lost:
                raise ClientStalled(
                    f"after_number: the watcher fell more than {self._most} transitions behind; "
                    f"watch again with after_number {self.last}"
                )
            if found is None:
                await self._woken.wait()


class Watchers:
    """All of them. Event loop only."""

    def __init__(self, transitions: Transitions, limit: int = MOST_WATCHERS) -> None:
        self._transitions, self._limit = transitions, limit
        self.open = 0

    @contextlib.contextmanager
    def feed(self, after: int | None) -> Iterator[Feed]:
        """What happens from here on; `after` has those that are kept and later than that come first.

        Raises QueueFull where so many watch already."""
        if self.open >= self._limit:
            raise QueueFull(f"{self._limit} watch already, and no more may", retry_after=10.0)
        self.open += 1
        made = Feed(last_number(self._transitions) if after is None else after)
        end = self._transitions.listen(made.put)
        try:
            made.put_first(self._transitions.latest(MOST_LISTED))  # after `listen`, so that none falls between the two
            yield made
        finally:
            end()
            self.open -= 1


def last_number(transitions: Transitions) -> int:
    """The latest transition's; 0 before the first."""
    latest = transitions.latest(1)
    return latest[-1].number if latest else 0
