"""Which requests are in hand: the daemon drains until there are none."""

from __future__ import annotations

import asyncio


class Calls:
    """Counts requests from arrival until handler and engine are both through with them. Event loop only.

    `limit` bounds what they hold: the engine's queue bounds those that wait for it, and nothing else would bound those
    that are being tokenised, or whose clients read slowly.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0
        self.draining = False
        self._open: set[str] = set()
        self._none = asyncio.Event()
        self._none.set()

    @property
    def open(self) -> int:
        return len(self._open)

    def enter(self, request_id: str) -> None:
        self._open.add(request_id)
        self._none.clear()

    def leave(self, request_id: str) -> None:
        self._open.discard(request_id)
        if not self._open:
            self._none.set()

    async def wait_none(self, seconds: float) -> bool:
        """False when some were still in hand after so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            return False
        return True
