"""The webhook: its answers to authenticated senders, and its effect."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from draftd.core import FallbackLevel
from draftd.errors import ConfigError, NotServing, QueueFull
from draftd.fallback.alerts.authentication import ReplayGuard
from draftd.fallback.alerts.webhook import WebhookListener
from draftd.fallback.leases import Applied, Notice
from draftd.settings import WebhookSettings
from tests.wait_until import until
from tests.webhook import PAYLOADS, TOKEN, Answered, Counting, Webhook, alert, bearer, notification, payload, signed

STARTS = 1769860800.157  # 2026-01-31T12:00:00.157Z


@pytest.mark.parametrize("indent", [None, 2])
def test_webhook_accepts_signed_grafana_payload_and_forwards_level_and_severity(indent: int | None) -> None:
    body = json.dumps(payload("grafana-firing"), indent=indent).encode()
    with Webhook(token=None) as webhook:
        assert webhook.send(body, signed(body)).json == {"result": "accepted", "applied": {"accepted": 2}}
    floor, errors = webhook.controller.told
    assert floor == Notice(
        "DraftdAcceptanceBelowFloor", "c6eadffa33fcdf37", True, 1769845803.157, FallbackLevel.SHORT_BLOCK, False
    )
    assert (errors.level, errors.hard) == (FallbackLevel.AUTOREGRESSIVE, True)
    assert webhook.counted == {"accepted": 1}


def test_webhook_without_a_secret_accepts_grafana_payload_only_with_the_bearer_token() -> None:
    body = (PAYLOADS / "grafana-firing.json").read_bytes()
    with Webhook(secret=None) as webhook:
        assert webhook.send(body, {}).status == 401
        assert webhook.send(body, signed(body)).status == 401
        assert webhook.send(body, bearer()).status == 200
    assert len(webhook.controller.told) == 2


def test_webhook_with_token_and_secret_accepts_either_credential() -> None:
    body = notification()
    with Webhook() as webhook:
        for headers in (bearer(), signed(body), bearer("wrong") | signed(body, at=time.time() - 1)):
            assert webhook.send(body, headers).status == 200, headers
        assert webhook.send(body, bearer() | signed(body, "wrong")).status == 200


def test_webhook_reads_firing_and_resolved_alerts_from_alertmanager_payloads() -> None:
    with Webhook() as webhook:
        for name in ("alertmanager-firing", "alertmanager-resolved"):
            assert webhook.send((PAYLOADS / f"{name}.json").read_bytes()).status == 200
    firing, over = webhook.controller.told
    assert (firing.firing, over.firing) == (True, False)
    assert (firing.starts_at, firing.fingerprint) == (over.starts_at, over.fingerprint) == (STARTS, "2b03077e5bc4dbfc")


def test_webhook_log_of_a_flapping_alert_ends_on_its_current_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Webhook() as webhook:
        for name in ("firing", "resolved") * 2:
            applied = Applied.ACCEPTED if name == "firing" else Applied.RESOLVED
            webhook.controller.answer = lambda notices, applied=applied: [applied] * len(notices)  # type: ignore[misc]
            assert webhook.send((PAYLOADS / f"alertmanager-{name}.json").read_bytes()).status == 200
    said = [line.rpartition(": ")[2] for line in caplog.messages if line.startswith("webhook: ")]
    assert said == ["accepted", "resolved"] * 2


def test_webhook_reads_resolved_alerts_from_grafana_payloads() -> None:
    with Webhook() as webhook:
        assert webhook.send((PAYLOADS / "grafana-resolved.json").read_bytes()).status == 200
    assert [notice.firing for notice in webhook.controller.told] == [False]


@pytest.mark.parametrize(
    ("applied", "counted"),
    [
        (Applied.ACCEPTED, "accepted"),
        (Applied.RENEWED, "accepted"),
        (Applied.RESOLVED, "accepted"),
        (Applied.DUPLICATE, "duplicate"),
        (Applied.STALE, "out_of_order"),
        (Applied.FULL, "full"),
    ],
)
def test_webhook_response_and_metric_report_how_the_alert_was_applied(applied: Applied, counted: str) -> None:
    with Webhook() as webhook:
        webhook.controller.answer = lambda notices: [applied]
        assert webhook.send().json == {"result": counted, "applied": {applied.value: 1}}
    assert webhook.counted == {counted: 1}


@pytest.mark.parametrize("error", [QueueFull("many wait", retry_after=2.5), NotServing("it is being loaded")])
def test_webhook_answers_503_with_retry_after_when_busy_and_accepts_the_retry(error: Exception) -> None:
    def refuse(notices: Sequence[Notice]) -> list[Applied]:
        raise error

    body = notification()
    headers = signed(body)
    with Webhook() as webhook:
        accept, webhook.controller.answer = webhook.controller.answer, refuse
        answered = webhook.send(body, headers)
        assert (answered.status, answered.headers["Retry-After"]) == (503, "3" if "many" in str(error) else "5")
        assert str(error) in answered.error
        webhook.controller.answer = accept
        assert webhook.send(body, headers).status == 200, "the same second, the same signature: not a replay"
    assert webhook.counted == {"busy": 1, "accepted": 1}


def test_webhook_answers_500_on_internal_error_and_serves_the_next_request(caplog: pytest.LogCaptureFixture) -> None:
    def fail(notices: Sequence[Notice]) -> list[Applied]:
        raise RuntimeError("a bug")

    with Webhook() as webhook:
        accept, webhook.controller.answer = webhook.controller.answer, fail
        answered = webhook.send()
        assert answered.status == 500
        assert "a bug" not in answered.error
        webhook.controller.answer = accept
        assert webhook.send().status == 200
    assert webhook.counted == {"failed": 1, "accepted": 1}
    assert "a bug" in caplog.text


@pytest.mark.parametrize(
    ("alerts", "instance", "counted"),
    [
        ([alert(instance="mini-2")], "mini-1", "other_instance"),
        ([alert(fallback_level="")], "mini-1", "no_level"),
        ([alert(alertname="DraftdAbsent", fallback_level="", severity="critical")], "mini-1", "no_level"),
        ([alert(instance="mini-1")], "mini-1", "accepted"),
        ([alert()], "mini-1", "accepted"),  # names no instance
        ([alert(instance="mini-2")], "", "accepted"),  # this daemon has no known name: better one alert too many
        ([alert(instance="mini-2"), alert(instance="mini-1")], "mini-1", "accepted"),
        ([alert(alertname="Disk"), alert()], "mini-1", "accepted"),
        ([alert(alertname="Disk"), alert(instance="mini-2")], "mini-1", "other_instance"),
    ],
)
def test_webhook_acts_only_on_known_alerts_with_a_level_for_this_instance(
    alerts: list[dict[str, object]], instance: str, counted: str
) -> None:
    with Webhook(instance) as webhook:
        answered = webhook.send(notification(*alerts))
        assert (answered.status, answered.json["result"]) == (200, counted)
        assert len(webhook.controller.told) == (counted == "accepted")
        assert len(answered.json.get("ignored", [])) == len(alerts) - len(webhook.controller.told)
    assert webhook.counted == {counted: 1}


def test_webhook_response_lists_ignored_alerts_with_the_reason() -> None:
    with Webhook() as webhook:
        others = [alert(alertname="Disk"), alert(), alert(instance="mini-2")]
        assert webhook.send(notification(*others)).json["ignored"] == [
            "alerts[0]: unknown_alert ('Disk')",
            "alerts[2]: other_instance ('DraftdAcceptanceBelowFloor')",
        ]


@pytest.mark.parametrize(("method", "status"), [("GET", 405), ("PUT", 405), ("HEAD", 405), ("DELETE", 405)])
def test_webhook_answers_405_to_methods_except_post_and_404_to_unknown_paths(method: str, status: int) -> None:
    with Webhook() as webhook:
        answered = webhook.send(b"", method=method)
        assert (answered.status, answered.headers["Allow"]) == (status, "POST")
        assert webhook.send(path="/", method=method).status == 404
        assert webhook.send(path="/v1/alerts/", method=method).status == 404
    assert webhook.counted == {"bad_method": 1, "bad_path": 2}


def test_webhook_answers_429_with_retry_after_above_the_rate_limit() -> None:
    with Webhook(max_per_second=2) as webhook:
        answers = [webhook.send() for _ in range(4)]
        assert [one.status for one in answers[:2]] == [200, 200]
        late = [one for one in answers if one.status == 429]
        assert late
        assert {one.headers["Retry-After"] for one in late} == {"1"}
        until(lambda: webhook.send().status == 200, 5, "the rate lets another through")
    assert webhook.counted["rate_limited"] >= len(late)


@pytest.mark.parametrize("by", ["bearer", "signed"])
def test_webhook_applies_rate_limit_before_reading_the_body(by: str) -> None:
    headers = bearer() if by == "bearer" else signed(b"")  # now: a signature ages
    with Webhook(max_per_second=0.1, body_seconds=60.0, request_seconds=60.0) as webhook:
        assert webhook.send().status == 200
        with webhook.socket() as connection:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            connection.sendall(f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n{lines}\r\n".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 429")
    assert webhook.counted == {"accepted": 1, "rate_limited": 1}


def test_webhook_with_full_replay_guard_answers_503_and_still_refuses_replays() -> None:
    bodies = [notification(alert(step=str(number))) for number in range(2)]
    with Webhook() as webhook:
        webhook.listener._senders.replay_guard = ReplayGuard(600.0, capacity=1)
        first = signed(bodies[0])
        assert webhook.send(bodies[0], first).status == 200
        answered = webhook.send(bodies[1], signed(bodies[1]))
        assert answered.status == 503
        assert 590 <= int(answered.headers["Retry-After"]) <= 600
        assert webhook.send(bodies[0], first).status == 401, "it is still remembered"
        assert webhook.send().status == 200, "a token needs no memory"
    assert webhook.counted == {"accepted": 2, "busy": 1, "replayed": 1}


def test_webhook_on_a_taken_port_raises_configuration_error_naming_the_port_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="free") as refused:
            Webhook(port=port)
    assert (refused.value.field, refused.value.value) == ("webhook.port", port)


def test_webhook_on_an_unresolvable_host_raises_error_naming_the_host_setting(tmp_path: Path) -> None:
    settings = WebhookSettings(token=TOKEN, port=0).model_copy(update={"host": "nowhere.invalid"})
    with pytest.raises(ConfigError) as refused:
        WebhookListener(settings, list, Counting(), str).start()
    assert refused.value.field == "webhook.host"


def test_webhook_can_rebind_a_port_just_closed_by_another_webhook() -> None:
    with Webhook() as first:
        first.send()
    with Webhook(port=first.port) as second:
        assert second.send().status == 200


def test_webhook_close_ends_its_threads_and_refuses_connections() -> None:
    webhook = Webhook()
    before = {thread.name for thread in threading.enumerate()}
    assert any(name.startswith("draftd-webhook") for name in before)
    assert webhook.listener.close(10)
    assert webhook.listener.close(0), "closing again is harmless"
    with pytest.raises(OSError, match="refused|reset"):
        webhook.send()
    until(lambda: not any(thread.name.startswith("draftd-webhook") for thread in threading.enumerate()))


def test_webhook_listens_again_after_its_thread_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("whatever it is")

    def answered() -> bool:
        with contextlib.suppress(OSError):
            return webhook.send().status == 200
        return False

    with Webhook() as webhook:
        assert answered()
        connections = webhook.listener._connections
        assert connections is not None
        monkeypatch.setattr(connections, "_take", fails)
        monkeypatch.setattr(connections, "_outage", None)  # it cannot even log the failure
        assert not answered()
        until(answered, 30, "it is begun again")


def test_webhook_close_returns_false_after_its_timeout_while_a_request_hangs() -> None:
    release = threading.Event()

    def hang(notices: Sequence[Notice]) -> list[Applied]:
        assert release.wait(30)
        return []

    webhook = Webhook()
    webhook.controller.answer = hang
    answers: list[Answered] = []

    def send() -> None:
        with contextlib.suppress(OSError):
            answers.append(webhook.send())

    sender = threading.Thread(target=send)
    sender.start()
    until(lambda: any("acting" in thread.name for thread in threading.enumerate()), what="it hangs")
    assert not webhook.listener.close(0.2), "what is left behind is owned to"
    release.set()
    sender.join(20)
    assert webhook.listener.close(10)


def test_webhook_answers_expect_100_continue_only_for_authenticated_senders() -> None:
    """curl does so with larger bodies: without an answer it would wait a second."""
    body = notification()
    with Webhook() as webhook, webhook.socket() as connection:
        head = f"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer()['Authorization']}\r\n"
        connection.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    with Webhook() as webhook, webhook.socket() as connection:
        connection.sendall(b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 401"), "who is not known need not send it"


def test_webhook_with_a_certificate_serves_https_and_rejects_plain_http(certified: tuple[Path, Path]) -> None:
    cert, key = certified
    trusting = ssl.create_default_context(cafile=cert)
    with Webhook(tls=trusting, tls_cert=cert, tls_key=key) as webhook:
        assert webhook.send().status == 200
        with webhook.socket() as plain:
            plain.sendall(b"POST /v1/alerts HTTP/1.1\r\n\r\n")
            while plain.recv(1000):
                pass
        until(lambda: webhook.counted == {"accepted": 1, "bad_http": 1})
        assert webhook.send().status == 200


def test_webhook_evicts_stalled_tls_handshakes_to_serve_a_real_request(certified: tuple[Path, Path]) -> None:
    cert, key = certified
    trusting = ssl.create_default_context(cafile=cert)
    with (
        Webhook(tls=trusting, tls_cert=cert, tls_key=key, request_seconds=20.0) as webhook,
        contextlib.ExitStack() as held,
    ):
        waiting = [held.enter_context(webhook.socket()) for _ in range(100)]
        for number, connection in enumerate(waiting):
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"\x16\x03\x01" if number % 2 else b"")
        assert webhook.send().status == 200
        until(lambda: webhook.counted.get("crowded_out", 0) >= 36)
        for connection in waiting[:36]:
            connection.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b"", "it has been hung up on"
    assert webhook.counted["accepted"] == 1


def test_webhook_close_does_not_wait_for_a_stalled_tls_handshake(certified: tuple[Path, Path]) -> None:
    cert, key = certified
    webhook = Webhook(tls_cert=cert, tls_key=key, request_seconds=60.0)
    with webhook.socket() as connection, webhook.socket():
        connection.sendall(b"\x16\x03\x01")
        time.sleep(0.1)
        assert webhook.listener.close(10)


def test_webhook_with_unusable_tls_key_raises_configuration_error_naming_the_setting(
    certified: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, _ = certified
    other = tmp_path / "other.key"
    other.write_text("no key")
    with pytest.raises(ConfigError) as refused:
        Webhook(tls_cert=cert, tls_key=other)
    assert refused.value.field == "webhook.tls_key"


def test_webhook_server_header_names_no_library() -> None:
    with Webhook() as webhook:
        assert webhook.send().headers["Server"] == "draftd"
