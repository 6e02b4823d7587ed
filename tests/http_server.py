"""An HTTP server on this machine whose answers a test decides."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, Any]  # text is HTML, or where a redirect leads; bytes say that they are JSON; the rest is


@dataclass(frozen=True)
class Request:
    """One call as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class Refused(Exception):
    """An answer with an error status, not 2xx."""

    def __init__(self, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.answer: Answer = (code, {"message": message, **more})


def _encoded(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else "" if body is None else json.dumps(body)).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that have gone away; other errors are reported, and seen by the client too."""
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def serving(answer: Callable[[Request], Answer], certificate: Path | None = None) -> Iterator[str]:
    """Answers on a free port until the block ends; yields the address. `certificate` is a PEM file with its key, for
    https."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet for head and body, or each answer waits for the other side's delayed acknowledgement

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, parts.path, parse_qs(parts.query), headers, body)
            try:
                self._send(*answer(request))
            except Refused as refused:
                self._send(*refused.answer)

        def _send(self, code: int, body: Any) -> None:
            self.send_response(code)
            if 300 <= code < 400:
                self.send_header("Location", str(body))
            data = _encoded(body)
            kind = "text/html" if isinstance(body, str) else "application/json"
            self.send_header("Content-Type", f"{kind}; charset=UTF-8")
            if code != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if code != 204:
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: the requests are kept instead."""

    server = _Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
