"""The open requests of a daemon."""

from __future__ import annotations

import asyncio

from draftd.outcome import Outcome
from draftd.telemetry.spans import InferenceSpan


class OpenRequests:
    """The requests that have arrived and with which the front or the engine is not done yet. Event loop only."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        # By open request whose client has gone: the choices that the engine has not ended yet.
        self._abandoned: dict[str, dict[str, InferenceSpan]] = {}
        self._none_open = asyncio.Event()
        self._none_open.set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def with_client(self) -> int:
        """The open requests whose clients have not gone."""
        return len(self._open) - len(self._abandoned)

    async def wait_idle(self, seconds: float) -> bool:
        """Waits until no request is open. Returns False if some still are after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._none_open.wait()
        except TimeoutError:
            return False
        return True

    def add(self, request_id: str) -> None:
        self._open.add(request_id)
        self._none_open.clear()

    def abandon(self, request_id: str, unfinished: dict[str, InferenceSpan]) -> None:
        """Keeps the request open until the engine has ended its `unfinished` choices."""
        self._abandoned[request_id] = unfinished

    def finish_abandoned(self, request_id: str, choice: str, outcome: Outcome) -> None:
        """Ends a choice whose front has gone."""
        unfinished = self._abandoned[request_id]
        unfinished.pop(choice).finish(outcome)
        if not unfinished:
            self.close(request_id)

    def close(self, request_id: str) -> None:
        """Closes the request: front and engine are done with it."""
        self._open.discard(request_id)
        self._abandoned.pop(request_id, None)
        if not self._open:
            self._none_open.set()
