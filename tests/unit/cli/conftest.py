"""Fixtures: one scripted daemon for all tests of the commands, and a way to run a command against it."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from draftd.cli.main import main
from tests import forked_daemon, scripted_daemon

WITHOUT_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL_"))}


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a daemon on a scripted pair."""
    flag_file = str(tmp_path_factory.mktemp("flag") / "flags.json")
    with forked_daemon.serving(scripted_daemon.main, flag_file, environ=WITHOUT_SETTINGS) as running:
        yield running.address


@pytest.fixture
def draftd(daemon: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs `draftd …` against that daemon, through the script's entry point, in this
    process."""

    def run(*arguments: str, stdin: str = "", **environ: str) -> Ran:
        with monkeypatch.context() as patch:
            for name, value in ({"DRAFTD_TARGET": daemon} | environ).items():
                patch.setenv(name, value)
            return in_process(arguments, patch, capsys, stdin)

    return run


def in_process(
    arguments: Sequence[str], patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: str = ""
) -> Ran:
    """Runs `draftd …` through the same entry point as the script, in this process."""
    capsys.readouterr()
    patch.setattr(sys, "argv", ["draftd", *arguments])
    patch.setattr(sys, "stdin", io.StringIO(stdin))
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    said = capsys.readouterr()
    return Ran(code, said.out, said.err)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restores the log, which `draftd serve` sets up for its process, here the tests' own."""
    root, names = logging.getLogger(), ("draftd", "draftd.daemon")
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
        logging.getLogger(name).handlers.clear()
