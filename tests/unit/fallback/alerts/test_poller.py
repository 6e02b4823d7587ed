"""The poll reports what fires, and nothing when it fails."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from draftd.errors import QueueFull
from draftd.fallback.alerts.poller import Poller
from draftd.fallback.leases import Notice
from draftd.settings import WebhookSettings
from tests.http_server import Answer, Request, serving
from tests.wait_until import until
from tests.webhook import PAYLOADS, Counting

LISTED = (PAYLOADS / "alertmanager-api.json").read_bytes()
STARTS = 1769860800.157


@dataclass
class Source:
    """A fake alerts API whose answers a test decides."""

    status: int = 200
    body: Any = LISTED
    hang: threading.Event | None = None
    asked: list[Request] = field(default_factory=list)
    url: str = ""

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        if self.hang is not None:
            self.hang.wait(30)
        return self.status, self.body


@contextmanager
def served() -> Iterator[Source]:
    source = Source()
    with serving(source.answer) as source.url:
        try:
            yield source
        finally:
            if source.hang is not None:
                source.hang.set()


class Polling:
    """A poller and its reports."""

    def __init__(self, url: str, instance: str = "mini-1", seconds: float = 5.0, **settings: Any) -> None:
        self.told: list[list[Notice]] = []
        self.take: Callable[[Sequence[Notice]], None] = lambda firing: self.told.append(list(firing))
        self.telemetry = Counting()
        webhook_settings = WebhookSettings(**{"poll_url": url, "poll_seconds": 0.1} | settings)
        self.poller = Poller(
            webhook_settings, lambda firing: self.take(firing), self.telemetry, lambda: instance, seconds=seconds
        )

    def __enter__(self) -> Polling:
        self.poller.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.poller.close(10)

    def counted(self, result: str) -> int:
        with self.telemetry.lock:
            return self.telemetry.polls[result]


def listed(**changed: Any) -> dict[str, Any]:
    (one,) = json.loads(LISTED)
    labels = {name: value for name, value in (one["labels"] | changed.pop("labels", {})).items() if value}
    return dict(one | {"labels": labels} | changed)


def test_alert_poller_reports_all_firing_alerts_at_each_poll() -> None:
    with served() as source, Polling(source.url) as polling:
        until(lambda: len(polling.told) >= 2)
        assert [one.fingerprint for one in polling.told[0]] == ["2b03077e5bc4dbfc"]
        assert (polling.told[0][0].starts_at, polling.told[0][0].firing) == (STARTS, True)
        assert polling.told[0] == polling.told[1]
        source.body = b"[]"
        until(lambda: polling.told[-1] == [])
        until(lambda: polling.counted("ok") >= 3)
    assert polling.telemetry.notifications == {}


def test_alert_poller_sends_new_token_after_a_settings_reload() -> None:
    with served() as source, Polling(source.url, poll_token="sesame") as polling:
        until(lambda: bool(polling.told))
        polling.poller.reload(WebhookSettings(poll_url=source.url, poll_token="open"))
        until(lambda: source.asked[-1].headers["authorization"] == "Bearer open")
    assert source.asked[0].headers["authorization"] == "Bearer sesame"


@pytest.mark.parametrize("path", ["", "/api/alertmanager/grafana"])
def test_alert_poller_sends_the_same_query_to_alertmanager_and_grafana(path: str) -> None:
    with served() as source, Polling(source.url + path, poll_token="sesame") as polling:
        until(lambda: bool(polling.told))
    first_request = source.asked[0]
    assert first_request.path == f"{path}/api/v2/alerts"
    assert first_request.headers["authorization"] == "Bearer sesame"
    assert first_request.query == {
        "active": ["true"],
        "unprocessed": ["true"],
        "silenced": ["false"],
        "inhibited": ["false"],
        "filter": ['fallback_level=~".+"'],
    }


def test_alert_poller_ignores_foreign_suppressed_and_levelless_alerts() -> None:
    others = [
        listed(labels={"alertname": "Disk"}),
        listed(labels={"instance": "mini-2"}),
        listed(labels={"fallback_level": ""}),
        listed(labels={"fallback_level": "full"}),
        listed(status={"state": "suppressed"}),
        listed(fingerprint="own"),
    ]
    with served() as source:
        source.body = json.dumps(others).encode()
        with Polling(source.url) as polling:
            until(lambda: bool(polling.told))
    assert [one.fingerprint for one in polling.told[0]] == ["own"]


@pytest.mark.parametrize(
    ("changed", "result"),
    [
        ({"status": 500}, "refused"),
        ({"status": 401}, "refused"),
        ({"status": 302, "body": "http://127.0.0.1:1/elsewhere"}, "refused"),
        ({"status": 204, "body": b""}, "refused"),
        ({"body": b"<html>"}, "invalid"),
        ({"body": b'{"alerts": []}'}, "invalid"),
        ({"body": b'[{"labels": {}}]'}, "invalid"),
        ({"body": b"[" * 100_000}, "invalid"),
        ({"body": b" " * 9_000_000}, "too_large"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_alert_poller_reports_no_alerts_and_logs_once_on_bad_answers(
    changed: dict[str, Any], result: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with served() as source:
        for name, value in changed.items():
            setattr(source, name, value)
        with Polling(source.url) as polling:
            until(lambda: polling.counted(result) >= 2, 20)
            assert polling.told == []
            source.status, source.body = 200, LISTED
            until(lambda: polling.counted("ok") >= 1, 20, "it works again")
            assert polling.told
    assert len([line for line in caplog.messages if "cannot be polled" in line]) == 1
    assert len([line for line in caplog.messages if "polled at" in line and "again" in line]) == 1
    assert set(polling.telemetry.polls) == {result, "ok"}


def test_alert_poller_counts_an_unreachable_source_as_failure(caplog: pytest.LogCaptureFixture) -> None:
    with Polling("http://127.0.0.1:9") as polling:
        until(lambda: polling.counted("unreachable") >= 2)
    assert polling.told == []
    assert len(caplog.messages) == 1


def test_alert_poller_times_out_on_a_hanging_source() -> None:
    with served() as source:
        source.hang = threading.Event()
        with Polling(source.url, seconds=0.3) as polling:
            until(lambda: polling.counted("slow") >= 1)
        assert polling.told == []


def test_alert_poller_close_does_not_wait_for_a_pending_answer() -> None:
    with served() as source:
        source.hang = threading.Event()
        polling = Polling(source.url, seconds=60.0)
        polling.poller.start()
        until(lambda: bool(source.asked))
        began = time.monotonic()
        assert polling.poller.close(10)
        assert time.monotonic() - began < 9
        assert polling.poller.close(0)


def test_polled_alerts_refused_as_busy_are_delivered_at_the_next_poll() -> None:
    def full(firing: Sequence[Notice]) -> None:
        raise QueueFull("many wait")

    with served() as source:
        polling = Polling(source.url)
        keep, polling.take = polling.take, full
        with polling:
            until(lambda: polling.counted("busy") >= 1)
            polling.take = keep
            until(lambda: bool(polling.told))


def test_alert_poller_doubles_its_wait_per_failure_up_to_a_bound() -> None:
    polling = Polling("http://127.0.0.1:9", poll_seconds=30)
    waits = []
    for failures in (0, 1, 2, 3, 4, 50):
        polling.poller._failures = failures
        waits.append(polling.poller._wait())
    assert waits == [30, 60, 120, 240, 300, 300]
    rare = Polling("http://127.0.0.1:9", poll_seconds=3600)
    rare.poller._failures = 9
    assert rare.poller._wait() == 3600
