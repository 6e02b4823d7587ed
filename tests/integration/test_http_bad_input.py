"""Bad bodies and clients over HTTP: each gets a 4xx that names what is wrong, and none disturbs a running stream."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from draftd.core import FinishReason
from draftd.engine.pair import LoadedModels
from tests.http_mutations import CHAT, bodies, mangled
from tests.in_process_daemon import Answer, Served, collect, serving
from tests.integration.test_bad_input import wordy
from tests.reply_model import speaking_models
from tests.wait_until import until

LIMIT = 256 * 1024
BODIES = bodies("speaking")


def models() -> LoadedModels:
    """Says the same whatever it is asked, and takes tools."""
    return speaking_models(lambda prompt: "word " * 400)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = {"http_port": 0, "max_message_bytes": LIMIT}
    with serving(tmp_path_factory.mktemp("http"), models, server=options) as served:
        yield served


@pytest.fixture
def bystander(served: Served) -> Iterator[None]:
    """A stream over gRPC that runs all the while, and comes out whole and with no long silence."""
    alone = collect(served.client.generate("bystander", max_tokens=200))
    answers: list[Answer] = []
    thread = threading.Thread(
        target=lambda: answers.append(collect(served.client.generate("bystander", max_tokens=400)))
    )
    thread.start()
    yield
    thread.join(60)
    assert answers[0].error is None
    assert answers[0].tokens[:200] == alone.tokens


def post(served: Served, path: str, body: bytes, kind: str = "application/json") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", served.daemon.http_port, timeout=30)
    try:
        connection.request("POST", path, body, {"Content-Type": kind})
        response = connection.getresponse()
        text = response.read()
        if response.status == 200 and b"text/event-stream" in response.headers["Content-Type"].encode():
            return 200, None
        return response.status, json.loads(text)
    finally:
        connection.close()


def test_mangled_http_bodies_are_answered_or_refused_naming_the_field(served: Served, bystander: None) -> None:
    rng = random.Random(17)
    asked = [(path, mangled(body, rng)) for path, body in BODIES.items() for _ in range(60)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: post(served, one[0], json.dumps(one[1]).encode()), asked))
    for (path, body), (status, answer) in zip(asked, answers, strict=True):
        assert status in (200, 400, 404, 429), (path, body, answer)
        if status != 200:
            error = answer["error"]
            assert "internal" not in error["message"]
            if path != "/v1/messages":
                assert error["param"], (body, error)
    statuses = [status for status, _ in answers]
    assert 10 < statuses.count(200) < 200


RAW: list[tuple[bytes, int, str]] = [
    (b"", 400, "valid JSON"),
    (b"{", 400, "valid JSON"),
    (b"[]", 400, "an object"),
    (b"\xff\xfe", 400, "valid JSON"),
    (b'{"messages": [], "temperature": NaN}', 400, "finite number"),
    (b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "valid JSON"),
    (b'{"messages": [' + b"1," * 100_000 + b"1]}", 400, "messages[0]"),
    (b'{"messages": [], "chat_template_kwargs": {"a": 1e999}}', 400, "JSON"),
    (b'{"messages": [{"role": "user", "content": "' + b"x" * LIMIT + b'"}]}', 413, "server.max_message_bytes"),
    (bytes(10 * 1024 * 1024), 413, "server.max_message_bytes"),
]  # fmt: skip


def test_http_body_that_is_not_json_gets_an_explaining_4xx(served: Served, bystander: None) -> None:
    for body, status, said in RAW:
        began = time.monotonic()
        found, answer = post(served, CHAT, body)
        assert (found, said in answer["error"]["message"]) == (status, True), (body[:60], answer)
        assert time.monotonic() - began < 5
    assert post(served, CHAT, b"{}", "text/plain")[0] == 415


@pytest.mark.parametrize("stream", [True, False])
def test_http_client_that_does_not_read_loses_its_connection(tmp_path: Path, stream: bool) -> None:
    options = {"http_port": 0, "write_stall_seconds": 0.3}
    with serving(tmp_path, wordy, server=options) as served, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", served.daemon.http_port))
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1500, "stream": stream}
        deaf.sendall(request(json.dumps(body).encode()))
        assert served.daemon._http is not None
        connections = served.daemon._http._listeners.connections
        until(lambda: len(served.telemetry.heard) == 1 and len(connections) == 0, 30)
        until(lambda: served.worker.status().active == 0 and served.telemetry.heard[0].outcomes)
        reason = FinishReason.CANCELLED if stream else FinishReason.LENGTH
        assert [o.reason for o in served.telemetry.heard[0].outcomes] == [reason]
    assert served.orderly
    assert served.tasks_left == []


def request(body: bytes) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_http_clients_that_hang_up_leave_no_open_request_or_connection(served: Served, bystander: None) -> None:
    data = json.dumps({**BODIES[CHAT], "max_tokens": 500, "stream": True}).encode()
    whole = request(data)
    rng = random.Random(3)
    for n in [*(rng.randrange(len(whole)) for _ in range(20)), *[len(whole)] * 5]:
        with socket.create_connection(("127.0.0.1", served.daemon.http_port)) as one:
            one.sendall(whole[:n])
            if n % 2:
                one.shutdown(socket.SHUT_WR)
            time.sleep(0.005)
    until(lambda: served.daemon.service.open_requests <= 1, 20)
    assert served.daemon._http is not None
    http = served.daemon._http
    until(lambda: len(http._listeners.connections) == 0, 20)
