"""What commands print: nothing in it that a terminal would obey."""

from __future__ import annotations

import pytest

from draftd.cli import output


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    assert output.visible("\x1b]52;c;aGk=\x07\x9b31m é\t⟦x⟧\n") == "␛]52;c;aGk=␇\ufffd31m é\t⟦x⟧\n"


def test_lines_fields_tables_and_complaints_are_shown_so(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "alert \x1b[2J"
    output.say(evil)
    output.complain(evil)
    output.print_fields([("name", evil)], 6)
    output.print_table(("column",), [(evil,)])
    out, err = capsys.readouterr()
    assert (out + err).count("alert ␛") == 4
    assert "\x1b[2J" not in out + err
