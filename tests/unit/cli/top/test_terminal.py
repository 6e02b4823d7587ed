"""`draftd top` on a terminal of its own, against a daemon that runs: however it ends, the terminal is as it was."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.terminal import ENTER_SCREEN, LEAVE_SCREEN, Ended, Terminal, terminal
from tests.unit.cli.conftest import WITHOUT_SETTINGS

Open = Callable[..., contextlib.AbstractContextManager[Terminal]]


@pytest.fixture
def top(daemon: str, tmp_path: Path) -> Open:
    def run(*options: str, target: str = daemon) -> contextlib.AbstractContextManager[Terminal]:
        command = [sys.executable, "-m", "draftd.cli.main", "top", "--target", target, "--interval", "0.2", *options]
        return terminal(command, tmp_path, WITHOUT_SETTINGS)

    return run


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda screen: screen.type("q"), 0),
        (lambda screen: screen.type("\x1a\x03"), 0),  # Ctrl-Z, which does nothing, then Ctrl-C
        (lambda screen: screen.signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda screen: screen.signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["q", "Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_top_restores_the_terminal_after_quit_key_or_signal(
    top: Open, tmp_path: Path, end: Callable[[Terminal], None], code: int
) -> None:
    with top("--save", str(tmp_path / "top.svg")) as screen:
        screen.shows("serving for")
        end(screen)
        assert screen.end() == Ended(code, restored=True)
        assert screen.said.count(ENTER_SCREEN) == screen.said.count(LEAVE_SCREEN) == 1
        assert screen.said.index(LEAVE_SCREEN) > screen.said.index(ENTER_SCREEN)
        assert "Traceback" not in screen.said
    assert (tmp_path / "top.svg").exists() == (code == 0)


def test_top_without_a_daemon_prints_an_error_and_never_enters_the_full_screen(top: Open) -> None:
    with top(target="127.0.0.1:1") as screen:
        assert screen.end() == Ended(1, restored=True)
        assert "draftd serve" in screen.said
        assert ENTER_SCREEN not in screen.said


def test_top_once_on_a_terminal_prints_without_entering_the_full_screen(top: Open) -> None:
    with top("--once") as screen:
        assert screen.end() == Ended(0, restored=True)
        assert ENTER_SCREEN not in screen.said
        assert "headroom" in screen.words
