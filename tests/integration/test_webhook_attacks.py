"""Attacks on the webhook: none moves a level, each is counted by its reason, a true sender is served right after."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.in_process_daemon import Served
from tests.scripted import scripted_models
from tests.wait_until import until
from tests.webhook import SIGNATURE, TIMESTAMP, TOKEN, Webhook, alert, bearer, notification, signed


@contextlib.contextmanager
def unmoved(webhook: Webhook, **counted: int) -> Iterator[None]:
    """What happens within moves nothing and is counted as `counted`; a true notification, of either kind, is served
    right after."""
    told, before = len(webhook.controller.told), webhook.counted
    yield
    until(
        lambda: (
            {name: n - before.get(name, 0) for name, n in webhook.counted.items() if n > before.get(name, 0)} == counted
        ),
        10,
        f"it is counted as {counted}, and not {webhook.counted}",
    )
    assert len(webhook.controller.told) == told
    until(lambda: webhook.send().status == 200, 10, "the token is served")
    body = notification(alert(step=str(random.random())))
    until(lambda: webhook.send(body, signed(body)).status == 200, 10, "the signature is served")
    assert len(webhook.controller.told) == told + 2


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook(body_seconds=1.0, request_seconds=2.0) as made:
        yield made


def test_webhook_refuses_bad_and_missing_credentials(webhook: Webhook) -> None:
    body = notification()
    true = signed(body)
    attacks = {
        "no_credentials": [{}, {"X-Api-Key": TOKEN}, {TIMESTAMP: "0"}],
        "bad_token": [bearer("guess"), bearer(""), {"Authorization": f"Basic {TOKEN}"}, bearer("schl\u00fcssel")],
        "bad_signature": [signed(body, "guess"), true | {SIGNATURE: ""}, true | {SIGNATURE: "\u00e9" * 64}],
        "no_timestamp": [{SIGNATURE: true[SIGNATURE]}],
        "bad_timestamp": [true | {TIMESTAMP: "now"}, true | {TIMESTAMP: "9" * 4000}],
        "stale": [signed(body, at=time.time() - 3600), signed(body, at=time.time() + 3600), signed(body, at=0)],
    }
    with unmoved(webhook, **{name: len(headers) for name, headers in attacks.items()}):
        for name, several in attacks.items():
            for headers in several:
                answered = webhook.send(body, headers)
                assert answered.status == 401, (name, headers)
                assert answered.headers["WWW-Authenticate"] == "Bearer"


def test_webhook_refuses_a_replayed_or_altered_signed_notification(webhook: Webhook) -> None:
    body = notification()
    headers = signed(body)
    assert webhook.send(body, headers).status == 200
    lowered = notification(alert(fallback_level="autoregressive"))
    with unmoved(webhook, replayed=3, bad_signature=2):
        for _ in range(3):
            answered = webhook.send(body, headers)
            assert (answered.status, answered.error) == (
                401,
                "the signature has been used: each is accepted once",
            )
        assert webhook.send(lowered, headers).status == 401
        later = str(int(headers[TIMESTAMP]) + 1)
        assert webhook.send(body, headers | {TIMESTAMP: later}).status == 401


def test_webhook_accepts_only_a_single_use_of_a_concurrently_repeated_signature(webhook: Webhook) -> None:
    body = notification()
    headers = signed(body)
    with ThreadPoolExecutor(8) as senders:
        answers = list(senders.map(lambda _: webhook.send(body, headers).status, range(16)))
    assert sorted(answers) == [200] + [401] * 15
    assert len(webhook.controller.told) == 1
    assert webhook.counted == {"accepted": 1, "replayed": 15}


def test_webhook_accepts_repeated_bearer_notifications_as_the_same_alert(webhook: Webhook) -> None:
    """Who can repeat it has the token. That it changes nothing is for the leases: the same alert is the same lease."""
    for _ in range(3):
        assert webhook.send().status == 200
    assert len({(one.fingerprint, one.starts_at) for one in webhook.controller.told}) == 1


def chunks(size: int, count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b" " * size


def test_webhook_refuses_oversized_or_compressed_bodies(webhook: Webhook) -> None:
    most = webhook.settings.max_body_bytes
    with unmoved(webhook, too_large=4, bad_encoding=1):
        assert webhook.send(b" " * (most + 1)).status == 413
        answered = webhook.send(chunks(10_000, 40), bearer() | {"Transfer-Encoding": "chunked"}, chunked=True)
        assert (answered.status, answered.error) == (
            413,
            "body: allowed: at most 262144 bytes (webhook.max_body_bytes)",
        )
        large = b" " * (most + 1)
        assert webhook.send(large, signed(large)).status == 413
        with webhook.socket() as claims:  # it says that there is much, and sends none of it
            claims.sendall(f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode())
            claims.sendall(b"Content-Length: 99999999999999\r\n\r\n")
            assert claims.recv(100).startswith(b"HTTP/1.1 413")
        assert webhook.send(b"\x1f\x8b" * 10, bearer() | {"Content-Encoding": "gzip"}).status == 415


def test_webhook_accepts_a_body_of_the_maximum_size(webhook: Webhook) -> None:
    body = notification()
    body += b" " * (webhook.settings.max_body_bytes - len(body))
    assert webhook.send(body).status == 200
    pieces = (body[at : at + 999] for at in range(0, len(body), 999))
    assert webhook.send(pieces, bearer() | {"Transfer-Encoding": "chunked"}, chunked=True).status == 200


def test_webhook_refuses_malformed_and_invalid_notifications(webhook: Webhook) -> None:
    malformed = [b"", b"{", b"\xff\xfe\x00", b'{"version": "\xc3\x28"}', b"[" * 200_000, b'{"a":' * 40_000]
    found = json.loads(notification())
    wrong: list[Any] = [
        [],
        None,
        7,
        {},
        found | {"version": "3"},
        found | {"alerts": [[]]},
        found | {"alerts": [alert()] * 1001},
        found | {"alerts": [alert() | {"startsAt": 3}]},
        found | {"alerts": [alert() | {"startsAt": "9999-12-31T23:59:59Z"}]},
        found | {"alerts": [alert() | {"labels": {"alertname": None}}]},
        found | {"alerts": [alert() | {"fingerprint": "f" * 65}]},
    ]
    with unmoved(webhook, malformed=len(malformed), invalid=len(wrong)):
        for body in malformed:
            assert webhook.send(body).status == 400, body[:20]
        for value in wrong:
            time.sleep(0.05)  # within the rate: what is tested is what it says
            answered = webhook.send(json.dumps(value).encode())
            assert answered.status == 422, value
            assert "; allowed: " in answered.error


def test_webhook_refuses_unknown_alerts_and_levels(webhook: Webhook) -> None:
    levels = ("full", "FULL", "3", "fast")
    with unmoved(webhook, unknown_alert=2, bad_level=len(levels) + 1):
        for labels in ({"alertname": "TestAlert", "instance": "Grafana"}, {"alertname": ""}):
            answered = webhook.send(notification(alert(**labels)))
            assert answered.status == 422
            assert "DraftdAcceptanceBelowFloor, " in answered.error
        for level in levels:
            answered = webhook.send(notification(alert(fallback_level=level)))
            assert answered.status == 422
            assert answered.error.startswith(f"alerts[0].labels.fallback_level: got '{level}'; allowed: autoregressive")
        assert webhook.send(notification(alert(), alert(fallback_level="full"))).status == 422, "none of it acts"


BAD_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    b"GET\r\n\r\n",
    b"POST /v1/alerts HTTP/1.1\r\n\r\n",
    b"POST /v1/alerts HTTP/9.9\r\n\r\n",
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500 + b"\r\n",
    b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nA\x00B: c\r\n\r\n",
]


def raw(webhook: Webhook, data: bytes) -> bytes:
    """What is answered, until it hangs up."""
    found = b""
    with webhook.socket() as one, contextlib.suppress(ConnectionError):
        one.sendall(data)
        while part := one.recv(65536):
            found += part
    return found


def test_webhook_answers_non_http_bytes_with_400_and_no_traceback(
    webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    with unmoved(webhook, bad_http=len(BAD_HTTP)):
        for data in BAD_HTTP:
            said = raw(webhook, data)
            assert not said or said.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), (data[:40], said)
    assert "Traceback" not in caplog.text
    assert len(caplog.messages) < 10


def test_webhook_answers_wrong_path_upgrade_or_pipelined_requests_with_single_refusal(webhook: Webhook) -> None:
    odd = [
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "bad_path"),
        (b"POST //v1/alerts HTTP/1.1\r\nHost: x\r\n\r\n", "bad_path"),
        (b"POST /v1/%61lerts%00 HTTP/1.1\r\nHost: x\r\n\r\n", "bad_path"),
        (b"POST /v1/../v1/alerts/%ff HTTP/1.1\r\nHost: x\r\n\r\n", "bad_path"),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "bad_path"),
        (b"POST /v1/alerts HTTP/1.0\r\n\r\n", "no_credentials"),
        (
            b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nmore",
            "no_credentials",
        ),
        (b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\x80\r\n\r\n", "bad_token"),
        (
            b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\n\r\nPOST /v1/alerts HTTP/1.1\r\nHost: x\r\n\r\n" * 40,
            "no_credentials",
        ),  # one each
    ]
    counted: dict[str, int] = {}
    for _, name in odd:
        counted[name] = counted.get(name, 0) + 1
    with unmoved(webhook, **counted):
        for data, _ in odd:
            said = raw(webhook, data)
            assert said.startswith(b"HTTP/1."), data[:60]
            assert said.count(b"HTTP/1.") == 1, "one request a connection"


def test_webhook_times_out_slow_senders(webhook: Webhook) -> None:
    head = f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n"
    proven = head.encode() + b"\r\n{"
    forged = head.replace("Authorization", "Other").encode()
    forged += f"{SIGNATURE}: {'0' * 64}\r\n{TIMESTAMP}: {int(time.time())}\r\n\r\n{{".encode()
    with unmoved(webhook, slow=5, cut_short=1), contextlib.ExitStack() as open_still:
        silent, lines, headless, body, unproven, gone = (open_still.enter_context(webhook.socket()) for _ in range(6))
        lines.sendall(b"POST /v1/al")
        headless.sendall(head.encode())
        body.sendall(proven)
        unproven.sendall(forged)
        gone.sendall(proven)
        gone.shutdown(socket.SHUT_WR)
        for one in (body, unproven):
            assert one.recv(100).startswith(b"HTTP/1.1 408"), "who has said who it is hears why"
        for one in (silent, lines, headless):
            with contextlib.suppress(ConnectionError):
                assert one.recv(100) == b""


def test_webhook_serves_a_valid_sender_among_hundreds_of_idle_connections() -> None:
    with Webhook(body_seconds=20.0, request_seconds=30.0) as webhook, contextlib.ExitStack() as held:
        for number in range(400):
            one = held.enter_context(webhook.socket())
            one.sendall(b"POST /v1/alerts HTTP/1.1\r\n" if number % 2 else b"")
        assert webhook.send().status == 200
        body = notification()
        assert webhook.send(body, signed(body)).status == 200
        connections = webhook.listener._connections
        assert connections is not None
        assert len(connections) <= 64
        until(lambda: webhook.counted.get("crowded_out", 0) >= 336)


def test_unauthenticated_senders_do_not_use_up_the_webhook_rate_limit() -> None:
    body = notification()
    with Webhook(max_per_second=5) as webhook:
        forged = [{}, bearer("guess"), signed(body, "guess"), signed(body, at=1)] * 15
        answers = [webhook.send(body, headers) for headers in forged]
        limited = [one for one in answers if one.status == 429]
        assert {one.status for one in answers} == {401, 429}
        assert all(int(one.headers["Retry-After"]) >= 1 for one in limited)
        assert [webhook.send().status for _ in range(3)] == [200] * 3
        assert webhook.send(body, signed(body)).status == 200
    assert webhook.counted == {
        "no_credentials": 15,
        "bad_token": 15,
        "bad_signature": 15,
        "stale": 15,
        "accepted": 4,
    }


_FLOOD = """
import socket, sys, threading, time
port, wanted = int(sys.argv[1]), int(sys.argv[2])
token = b"Authorization: Bearer guess\\r\\n"
body = b"{" * 2000
head = b"POST /v1/alerts HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n" % len(body)
now = b"%d" % time.time()
forged = b"X-Grafana-Alerting-Timestamp: " + now + b"\\r\\nX-Grafana-Alerting-Signature: " + b"0" * 64 + b"\\r\\n"
kinds = [head + who + b"\\r\\n" + body for who in (b"", token, forged)] + [b"nonsense\\r\\n\\r\\n"]
done = [0] * 8
def attack(which):
    while done[which] < wanted / len(done):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
                one.sendall(kinds[done[which] % 4])
                one.recv(1000)
            done[which] += 1
        except OSError:
            pass
threads = [threading.Thread(target=attack, args=(which,)) for which in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sum(done))
"""


@contextlib.contextmanager
def flooded(webhook: Webhook, requests: int) -> Iterator[subprocess.Popen[str]]:
    """So many bad requests, as fast as another process can make them; it prints how many were answered."""
    command = [sys.executable, "-c", _FLOOD, str(webhook.port), str(requests)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        assert int(process.communicate(timeout=120)[0]) >= requests
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_webhook_flood_moves_no_level_and_bounds_log_lines_and_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "draftd")
    with Webhook(max_per_second=1000) as webhook:
        with flooded(webhook, 400):
            pass
        gc.collect()
        began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with flooded(webhook, 1600) as flood:
            served = 0
            while flood.poll() is None:
                served += webhook.send().status == 200
                time.sleep(0.05)
        assert served >= 1, "a true sender is served meanwhile"
        told = len(webhook.controller.told)
        assert told == served
        assert webhook.send().status == 200
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began
        counts = webhook.counted
    assert set(counts) <= {"no_credentials", "bad_token", "bad_signature", "bad_http", "accepted", "crowded_out"}
    assert sum(counts.values()) >= 2000 + served
    assert min(counts[name] for name in ("no_credentials", "bad_token", "bad_signature", "bad_http")) > 100
    assert grown < 20 * 1024 * (1 if sys.platform == "linux" else 1024), f"{grown} more at its height"
    forged = [one for one in caplog.messages if not one.endswith("fires: accepted")]  # each change has a line
    assert len(forged) <= 10, forged


@pytest.mark.slow
def test_webhook_flood_does_not_change_inference_answers(tmp_path: Path) -> None:
    served = Served(tmp_path, lambda: scripted_models(0.7))
    try:
        calm = [list(served.client.generate("def add(a, b):", max_tokens=64, timeout=60)) for _ in range(2)]
        with Webhook() as webhook, flooded(webhook, 800) as flood:
            stormy = []
            while flood.poll() is None or not stormy:
                stormy.append(list(served.client.generate("def add(a, b):", max_tokens=64, timeout=60)))
            assert webhook.controller.told == []
        assert {text(events) for events in stormy} == {text(events) for events in calm}
    finally:
        served.close()


def text(events: list[Any]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.chunk.token_ids)


def test_webhook_applies_an_alert_whose_sender_hangs_up_at_once() -> None:
    body = notification()
    head = f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer()['Authorization']}\r\n"
    with Webhook() as webhook:
        with webhook.socket() as one:
            one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: webhook.counted == {"accepted": 1})
