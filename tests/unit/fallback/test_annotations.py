"""Each transition is marked in Grafana; a slow, refusing or absent Grafana affects nothing else."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr

from draftd.errors import ConfigError
from draftd.fallback.annotations import Annotator
from draftd.journal import Journal, Subject
from draftd.settings import AnnotationSettings, load_settings
from tests.fake_engine import Told
from tests.http_server import Answer, Request, serving
from tests.wait_until import until

AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
TOKEN = "glsa_a-token-of-the-tests"
DONE: Answer = (200, {"message": "Annotation added", "id": 1})


class Desk:
    """A Grafana that gives these `answers`, the last one for ever, and a daemon that sends to it."""

    def __init__(self, *answers: Answer | Callable[[], Answer]) -> None:
        self.answers = list(answers) or [DONE]
        self.requests: list[Request] = []
        self.journal, self.told = Journal(clock=lambda: AT), Told()

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        now = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return now() if callable(now) else now

    def step(self, number: int = 0) -> None:
        self.journal.record(Subject.LEVEL, "full", f"short_block {number}", "acceptance_floor", "0.31 in 300 s")

    @contextmanager
    def annotating(self, url: str, **more: Any) -> Iterator[Annotator]:
        settings = AnnotationSettings(grafana_url=url, grafana_token=SecretStr(TOKEN))
        annotator = Annotator(settings, self.journal, self.told, lambda: "mini-1", **{"first_wait": 0.02, **more})
        annotator.start()
        try:
            yield annotator
        finally:
            annotator.close(5.0)

    @property
    def texts(self) -> list[str]:
        return [request.body["text"].splitlines()[0] for request in self.requests]


@contextmanager
def away() -> Iterator[str]:
    """Returns an address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_grafana_annotation_after_a_settings_reload_uses_the_new_token() -> None:
    desk = Desk()
    with serving(desk.answer) as url, desk.annotating(url) as annotator:
        desk.step()
        until(lambda: desk.told.annotations == ["sent"])
        annotator.reload(AnnotationSettings(grafana_url=url, grafana_token=SecretStr("another")))
        desk.step()
        until(lambda: desk.told.annotations == ["sent"] * 2)
    assert [one.headers["authorization"] for one in desk.requests] == [f"Bearer {TOKEN}", "Bearer another"]


def test_fallback_transition_is_posted_as_an_organisation_wide_grafana_annotation() -> None:
    desk = Desk()
    with serving(desk.answer) as url, desk.annotating(f"{url}/grafana/"):
        desk.step(3)
        until(lambda: desk.told.annotations == ["sent"])
    (request,) = desk.requests
    assert (request.method, request.path) == ("POST", "/grafana/api/annotations")
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.body["time"] == 1772366400250
    assert request.body["tags"] == ["draftd", "level", "mini-1"]
    assert request.body["text"] == "Fallback level: full → short_block 3\nacceptance_floor\n0.31 in 300 s"
    assert not request.body.get("dashboardUID")
    assert not request.body.get("dashboardId")
    assert not request.body.get("panelId")


def test_flag_change_is_posted_as_a_grafana_annotation_with_html_escaped() -> None:
    desk = Desk()
    with serving(desk.answer) as url, desk.annotating(url):
        desk.journal.record(Subject.FLAG, "on", "off", "<b>somebody</b> & co")
        until(lambda: desk.told.annotations == ["sent"])
    assert desk.requests[0].body["tags"] == ["draftd", "flag", "mini-1"]
    assert desk.requests[0].body["text"] == "Feature flag: on → off\n&lt;b&gt;somebody&lt;/b&gt; &amp; co"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 302])
def test_grafana_annotation_rejected_with_4xx_or_redirect_is_skipped_and_logged_once(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    refusal: Answer = (302, "/login") if code == 302 else (code, {"message": f"no, {TOKEN}"})
    desk = Desk(refusal, refusal, DONE)
    with serving(desk.answer) as url, desk.annotating(url):
        for number in range(3):
            desk.step(number)
        until(lambda: desk.told.annotations == ["refused", "refused", "sent"], what=str(desk.told.annotations))
    assert desk.texts == [f"Fallback level: full → short_block {number}" for number in range(3)]
    assert [record.levelno for record in caplog.records if "Grafana" in record.message] == [logging.WARNING]
    assert TOKEN not in caplog.text


def test_grafana_annotations_failing_with_503_or_429_are_retried_in_order(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    desk = Desk((503, {"message": "starting"}), (503, {"message": "starting"}), (429, {"message": "slow"}), DONE)
    with serving(desk.answer) as url, desk.annotating(url):
        desk.step(1)
        desk.step(2)
        until(lambda: desk.told.annotations == ["failed"] * 3 + ["sent"] * 2)
    assert [text[-1] for text in desk.texts] == ["1", "1", "1", "1", "2"]
    said = [record.message for record in caplog.records if "Grafana" in record.message]
    assert len(said) == 3, said
    assert "answers 503" in said[0]
    assert "answers 429" in said[1]
    assert said[2] == "transitions are marked in Grafana again"


def test_grafana_annotation_to_an_unreachable_server_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    with away() as url, desk.annotating(url):
        desk.step()
        until(lambda: len(desk.told.annotations) >= 3)
        assert set(desk.told.annotations) == {"failed"}
    assert len([record for record in caplog.records if "gives no answer" in record.message]) == 1


def test_grafana_annotation_queue_drops_oldest_without_blocking_while_grafana_hangs() -> None:
    go = threading.Event()

    def hang() -> Answer:
        go.wait(30)
        return DONE

    desk = Desk(hang)
    with serving(desk.answer) as url, desk.annotating(url, capacity=3):
        desk.step(0)
        until(lambda: bool(desk.requests))
        began = time.monotonic()
        for number in range(1, 100):
            desk.step(number)
        assert time.monotonic() - began < 4.5  # the annotator waits 5 s for an answer
        assert desk.told.annotations == ["dropped"] * 96
        go.set()
        until(lambda: desk.told.annotations[96:] == ["sent"] * 4)
    assert [text.split()[-1] for text in desk.texts] == ["0", "97", "98", "99"]


def test_grafana_annotation_times_out_and_is_retried_when_grafana_hangs() -> None:
    go = threading.Event()

    def hang() -> Answer:
        go.wait(30)
        return DONE

    desk = Desk(DONE, hang, DONE)
    with serving(desk.answer) as url, desk.annotating(url, answer_seconds=0.2):
        desk.step()
        until(lambda: desk.told.annotations == ["sent"])
        began = time.monotonic()
        desk.step()
        until(lambda: desk.told.annotations == ["sent", "failed", "sent"])
        assert time.monotonic() - began < 4.9  # the limit is 5 s where nothing is said
        go.set()


def test_grafana_annotations_queued_at_close_are_still_sent() -> None:
    desk = Desk()
    with serving(desk.answer) as url, desk.annotating(url) as annotator:
        for number in range(5):
            desk.step(number)
        assert annotator.close(10.0)
        assert desk.told.annotations == ["sent"] * 5
        for number in range(100):
            desk.step(number)
        assert desk.told.annotations == ["sent"] * 5  # nothing is queued any more


def test_annotator_close_returns_after_its_timeout_and_counts_dropped_annotations() -> None:
    go = threading.Event()

    def hang() -> Answer:
        go.wait(30)
        return DONE

    desk = Desk(hang)
    with serving(desk.answer) as url, desk.annotating(url) as annotator:
        for number in range(3):
            desk.step(number)
        until(lambda: bool(desk.requests))
        began = time.monotonic()
        assert not annotator.close(0.2)
        assert time.monotonic() - began < 4.9
        assert desk.told.annotations == ["dropped"] * 2
        go.set()


def test_annotator_close_skips_the_retry_wait_while_grafana_is_unreachable() -> None:
    desk = Desk()
    with away() as url, desk.annotating(url, first_wait=60.0) as annotator:
        desk.step()
        until(lambda: desk.told.annotations == ["failed"])
        began = time.monotonic()
        assert annotator.close(20.0)
        assert time.monotonic() - began < 10.0
        assert desk.told.annotations == ["failed", "failed", "dropped"]


def test_annotator_counts_annotations_as_failed_on_an_internal_exception_and_still_closes() -> None:
    desk = Desk()

    def broken() -> str:
        raise RuntimeError("no name")

    settings = AnnotationSettings(grafana_url="http://127.0.0.1:9")
    annotator = Annotator(settings, desk.journal, desk.told, broken, first_wait=0.02)
    annotator.start()
    desk.step()
    until(lambda: desk.told.annotations[:2] == ["failed", "failed"])
    assert annotator.close(10.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "grafana.example.org"}, "got 'grafana.example.org'; allowed: http://"),
        ({"url": "https://me:secret@grafana.example.org"}, "got '…@grafana.example.org'"),
        (
            {"url": "http://grafana.example.org", "token": TOKEN},
            "https, unless it is on loopback: grafana_token is sent there",
        ),
        ({"url": "https://grafana.example.org", "token": "two words"}, "annotations.grafana_token"),
    ],
)
def test_annotation_settings_refuse_bad_url_or_token_sent_over_plain_http(settings: dict[str, str], said: str) -> None:
    variables = {f"DRAFTD_ANNOTATIONS__GRAFANA_{name.upper()}": value for name, value in settings.items()}
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {}, variables)
    assert said in refused.value.message
    assert "secret" not in refused.value.message


def test_annotation_settings_accept_a_loopback_http_url_or_an_empty_url() -> None:
    assert AnnotationSettings(grafana_url="").grafana_url is None
    assert AnnotationSettings(grafana_url="http://127.0.0.1:3000/", grafana_token=SecretStr(TOKEN)).grafana_url == (
        "http://127.0.0.1:3000"
    )
