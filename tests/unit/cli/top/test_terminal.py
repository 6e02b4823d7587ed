"""`draftd top` on a terminal, against daemons that really run: keys act, and the terminal is left as it was."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftd.client.client import DraftdClient
from tests.scripted_daemon import scripted_daemon
from tests.stack.components import free_ports
from tests.terminal import ENTER_SCREEN, HIDE_CURSOR, LEAVE_SCREEN, SHOW_CURSOR, Ended, Terminal, terminal
from tests.unit.cli.conftest import WITHOUT_SETTINGS
from tests.waiting import until

Open = Callable[..., contextlib.AbstractContextManager[Terminal]]

# The command as it is, but that its screen fails once it has been drawn a few times.
BROKEN = """
import draftd.cli.top.live as live
from draftd.cli.main import main
whole, drawn = live.screen, []
def breaking(*arguments):
    drawn.append(None)
    if len(drawn) > 3:
        raise RuntimeError("a bug in the screen")
    return whole(*arguments)
live.screen = breaking
main()
"""


@pytest.fixture
def top(daemon: str, tmp_path: Path) -> Open:
    def run(*options: str, target: str = daemon, program: str | None = None, **size: int) -> object:
        run = ("-c", program) if program is not None else ("-m", "draftd.cli.main")
        command = [sys.executable, *run, "top", "--target", target, "--interval", "0.2", *options]
        return terminal(command, tmp_path, WITHOUT_SETTINGS, **size)

    return run  # type: ignore[return-value]


@pytest.fixture
def client(daemon: str) -> Iterator[DraftdClient]:
    with DraftdClient(daemon) as client:
        yield client
        client.set_flag("on")


def left_in_order(screen: Terminal) -> None:
    """The terminal shows what it showed before, with its cursor."""
    assert screen.said.count(ENTER_SCREEN) == screen.said.count(LEAVE_SCREEN) == 1
    assert screen.said.index(LEAVE_SCREEN) > screen.said.index(ENTER_SCREEN)
    assert screen.said.rindex(SHOW_CURSOR) > screen.said.rindex(HIDE_CURSOR)


def test_f_turns_the_flag_and_says_so_and_q_quits(top: Open, client: DraftdClient) -> None:
    with top() as screen:
        screen.shows("flag      on", "turn the flag off")
        screen.type("f")
        screen.shows("flag off (was on)", "flag      off", " on → off · set over gRPC", "turn the flag on")
        assert client.get_flag().evaluation.variant == "off"
        screen.type("f")
        screen.shows("flag on (was off)", "flag      on", " off → on · set over gRPC")
        assert client.get_flag().evaluation.variant == "on"
        screen.type("q")
        assert screen.end() == Ended(0, restored=True)
        left_in_order(screen)


def test_what_is_decoded_meanwhile_is_on_the_screen(top: Open, client: DraftdClient) -> None:
    with top() as screen:
        screen.shows("serving for")
        writing = threading.Event()

        def write() -> None:
            while not writing.is_set():
                for _ in client.generate("hello", max_tokens=64):
                    pass

        thread = threading.Thread(target=write)
        thread.start()
        try:
            until(lambda: (found := re.search(r"(\d+) tokens/s", screen.frame)) is not None and int(found[1]) > 0, 20)
            screen.shows(" 1 █", " 4 █", "depth, of 4", "finished  ", " in ")
        finally:
            writing.set()
            thread.join()


def test_p_holds_the_figures_until_it_is_pressed_again(top: Open, client: DraftdClient) -> None:
    with top() as screen:
        screen.shows("serving for")
        screen.type("p")
        screen.shows("paused")
        client.set_flag("off")
        screen.shows("go on", "flag      on")
        with pytest.raises(AssertionError):
            screen.shows("flag      off", seconds=1.0)
        screen.type("p")
        screen.shows("flag      off")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda screen: screen.type("\x03"), 0),
        (lambda screen: screen.signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda screen: screen.signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_however_it_is_ended_the_terminal_is_as_it_was(top: Open, end: Callable[[Terminal], None], code: int) -> None:
    with top() as screen:
        screen.shows("serving for")
        end(screen)
        assert screen.end() == Ended(code, restored=True)
        left_in_order(screen)
        assert "Traceback" not in screen.said


def test_an_error_of_its_own_is_told_on_a_terminal_that_is_as_it_was(top: Open) -> None:
    with top(program=BROKEN) as screen:
        assert screen.end() == Ended(1, restored=True)
        left_in_order(screen)
        assert "a bug in the screen" in screen.said.split(LEAVE_SCREEN)[1]


def test_ctrl_z_does_not_leave_its_screen_behind(top: Open) -> None:
    with top() as screen:
        screen.shows("serving for")
        assert not screen.suspends
        screen.type("\x1a")
        screen.type("q")
        assert screen.end() == Ended(0, restored=True)


def test_a_terminal_that_grows_is_filled(top: Open) -> None:
    with top(columns=80, lines=24) as screen:
        screen.shows("serving for")
        assert "acceptance, of 100%" not in screen.frame
        screen.resize(140, 45)
        screen.shows("acceptance, of 100%")
        until(lambda: len(screen.frame.rstrip("\r\n").splitlines()) == 45)


def test_a_wrong_target_is_one_line_and_no_screen(top: Open) -> None:
    with top(target="127.0.0.1:1") as screen:
        assert screen.end() == Ended(1, restored=True)
        assert "draftd serve" in screen.said
        assert ENTER_SCREEN not in screen.said


def test_a_daemon_that_goes_away_is_said_and_one_that_comes_back_is_followed(top: Open, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        with scripted_daemon(tmp_path, port=port):
            screen = stack.enter_context(top(target=f"127.0.0.1:{port}"))
            screen.shows("serving for")
            with DraftdClient(f"127.0.0.1:{port}") as client:
                for _ in client.generate("hello", max_tokens=64):
                    pass
            screen.shows("finished  1")
        screen.shows("no answer for", "no daemon answers", "– tokens/s")
        screen.type("f")
        screen.shows("the flag stays as it is")
        with scripted_daemon(tmp_path, port=port):
            screen.shows("it answers again", "serving for", "finished  0", seconds=30)
            screen.shows("0 tokens/s")
            screen.type("q")
            assert screen.end() == Ended(0, restored=True)


def test_a_daemon_that_hangs_is_said_as_one_that_is_away(top: Open, tmp_path: Path) -> None:
    with scripted_daemon(tmp_path) as hanging, top(target=f"127.0.0.1:{hanging.port}") as screen:
        screen.shows("serving for")
        hanging.popen.send_signal(signal.SIGSTOP)
        screen.shows("no answer for", "deadline exceeded")
        hanging.popen.send_signal(signal.SIGCONT)
        screen.shows("it answers again", "serving for")


def test_keys_act_while_a_daemon_hangs(top: Open, tmp_path: Path) -> None:
    with scripted_daemon(tmp_path) as hanging, top(target=f"127.0.0.1:{hanging.port}") as screen:
        screen.shows("serving for")
        hanging.popen.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # the next question is under way
        screen.type("p")
        screen.shows("paused", seconds=2.0)
        screen.type("q")
        assert screen.end(2.0) == Ended(0, restored=True)
