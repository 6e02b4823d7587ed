"""The part of an HTTP connection that all listeners of the daemon share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web


class BoundedConnection(web.RequestHandler):
    """An HTTP/1.1 connection with bounded lines, headers and waits. Input that is not HTTP is answered with status 400
    in JSON, and not logged."""

    __slots__ = ()

    def __init__(
        self, server: web.Server, *, line_bytes: int, field_bytes: int, headers: int, idle_seconds: float = 75.0
    ) -> None:
        """`line_bytes`: of the request line; `field_bytes`: of each of at most `headers` headers; `idle_seconds`:
        between two requests."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # none is kept
            keepalive_timeout=idle_seconds,
            max_line_size=line_bytes,
            max_field_size=field_bytes,
            max_headers=headers,
            lingering_time=1.0,  # lets a refused sender finish, otherwise it would not get the answer
            auto_decompress=False,  # signatures cover the sent bytes, and decompression could exhaust memory
        )

    def refusal(self) -> Mapping[str, Any]:
        """Returns the JSON that answers input that is not HTTP."""
        raise NotImplementedError

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        response = web.json_response(self.refusal(), status=400, headers={"Server": "draftd"})
        response.force_close()
        return response
