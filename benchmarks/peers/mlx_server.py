"""Starts the peer that draftd is compared with, `mlx_lm.server`, sends it completions over HTTP, and ends it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import IO, Any

from benchmarks.peers.part import Pair
from benchmarks.peers.sse import events

_START_SECONDS = 600.0
_END_SECONDS = 10.0
_SHOWN_LINES = 12
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Peer:
    """A running `mlx_lm.server`. Error messages call it `name`."""

    port: int
    name: str

    def completion(self, text: str, max_tokens: int, seconds: float) -> Generator[dict[str, Any], None, None]:
        """Yields the decoded events of one greedy completion of the prompt `text`, without a chat template. Raises
        OSError or http.client's errors if the server does not answer or is silent for `seconds`; RuntimeError with its
        message if it refuses. Closing the iterator closes the connection, which cancels the request."""
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=max(seconds, 0.001))
        try:
            body = {"prompt": text, "max_tokens": max_tokens, "stream": True, "temperature": 0.0}
            body["stream_options"] = {"include_usage": True}
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body).encode(), headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise RuntimeError(
                    f"{self.name}: HTTP {response.status}: {response.read(500).decode(errors='replace')}"
                )
            for event in events(iter(response.readline, b"")):
                yield json.loads(event)
        finally:
            connection.close()


@contextlib.contextmanager
def peer(pair: Pair, *, draft_depth: int | None, batch: int, keep_prompts: bool = True) -> Iterator[Peer]:
    """Starts the server on `pair` and yields it once it answers. `draft_depth` is the draft tokens of a step; None is
    without the draft model. `batch` is the maximum of answers decoded, and of prompts read, at a time. Unless
    `keep_prompts`, its prompt cache is empty. Raises RuntimeError with its last output if it ends or does not answer in
    time."""
    arguments = ["--model", pair.model, "--host", _HOST, "--log-level", "WARNING", "--max-tokens", "256"]
    arguments += ["--decode-concurrency", str(batch), "--prompt-concurrency", str(batch)]
    if draft_depth is not None:
        arguments += ["--draft-model", pair.draft, "--num-draft-tokens", str(draft_depth)]
    if not keep_prompts:
        arguments += ["--prompt-cache-size", "0"]
    name = "mlx_lm.server" if draft_depth is None else "mlx_lm.server with its draft"
    port = _free_port()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.peer_server", *arguments, "--port", str(port)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C reaches the benchmark only, which ends the server
        )
        try:
            server = Peer(port, name)
            _wait(server, process, said)
            yield server
        finally:
            _end(process)


def _wait(server: Peer, process: subprocess.Popen[bytes], said: IO[str]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            # Its health check does not wait for the weights; an answer does.
            for _ in server.completion("a", 1, deadline - time.monotonic()):
                pass
            return
        except RuntimeError as error:  # it listens but could not load its models
            raise RuntimeError(f"{error}: {_last(said)}") from None
        except (OSError, http.client.HTTPException) as error:
            if process.poll() is not None:
                raise RuntimeError(f"{server.name} ended with exit code {process.returncode}: {_last(said)}") from None
            if time.monotonic() >= deadline:
                raise RuntimeError(f"{server.name} did not answer in time: {error}: {_last(said)}") from None
            time.sleep(0.1)


def _last(said: IO[str]) -> str:
    said.seek(0)
    return "\n".join(said.read().splitlines()[-_SHOWN_LINES:]) or "no output"


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()  # it ends with its input
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((_HOST, 0))
        return int(listening.getsockname()[1])
