"""Learnt costs are found again by their own pair and machine only."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from draftd.fallback.store import LearntFile, StateStore
from tests.wait_until import until

HERE = {"target": {"path": "t", "files": {"model.safetensors": [7, 1]}}, "draft": None, "device": "M4", "cores": 10}
LEARNT = {"version": 1, "plain": [[1, 0.01]], "acceptance": []}


def file_of(path: Path, of: Mapping[str, Any] = HERE) -> LearntFile:
    return LearntFile(StateStore(path), lambda: of)


def test_draft_cost_file_is_read_back_and_private_to_its_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "learnt.json"
    assert file_of(path).load() is None
    assert file_of(path).save(LEARNT)
    assert file_of(path).load() == LEARNT
    assert path.stat().st_mode & 0o777 == 0o600
    assert not caplog.records


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"device": "M2"}, "device"),
        ({"target": {"path": "t", "files": {"model.safetensors": [7, 2]}}, "cores": 4}, "cores, target"),
        ({"draft": {"path": "d", "files": {}}}, None),  # another pair is no surprise
        ({"target": {"path": "u", "files": {}}}, None),
    ],
)
def test_draft_costs_of_another_model_pair_or_machine_are_not_used_but_stay_in_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], named: str | None
) -> None:
    path = tmp_path / "learnt.json"
    file_of(path).save(LEARNT)
    stranger = file_of(path, HERE | change)
    assert stranger.load() is None
    wanted = [] if named is None else [f"{path} was measured with another pair or machine (it differs in {named}): "]
    assert [said.removesuffix("the costs of drafting are measured again") for said in caplog.messages] == wanted
    assert stranger.save({"version": 1, "other": True})
    assert file_of(path).load() == LEARNT
    assert file_of(path, HERE | change).load() == {"version": 1, "other": True}


def test_draft_cost_file_keeps_the_eight_most_recently_saved_model_pairs(tmp_path: Path) -> None:
    path = tmp_path / "learnt.json"
    for cores in range(1, 12):
        mine = file_of(path, HERE | {"cores": cores})
        mine.load()
        assert mine.save({"cores": cores})
        assert mine.save({"cores": cores, "again": True})
    found = [pair["of"]["cores"] for pair in json.loads(path.read_text())["pairs"]]
    assert found == [11, 10, 9, 8, 7, 6, 5, 4]


def test_draft_cost_file_shared_by_two_daemons_keeps_costs_of_both_model_pairs(tmp_path: Path) -> None:
    path = tmp_path / "learnt.json"
    one, other = file_of(path), file_of(path, HERE | {"cores": 4})
    for each in (one, other):
        each.load()
    assert one.save({"n": 1})
    assert other.save({"n": 2})
    assert one.save({"n": 3})
    assert (file_of(path).load(), file_of(path, HERE | {"cores": 4}).load()) == ({"n": 3}, {"n": 2})


def test_draft_costs_saved_after_a_draft_reload_are_stored_for_the_new_model_pair(tmp_path: Path) -> None:
    """A reloaded draft makes another pair."""
    path, before, after = tmp_path / "learnt.json", HERE, HERE | {"draft": {"path": "d", "files": {}}}
    file_of(path, after).save({"n": 1})
    now = [before]
    mine = LearntFile(StateStore(path), lambda: now[0])
    mine.load()
    now[0] = after
    assert mine.save({"n": 2})
    assert [(one["of"], one["learnt"]) for one in json.loads(path.read_text())["pairs"]] == [(after, {"n": 2})]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "valid JSON"),
        ("[]", "the document: got []; allowed: an object"),
        ('{"version": 2, "pairs": []}', "version: got 2; allowed: 1"),
        ('{"version": 1, "pairs": {}}', "pairs: got {}; allowed: a valid"),
        ('{"version": 1, "pairs": [{"of": {}, "learnt": 3}]}', "pairs[0].learnt: got 3"),
    ],
)
def test_damaged_draft_cost_file_is_renamed_broken_and_logged_with_the_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, named: str
) -> None:
    path = tmp_path / "learnt.json"
    path.write_text(text)
    mine = file_of(path)
    assert mine.load() is None
    assert any(str(path) in said and named in said and "measured again" in said for said in caplog.messages)
    assert (tmp_path / "learnt.json.broken").read_text() == text
    assert mine.save(LEARNT)
    assert file_of(path).load() == LEARNT


class Disk(StateStore):
    """A store that fails on request."""

    def __init__(self) -> None:
        super().__init__(Path("disk"))
        self.full = False
        self.documents: list[Any] = []

    def load(self) -> str | None:
        return None

    def save(self, document: str) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.documents.append(json.loads(document))

    def set_aside(self) -> None:
        return None

    @property
    def kept(self) -> list[Any]:
        return [document["pairs"][0]["learnt"] for document in self.documents]


def test_draft_cost_file_is_saved_only_when_costs_changed(caplog: pytest.LogCaptureFixture) -> None:
    disk, asked, known = Disk(), threading.Semaphore(0), [None, {"n": 1}, {"n": 1}, {"n": 2}]

    def learnt() -> Mapping[str, Any] | None:
        asked.release()
        return known.pop(0) if len(known) > 1 else known[0]

    keeper = LearntFile(disk, lambda: HERE, period=0.001)
    keeper.start(learnt)
    for _ in range(6):
        assert asked.acquire(timeout=10)
    assert keeper.close(10)
    assert disk.kept == [{"n": 1}, {"n": 2}]


def test_draft_cost_file_is_saved_a_last_time_at_close() -> None:
    disk = Disk()
    keeper = LearntFile(disk, lambda: HERE, period=3600)
    keeper.start(lambda: LEARNT)
    assert keeper.close(10)
    assert disk.kept == [LEARNT]
    assert LearntFile(disk, lambda: HERE).close(0.0), "one that never began is over"


def test_draft_cost_file_on_a_full_disk_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    disk.full = True
    asked = threading.Semaphore(0)

    def learnt() -> Mapping[str, Any]:
        asked.release()
        return LEARNT

    keeper = LearntFile(disk, lambda: HERE, period=0.001)
    keeper.start(learnt)
    for _ in range(5):
        assert asked.acquire(timeout=10)
    assert caplog.messages.count("disk cannot be saved: No space left on device; a restart would learn it again")
    assert len(caplog.messages) == 1
    assert disk.errors >= 4
    disk.full = False
    until(lambda: disk.kept == [LEARNT])
    assert keeper.close(10)


def test_draft_cost_file_logs_an_exception_while_collecting_costs_and_closes(caplog: pytest.LogCaptureFixture) -> None:
    def learnt() -> Mapping[str, Any]:
        raise RuntimeError("on purpose")

    keeper = LearntFile(Disk(), lambda: HERE, period=3600)
    keeper.start(learnt)
    assert keeper.close(10)
    assert "what was learnt cannot be saved" in caplog.messages


def test_closing_the_draft_cost_file_waits_no_longer_than_its_limit() -> None:
    stuck = threading.Event()

    def learnt() -> Mapping[str, Any]:
        stuck.wait(30)
        return LEARNT

    keeper = LearntFile(Disk(), lambda: HERE, period=3600)
    keeper.start(learnt)
    assert not keeper.close(0.05)
    stuck.set()
    assert keeper.close(10)
