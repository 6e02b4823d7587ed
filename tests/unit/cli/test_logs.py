"""The daemon's log on stderr."""

from __future__ import annotations

import io
import json
import logging

from draftd.cli import logs
from draftd.settings import LogSettings


def written(settings: LogSettings) -> list[str]:
    stream = io.StringIO()
    logs.configure(settings, stream)
    logs.announce("serving a model on 127.0.0.1:1")
    logging.getLogger("draftd.server").info("a detail")
    logging.getLogger("draftd.server").warning("a client is %s", "slow")
    logging.getLogger("elsewhere").info("chatter")
    return stream.getvalue().splitlines()


def test_text_has_one_line_an_event_and_names_what_is_serious() -> None:
    assert written(LogSettings()) == [
        "draftd: serving a model on 127.0.0.1:1",
        "draftd: a detail",
        "draftd: warning: a client is slow",
    ]


def test_announcements_are_written_at_any_level() -> None:
    assert written(LogSettings(level="error")) == ["draftd: serving a model on 127.0.0.1:1"]


def test_json_has_one_object_an_event() -> None:
    entries = [json.loads(line) for line in written(LogSettings(format="json"))]
    assert [entry["level"] for entry in entries] == ["info", "info", "warning"]
    assert entries[2]["message"] == "a client is slow"
    assert entries[2]["logger"] == "draftd.server"


def test_a_traceback_goes_with_its_event() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(format="json"), stream)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("draftd.x").exception("it failed")
    assert "RuntimeError: broken" in json.loads(stream.getvalue())["traceback"]
