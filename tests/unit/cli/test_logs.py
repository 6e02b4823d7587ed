"""Log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from draftd.cli import logs
from draftd.settings import LogSettings


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("draftd")
    handlers, level, own_level = root.handlers[:], root.level, own.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)


def test_text_is_a_line_with_the_time_and_the_level_where_it_matters() -> None:
    out, began = io.StringIO(), datetime.now(UTC).replace(microsecond=0)
    logs.configure(LogSettings(), out)
    log = logging.getLogger("draftd.x")
    log.debug("unseen")
    log.info("seen")
    log.warning("took %d s", 3)
    logging.getLogger("other").info("unseen")
    lines = [line.split(" ", 1) for line in out.getvalue().splitlines()]
    assert [said for _, said in lines] == ["draftd: seen", "draftd: warning: took 3 s"]
    for at in (datetime.fromisoformat(at) for at, _ in lines):
        assert at.utcoffset() is not None
        assert began <= at <= datetime.now(UTC)


def test_json_is_an_object_a_line_with_the_exception() -> None:
    out = io.StringIO()
    logs.configure(LogSettings(format="json", level="error"), out)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("draftd.x").exception("it failed")
    logging.getLogger("draftd.x").warning("unseen")
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert (event["level"], event["logger"], event["message"]) == ("error", "draftd.x", "it failed")
    assert "ValueError: broken" in event["exception"]
