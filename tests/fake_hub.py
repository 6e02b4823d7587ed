"""A hub on loopback that implements the part of the real protocol that huggingface_hub's client uses, and that can
fail.

Large files are redirected to another host, as on the real hub. That host must not receive the token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.forked_daemon import command

_PIECE = 16 * 1024
_STORED_IN_GIT = 50_000  # bytes; a larger file is in Git LFS
_COMMIT = "X-Repo-Commit"


@dataclass
class Fault:
    """An answer instead of the right one, for paths that match `path`. `times` is how often; None without limit."""

    path: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int | None = None
    cut_after: int | None = None  # bytes of the body, then the connection is closed
    body: bytes | None = None
    silent: bool = False  # nothing is answered until the hub closes


@dataclass
class Sent:
    """A part of a file that was sent to a client, or is being sent."""

    name: str
    begin: int
    end: int
    token: str | None


class Hub:
    """A fake hub. `models` has files by name, by OWNER/NAME. `bytes_per_second` slows each file."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}
        self.faults: list[Fault] = []
        self.sent: list[Sent] = []
        self.asked: list[str] = []
        self.bytes_per_second: float | None = None
        self.ranges = True
        self.closing = threading.Event()
        hub = self

        class Handler(_Handler):
            of = hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def add(self, name: str, folder: str | Path | None = None, **files: bytes) -> None:
        found = {} if folder is None else {one.name: one.read_bytes() for one in Path(folder).iterdir()}
        self.models[name] = found | files

    def commit(self, name: str) -> str:
        """Returns the commit of a model, which changes when a file does."""
        digest = hashlib.sha1()
        for file, body in sorted(self.models[name].items()):
            digest.update(file.encode() + b"\0" + body)
        return digest.hexdigest()

    def parts(self, name: str) -> list[tuple[int, int]]:
        """Returns the parts of a file that were sent, as (begin, end), in order."""
        return [(one.begin, one.end) for one in self.sent if one.name == name]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def hub_for_tests(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Hub]:
    """Yields a hub that this process takes for the real one, with a cache in `home`."""
    from huggingface_hub import constants

    hub = Hub()
    for name, value in _constants(hub.url, home).items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    try:
        yield hub
    finally:
        hub.close()


def serve(url: str, home: str, *arguments: str) -> None:
    """Runs `draftd serve` with these arguments and the hub at `url`, for tests.forked_daemon."""
    from huggingface_hub import constants

    for name, value in _constants(url, Path(home)).items():
        setattr(constants, name, value)
    command("serve", *arguments)


def _constants(url: str, home: Path) -> dict[str, object]:
    """Returns the constants that huggingface_hub takes from the environment when it is imported."""
    return {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_URL_HOSTS": frozenset({"127.0.0.1"}),
        "HF_TOKEN_PATH": str(home / "token"),
    }


def _lfs(body: bytes) -> bool:
    return len(body) > _STORED_IN_GIT


def _etag(body: bytes) -> str:
    if _lfs(body):
        return hashlib.sha256(body).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: clients may leave at any time."""


class _Handler(BaseHTTPRequestHandler):
    of: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for head and body, or each answer waits for the other side's delayed acknowledgement

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing."""

    def _answer(self) -> None:
        with contextlib.suppress(ConnectionError):
            path = unquote(urlsplit(self.path).path)
            self.of.asked.append(f"{self.command} {path}")
            fault = next((one for one in self.of.faults if re.search(one.path, path) and one.times != 0), None)
            if fault is not None:
                if self.command == "HEAD" and fault.cut_after is not None:
                    fault = None
                elif fault.times is not None:
                    fault.times -= 1
            if fault is not None and fault.silent:
                self.of.closing.wait(30)
                self.close_connection = True
            elif fault is not None and fault.status:
                self._send(fault.status, b'{"error": "no"}', fault.headers)
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/main", path):
                self._model(found[1])
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/\w+", path):
                self._tree(found[1])
            elif found := re.fullmatch(r"/(?:(files)/)?([^/]+/[^/]+)/(?:resolve/)?(\w+)/(.+)", path):
                self._file(found[2], found[4], bool(found[1]), fault)
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _model(self, name: str) -> None:
        if name not in self.of.models:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        siblings = [
            {"rfilename": file, "size": len(body), "blobId": _etag(body)}
            | ({"lfs": {"sha256": _etag(body), "size": len(body), "pointerSize": 134}} if _lfs(body) else {})
            for file, body in self.of.models[name].items()
        ]
        known = {"_id": "1", "id": name, "modelId": name, "private": False, "gated": False, "downloads": 1, "tags": []}
        self._send(200, json.dumps({**known, "sha": self.of.commit(name), "siblings": siblings}).encode())

    def _tree(self, name: str) -> None:
        listed = [
            {"type": "file", "path": file, "size": len(body), "oid": _etag(body)}
            | ({"lfs": {"oid": _etag(body), "size": len(body), "pointerSize": 134}} if _lfs(body) else {})
            for file, body in self.of.models[name].items()
        ]
        self._send(200, json.dumps(listed).encode())

    def _file(self, name: str, file: str, elsewhere: bool, fault: Fault | None) -> None:
        body = self.of.models.get(name, {}).get(file)
        if body is None:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        commit = self.of.commit(name)
        linked = {"X-Linked-Etag": f'"{_etag(body)}"', "X-Linked-Size": str(len(body))}
        headers = {_COMMIT: commit, "ETag": f'"{_etag(body)}"', "Accept-Ranges": "bytes"}
        if _lfs(body) and not elsewhere:
            where = f"http://localhost:{self.of.port}/files/{name}/{commit}/{file}"
            self._send(302, b"", headers | linked | {"Location": where})
            return
        if fault is not None and fault.body is not None:
            body = fault.body
        status, begin, size = 200, 0, len(body)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and self.of.ranges:
            status, begin = 206, int(asked[1])
            if begin >= size:
                self._send(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        end = size if fault is None or fault.cut_after is None else min(size, begin + fault.cut_after)
        self._send(status, body[begin:end], headers, length=size - begin, name=file, begin=begin)
        if end < size:
            self.close_connection = True

    def _send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] = {},
        *,
        length: int | None = None,
        name: str = "",
        begin: int = 0,
    ) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = Sent(name, begin, begin, self.headers.get("Authorization"))
        if name:
            self.of.sent.append(sent)
        began = time.monotonic()
        for start in range(0, len(body), _PIECE):
            piece = body[start : start + _PIECE]
            sent.end += len(piece)  # before the client can have it
            self.wfile.write(piece)
            self.wfile.flush()
            if name and (rate := self.of.bytes_per_second):
                ahead = (sent.end - begin) / rate - (time.monotonic() - began)
                if self.of.closing.wait(max(0.0, ahead)):
                    break
