"""Transitions outlive a run: numbers go on, the files stay small, a torn line is forgiven."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest

from draftd.cli.persistent_state import PersistentState
from draftd.journal import Journal, JournalFile, Subject, Transition
from draftd.settings import FallbackSettings, Settings


def opened(path: Path, capacity: int = 4) -> Journal:
    """Returns a journal as a new run of the daemon opens it."""
    history = JournalFile(path, capacity)
    journal = Journal(restored=history.restore())
    journal.listen(history.append)
    return journal


def record(journal: Journal, *levels: str) -> None:
    for level in levels:
        journal.record(Subject.LEVEL, "before", level, "drift", "0.31 of 0.72 \n ✓")


def kept(journal: Journal) -> list[tuple[int, str]]:
    return [(transition.number, transition.current) for transition in journal.latest(100)]


def test_transition_journal_file_is_continued_with_its_numbering_by_the_next_run(tmp_path: Path) -> None:
    first = opened(tmp_path / "history.jsonl")
    record(first, "a", "b")
    second = opened(tmp_path / "history.jsonl")
    assert second.latest(5) == first.latest(5)
    record(second, "c")
    assert kept(opened(tmp_path / "history.jsonl")) == [(1, "a"), (2, "b"), (3, "c")]
    assert (tmp_path / "history.jsonl").stat().st_mode & 0o777 == 0o600


def test_transition_journal_files_are_bounded_and_keep_the_latest_transitions(tmp_path: Path) -> None:
    journal = opened(tmp_path / "history.jsonl", capacity=4)
    record(journal, *"abcdefghijk")
    lines = [len(path.read_text().splitlines()) for path in sorted(tmp_path.iterdir())]
    assert lines == [3, 4]
    again = opened(tmp_path / "history.jsonl", capacity=4)
    assert kept(again) == [(5, "e"), (6, "f"), (7, "g"), (8, "h"), (9, "i"), (10, "j"), (11, "k")]
    record(again, "l", "m")
    assert kept(opened(tmp_path / "history.jsonl", capacity=4))[-2:] == [(12, "l"), (13, "m")]


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_transition_journal_skips_a_truncated_last_line_and_appends_a_whole_line_after_it(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "history.jsonl"
    record(opened(path), "a", "b", "c")
    path.write_bytes(path.read_bytes()[:-cut])
    journal = opened(path)
    assert kept(journal) == [(1, "a"), (2, "b")]
    record(journal, "d")
    assert kept(opened(path)) == [(1, "a"), (2, "b"), (3, "d")]


@pytest.mark.parametrize("room", [0, 1, 20, 60])
def test_transition_journal_loses_only_the_line_truncated_by_a_full_disk(tmp_path: Path, room: int) -> None:
    path = tmp_path / "history.jsonl"
    journal = opened(path)
    record(journal, "a")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, limits[1]))
    try:
        record(journal, "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    record(journal, "c")
    assert kept(opened(path)) == [(1, "a"), (3, "c")]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"number": "1", "at": "2026-01-01T00:00:00+00:00", "subject": "level", "previous": "", "current": "", '
        b'"cause": "", "evidence": ""}',
        b'{"number": 1, "at": "2026-01-01T00:00:00", "subject": "level", "previous": "", "current": "", '
        b'"cause": "", "evidence": ""}',
        b'{"number": 1, "at": "2026-01-01T00:00:00+00:00", "subject": "mood", "previous": "", "current": "", '
        b'"cause": "", "evidence": ""}',
        b"\xff",
    ],
)
def test_transition_journal_skips_and_logs_unreadable_lines(
    tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.jsonl"
    record(opened(path), "a")
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert kept(opened(path)) == [(1, "a")]
    assert "1 lines cannot be read" in caplog.text


def test_transition_journal_logs_a_write_failure_once_per_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    journal = opened(folder / "history.jsonl")
    folder.rmdir()

    def logged() -> int:
        return sum(one.name == "draftd.journal" for one in caplog.records)

    with caplog.at_level(logging.WARNING):
        record(journal, "a", "b")
        assert logged() == 1
        folder.mkdir()
        record(journal, "c")
        (folder / "history.jsonl").unlink()
        folder.rmdir()
        record(journal, "d")
    assert logged() == 2
    assert kept(journal) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_daemon_restores_journal_and_saved_state_of_its_previous_run(tmp_path: Path) -> None:
    settings = Settings(fallback=FallbackSettings(state_dir=tmp_path))
    first = PersistentState(settings, {})
    record(first.journal, "a")
    first.store.save("{}")
    first.close()
    second = PersistentState(settings, {})
    assert kept(second.journal) == [(1, "a")]
    assert second.store.load() == "{}"
    second.close()


def test_transition_numbers_start_at_one_or_after_the_last_restored_transition() -> None:
    journal = Journal()
    record(journal, "a")
    assert kept(journal) == [(1, "a")]
    moved = Transition(journal.latest(1)[0].at, Subject.FLAG, "on", "off", "", "", 41)
    later = Journal(restored=[moved])
    record(later, "b")
    assert kept(later) == [(41, "off"), (42, "b")]
