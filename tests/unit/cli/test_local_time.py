"""Times in text are local and name their zone; in JSON they are UTC."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from draftd.cli import logs
from draftd.cli.commands import fallback
from draftd.cli.figures import in_local_time
from draftd.fallback.ladder import Cause, Hold, Signal
from draftd.fronts.grpc import reply
from draftd.journal import Subject, Transition
from draftd.protocol import plain
from draftd.settings import LogSettings
from draftd.v1 import control_pb2 as pb
from draftd.v1.inference_pb2 import GetModelResponse
from tests.fake_fallback import ALERT, LEASE, fallback_state

AT = datetime(2026, 11, 26, 17, 45, tzinfo=UTC)


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is an hour ahead of UTC."""
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def now() -> datetime:
    return AT.astimezone()


def event() -> pb.Transition:
    hold = Hold(1, AT.timestamp() + 600)
    return reply.transition(Transition(AT, Subject.LEVEL, "full", "light_draft", "hold", hold.evidence, 7))


def test_events_command_prints_local_times_in_text_and_utc_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fallback, "_now", now)
    fallback._print_event(event())
    said = " ".join(capsys.readouterr().out.split())
    assert "7 18:45:00 CET" in said
    assert "until 2026-11-26 18:55:00 CET" in said
    document = json.dumps(plain(event()))
    assert '"at": "2026-11-26T17:45:00Z"' in document
    assert "until 2026-11-26 17:55:00 UTC" in document


def test_status_and_level_commands_print_local_times_in_text_and_utc_in_json() -> None:
    start = AT.timestamp()
    hold = Hold(1, start + 600)
    state = fallback_state(
        position=1,
        since=start - 60,
        signal=Signal(Cause.HOLD, LEASE.signal.asks_for, hold.evidence),
        hold=hold,
        signals=(LEASE.signal,),
        leases=(LEASE,),
    )
    response = reply.fallback(state)
    text = "\n".join(str(value) for _, value in fallback.lines(response, now(), GetModelResponse()))
    assert "until 18:55:00 CET (10 min left)" in text
    assert "until 2026-11-26 18:55:00 CET" in text
    assert f"fired since {datetime.fromtimestamp(ALERT.starts_at):%Y-%m-%d %H:%M:%S} CET" in text
    assert "UTC" not in text
    document = json.dumps(plain(response))
    assert "CET" not in document
    assert '"until": "2026-11-26T17:55:00Z"' in document


def test_log_lines_have_local_times_in_text_format_and_utc_in_json_format() -> None:
    record = logging.makeLogRecord({"msg": "held %s", "args": (Hold(1, AT.timestamp()).evidence,), "levelno": 20})
    record.created, record.levelname = AT.timestamp(), "INFO"
    for form, at, until in (
        ("text", "2026-11-26T18:45:00.000+01:00", "2026-11-26 18:45:00 CET"),
        ("json", "2026-11-26T17:45:00.000+00:00", "2026-11-26 17:45:00 UTC"),
    ):
        out = io.StringIO()
        handler = logging.StreamHandler(out)
        handler.setFormatter(logs.formatter(LogSettings.model_validate({"format": form})))
        handler.emit(record)
        assert at in out.getvalue()
        assert until in out.getvalue()


def test_local_time_conversion_changes_full_utc_timestamps_and_leaves_partial_ones() -> None:
    assert in_local_time("at 12:00:00 UTC, of 2026-11-26 UTC") == "at 12:00:00 UTC, of 2026-11-26 UTC"
    assert in_local_time("2026-11-26 23:30:00 UTC") == "2026-11-27 00:30:00 CET"
