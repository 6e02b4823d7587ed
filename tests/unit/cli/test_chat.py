"""`draftd generate` on a terminal, without a prompt: a chat."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from draftd.cli.commands.generate import hold_chat
from draftd.client.client import Ask
from draftd.client.gathering import Answer
from draftd.errors import DraftdError
from draftd.v1 import inference_pb2 as pb
from tests.terminal import terminal
from tests.unit.cli.conftest import WITHOUT_SETTINGS
from tests.wait_until import until


def conversation(typed: Sequence[str | BaseException], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Chats with these lines; returns the messages of each request. An answer is `re:` and the turn; `stop` interrupts,
    `fail` fails."""
    lines, asked = iter([*typed, EOFError()]), list[list[str]]()

    def read(prompt: str) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    def answer(ask: Ask) -> Answer:
        asked.append([text for _, text in ask.messages or ()])
        said = asked[-1][-1]
        if said == "stop":
            raise KeyboardInterrupt
        if said == "fail":
            raise DraftdError("no")
        return Answer(f"re:{said}", (), (), pb.Started(), pb.Finished())

    monkeypatch.setattr("builtins.input", read)
    hold_chat(Ask(messages=(("system", "s"),)), answer)
    return asked


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (["a", " ", "b"], [["s", "a"], ["s", "a", "re:a", "b"]]),
        (["a", "/reset", "b"], [["s", "a"], ["s", "b"]]),
        (["/help", KeyboardInterrupt(), "a"], [["s", "a"]]),
        (["stop", "a"], [["s", "stop"], ["s", "a"]]),
        (["fail", "a"], [["s", "fail"], ["s", "a"]]),
    ],
)
def test_chat_request_carries_earlier_answered_turns_since_the_last_reset(
    typed: list[str | BaseException], asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert conversation(typed, monkeypatch) == asked


def test_chat_terminal_recalls_typed_line_with_arrow_up_and_exits_on_ctrl_d(daemon: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftd", "generate", "-n", "8", "--target", daemon]
    with terminal(command, tmp_path, WITHOUT_SETTINGS) as shown:
        shown.shows("/reset", "> ", seconds=60)
        shown.type("hello there\n")
        until(lambda: shown.words.endswith("> ") and "8 tokens (" in shown.words, 60)
        shown.type("\x1b[A\n")  # ↑
        until(lambda: shown.words.endswith("> ") and shown.words.count("8 tokens (") == 2, 60)
        assert shown.words.count("> hello there") == 2
        shown.type("\x04")
        assert shown.end(60).code == 0
