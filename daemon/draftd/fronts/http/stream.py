"""Server-sent events: one write for each event, comments while there are none, and a clear end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from draftd.fronts.http.connections import HttpConnection

KEEP_ALIVE_SECONDS = 10.0
_END_SECONDS = 2.0  # for the last event, to a client that may not read

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # proxies that would collect the answer
}
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n"  # parsers skip it; some would take an empty line after it for an event


def data(what: Mapping[str, Any]) -> bytes:
    """One event in OpenAI's form, without a name."""
    return b"data: " + to_json(what) + b"\n\n"


def event(name: str, what: Mapping[str, Any]) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + to_json(what) + b"\n\n"


class EventStream:
    """The stream that answers one request, used in that request's task. Sends `keep_alive` after `seconds` without an
    event."""

    def __init__(
        self,
        request: web.BaseRequest,
        headers: Mapping[str, str],
        keep_alive: bytes,
        seconds: float,
    ) -> None:
        self._request, self._keep_alive, self._seconds = request, keep_alive, seconds
        self.response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._sent = 0.0
        self.complete = False  # a client that leaves now has its whole answer
        self._task: asyncio.Task[None] | None = None
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def begun(self) -> bool:
        """Whether the status was sent. After that an error can only be an event."""
        return self._task is not None

    async def send(self, said: bytes) -> None:
        """Sends bytes, and returns when there is room for more. Raises ConnectionError if the client has left."""
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._set_probe(self._probe)
            self._task = loop.create_task(self._keep(), name="draftd-http-keep-alive")
            if self._request.version >= (1, 1):
                self.response.enable_chunked_encoding()
            await self.response.prepare(self._request)
        if said:
            self._sent = loop.time()
            await self.response.write(said)

    async def end(self, said: bytes = b"") -> None:
        """Sends the last event and ends the stream. Aborts the connection of a client that does not read it in time."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self.send(said)
                self.complete = True
                await self.response.write_eof()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Aborts the connection at once: the client must not take the answer for complete."""
        transport = self._request.transport
        if isinstance(transport, asyncio.Transport):
            transport.abort()

    async def close(self) -> None:
        """Ends the task that sends keep-alives."""
        self._set_probe(None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _set_probe(self, probe: Callable[[], None] | None) -> None:
        if isinstance(self._request.protocol, HttpConnection):
            self._request.protocol.say_something = probe

    def _probe(self) -> None:
        if self.response.prepared and not self.complete:
            task = asyncio.get_running_loop().create_task(self._say_nothing(), name="draftd-http-probe")
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    async def _say_nothing(self) -> None:
        with contextlib.suppress(ConnectionError):  # the request's own task hears of it too
            await self.response.write(self._keep_alive)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sent = loop.time()
        with contextlib.suppress(ConnectionError):  # the request's own task hears of it too
            while True:
                wait = self._sent + self._seconds - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                elif self.response.prepared:
                    self._sent = loop.time()
                    await self.response.write(self._keep_alive)
                else:
                    await asyncio.sleep(self._seconds)
