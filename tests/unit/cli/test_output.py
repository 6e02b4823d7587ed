"""What commands print: nothing in it that a terminal would obey."""

from __future__ import annotations

import io
from contextlib import closing
from types import SimpleNamespace

import pytest
from rich.console import Console

from draftd.cli import output


def test_terminal_output_replaces_control_characters_with_visible_symbols() -> None:
    assert output.visible("\x1b]52;c;aGk=\x07\x9b31m é\t⟦x⟧\n") == "␛]52;c;aGk=␇\ufffd31m é\t⟦x⟧\n"


def test_cli_print_functions_all_escape_terminal_control_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "alert \x1b[2J"
    output.say(evil)
    output.complain(evil)
    output.print_fields([("name", evil)], 6)
    output.print_table(("column",), [(evil,)])
    out, err = capsys.readouterr()
    assert (out + err).count("alert ␛") == 4
    assert "\x1b[2J" not in out + err


def test_model_loading_progress_without_a_terminal_prints_at_most_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter((100.0, 100.0, 109.0, 111.0, 111.0))
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with closing(output.WaitingBar()) as waiting:
        for done in (1, 2, 3):
            waiting.hear_loading(f"the model is still loading (downloading a/b: {done} of 9 GB)")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("a/b: ")[2] for line in lines] == ["1 of 9 GB)", "3 of 9 GB)"]


def test_model_download_progress_fits_an_80_column_terminal_uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(output, "stderr", lambda: Console(file=out, force_terminal=True, width=80))
    how_far = "downloading mlx-community/Qwen3-8B-4bit: 1.2 of 4.6 GB, 45.0 MB/s, 76 s left"
    with closing(output.WaitingBar()) as waiting:
        waiting.hear_loading(f"the model is still loading ({how_far})")
    assert how_far in out.getvalue()
