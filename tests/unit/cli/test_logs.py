"""Log lines."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import termios
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftd.cli import logs
from draftd.errors import ConfigError
from draftd.settings import LogSettings


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, own, daemon = (logging.getLogger(name) for name in (None, "draftd", "draftd.daemon"))
    daemon.setLevel(logging.INFO)  # as `draftd serve` does
    handlers, level, own_level = root.handlers[:], root.level, own.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)
    daemon.setLevel(logging.NOTSET)
    daemon.handlers.clear()


def test_text_log_line_has_a_timestamp_and_shows_the_level_only_for_warnings() -> None:
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


def test_json_log_writes_one_object_per_line_including_the_exception() -> None:
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


def test_log_file_rotates_by_size_and_stderr_gets_only_its_path_and_the_serving_line(tmp_path: Path) -> None:
    err, file = io.StringIO(), tmp_path / "draftd.log"
    logs.configure(LogSettings(file=file, file_bytes=1000, file_count=2), err)
    log = logging.getLogger("draftd.x")
    for number in range(100):
        log.info("number %d", number)
    logging.getLogger("draftd.daemon").info("serving")
    kept = [tmp_path / "draftd.log.2", tmp_path / "draftd.log.1", file]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert all(one.stat().st_size <= 1000 and one.stat().st_mode & 0o777 == 0o600 for one in kept)
    lines = "".join(one.read_text() for one in kept).splitlines()
    assert [line.partition("draftd: ")[2] for line in lines[-3:]] == ["number 98", "number 99", "serving"]
    announced = [line.partition("draftd: ")[2] for line in err.getvalue().splitlines()]
    assert announced == [f"the log is in {file}", "serving"]


def test_moved_log_file_receives_lines_until_the_log_is_reopened(tmp_path: Path) -> None:
    file, moved = tmp_path / "draftd.log", tmp_path / "moved.log"
    log = logs.configure(LogSettings(file=file), io.StringIO())
    file.rename(moved)
    logging.getLogger("draftd.x").info("before")
    log.reopen()
    log.write("a line of another process")
    assert moved.read_text().endswith("draftd: before\n")
    assert file.read_text() == "a line of another process\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_log_lines_go_to_stderr_when_the_disk_is_full() -> None:
    err = io.StringIO()
    logs.configure(LogSettings(file=Path("/dev/full")), err)
    logging.getLogger("draftd.x").info("first")
    logging.getLogger("draftd.daemon").info("serving")
    lines = [line.partition("draftd: ")[2] for line in err.getvalue().splitlines()]
    assert lines == [
        "the log is in /dev/full",
        "warning: the log file cannot be written (No space left on device): its lines go here until it can",
        "first",
        "serving",
    ]


def test_log_file_that_cannot_be_opened_raises_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log.file: .*a file that can be written \(No such file or directory\)"):
        logs.configure(LogSettings(file=tmp_path / "none" / "draftd.log"), io.StringIO())


def test_log_writes_download_progress_at_most_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out, times = io.StringIO(), iter((100.0, 109.0, 111.0, 112.0))
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: next(times)))
    logs.configure(LogSettings(), out)
    log = logging.getLogger("draftd.daemon")
    for done in (1, 2, 3):
        log.info("downloading a/b: %d of 200 MB", done)
        log.info("HTTP on port %d", done)
    log.info("loading model: a/b: 3%% of %s", "4 GB")
    said = [line.partition("draftd: ")[2] for line in out.getvalue().splitlines()]
    first, last = "downloading a/b: 1 of 200 MB", "downloading a/b: 3 of 200 MB"
    http = [f"HTTP on port {done}" for done in (1, 2, 3)]
    assert said == [first, http[0], http[1], last, http[2], "loading model: a/b: 3% of 4 GB"]


def test_log_on_a_terminal_rewrites_one_line_with_download_progress() -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 50))
    with os.fdopen(slave, "w") as out, os.fdopen(master, "rb") as terminal:
        logs.configure(LogSettings(), out)
        log = logging.getLogger("draftd.daemon")
        log.info("downloading a/b: 1 of 200 MB")
        log.info("downloading a/b-with-a-long-name: 2 of 200 MB, 1.0 MB/s, 98 s left")
        log.info("loading a/b")
        log.error("a/b: a file is cut off: it has 1 of 2 bytes: fetch it again")
        said = ""
        while said.count("\n") < 2:  # a terminal gives in pieces what was written to it
            said += os.read(terminal.fileno(), 4096).decode()
    *rewritten, last = said.split("\r\x1b[K")
    assert rewritten == ["", "downloading a/b: 1 of 200 MB", "downloading a/b… 2 of 200 MB, 1.0 MB/s, 98 s left"]
    assert re.fullmatch(
        r"\S+ draftd: loading a/b\r\n"
        r"\S+ draftd: error: a/b: a file is cut off: it has 1 of 2 bytes: fetch it again\r\n",
        last,
    ), "an error with figures is whole"
