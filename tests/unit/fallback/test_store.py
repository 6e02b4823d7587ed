"""The state file: whole or absent, private, in a folder that only one daemon uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftd.cli.persistent_state import PersistentState
from draftd.errors import ConfigError
from draftd.fallback.store import StateFolder, StateStore
from draftd.planning.flag import FlagService
from draftd.planning.flag_file import SPECULATION
from draftd.planning.planner import FlagContext
from draftd.settings import FallbackSettings, FlagSettings, ModelSettings, ServerSettings, Settings


def test_state_file_is_read_back_and_private_to_its_user(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state.json")
    assert store.load() is None
    store.save('{"n": 1}')
    store.save('{"n": 2}')
    assert StateStore(tmp_path / "state.json").load() == '{"n": 2}'
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_failed_state_file_save_leaves_the_previous_file_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore(tmp_path / "state.json")
    store.save("before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.save("after")
    assert store.load() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\xff\xfe", "valid JSON"),
        (b" " * (4 * 1024 * 1024 + 1), "more than"),
    ],
)
def test_invalid_state_file_is_refused_with_the_fault_and_copied_to_a_broken_file(
    tmp_path: Path, raw: bytes, complaint: str
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(raw)
    store = StateStore(path)
    with pytest.raises(ValueError, match=complaint):
        store.load()
    store.set_aside()
    assert (tmp_path / "state.json.broken").read_bytes() == path.read_bytes() == raw, "until another is saved"
    store.save("{}")
    assert (tmp_path / "state.json.broken").read_bytes() == raw
    assert store.load() == "{}"


def test_folder_in_place_of_the_state_file_is_refused_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(ValueError, match="cannot be read"):
        StateStore(tmp_path / "state.json").load()


def test_half_written_state_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".state.json.abc").write_text("half")
    (tmp_path / "state.json").write_text("{}")
    assert StateStore(tmp_path / "state.json").load() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_state_folder_is_locked_by_one_daemon_until_closed(tmp_path: Path) -> None:
    first = StateFolder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match=r"fallback\.state_dir.*no other daemon"):
        StateFolder(tmp_path / "new" / "folder")
    first.close()
    first.close()
    StateFolder(tmp_path / "new" / "folder").close()


def test_state_folder_lock_is_released_when_its_process_is_killed(tmp_path: Path) -> None:
    held = (
        "import sys, time; from pathlib import Path; from draftd.fallback.store import StateFolder\n"
        "StateFolder(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", held, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError):
            StateFolder(tmp_path)
    finally:
        process.kill()
        process.communicate()
    StateFolder(tmp_path).close()


def test_state_folder_that_cannot_be_created_raises_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"fallback\.state_dir.*can be written"):
        StateFolder(tmp_path / "file" / "folder")


def test_state_in_a_read_only_folder_is_read_and_saving_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = PersistentState(settings(50551, tmp_path), {})
    first.store.save('{"n": 1}')
    first.close()
    real = os.open

    def read_only(path: object, flags: int, *more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(30, "Read-only file system")
        return real(path, flags, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    second = PersistentState(settings(50551, tmp_path), {})
    assert second.store.load() == '{"n": 1}'
    with pytest.raises(OSError, match="Read-only"):
        second.store.save('{"n": 2}')
    second.close()


@pytest.mark.parametrize("full", [28, 30])
def test_daemon_runs_without_saved_state_when_the_disk_refuses_a_state_folder(
    full: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(full, os.strerror(full))

    monkeypatch.setattr(Path, "mkdir", refused)
    kept = PersistentState(settings(50551, tmp_path / "state"), {})
    assert kept.path is None
    assert kept.store.load() is None
    assert os.strerror(full) in caplog.text


def test_state_folder_stores_separate_fallback_state_per_model_pair(tmp_path: Path) -> None:
    def of(model: str) -> PersistentState:
        return PersistentState(settings(50551, tmp_path).model_copy(update={"model": ModelSettings(path=model)}), {})

    first = of("one")
    first.store.save("of one")
    first.close()
    another = of("another")
    assert another.store.load() is None
    another.store.save("of another")
    another.close()
    assert of("one").store.load() == "of one"


def settings(port: int, folder: Path | None = None) -> Settings:
    return Settings(server=ServerSettings(port=port), fallback=FallbackSettings(state_dir=folder))


def test_default_state_folder_is_per_port_and_absent_for_port_zero(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    first, second = PersistentState(settings(50551), environ), PersistentState(settings(50552), environ)
    assert first.store.path is not None
    assert second.store.path is not None
    assert first.store.path != second.store.path
    assert tmp_path in first.store.path.parents
    first.close()
    second.close()
    nowhere = PersistentState(settings(0), environ)
    nowhere.store.save("{}")
    assert nowhere.store.load() is None
    nowhere.store.set_aside()
    assert nowhere.store.path is None
    nowhere.close()


def test_locked_state_folder_is_an_error_if_configured_and_only_a_warning_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = PersistentState(settings(50551), {"XDG_STATE_HOME": str(tmp_path)})
    assert PersistentState(settings(50551), {"XDG_STATE_HOME": str(tmp_path)}).store.path is None
    assert "not kept over a restart" in caplog.text
    taken.close()
    named = PersistentState(settings(50551, tmp_path / "mine"), {})
    with pytest.raises(ConfigError):
        PersistentState(settings(50551, tmp_path / "mine"), {})
    named.close()


FILE = FlagSettings()


def test_flag_file_is_per_port_so_daemons_of_one_user_do_not_share_flag_changes(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    both = [PersistentState(settings(port), environ) for port in (50551, 50552)]
    one, other = (FlagService(FILE, file=kept.flag_file(FILE)) for kept in both)
    try:
        other.set_variant("off")
        assert one.evaluate(FlagContext()).value
        assert not other.state().shared
    finally:
        one.close()
        other.close()
        both[1].close()
    again = PersistentState(settings(50552), environ)
    assert (
        json.loads((again.flag_file(FILE) or tmp_path).read_text())["flags"][SPECULATION.key]["defaultVariant"] == "off"
    )
    assert again.flag_file(FlagSettings(file=tmp_path / "mine.json")) is None
    again.close()
    both[0].close()


def test_daemon_without_state_folder_uses_a_temporary_flag_file_deleted_at_close(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    holder, late, picked = (
        PersistentState(settings(50551), environ),
        PersistentState(settings(50551), environ),
        PersistentState(settings(0), environ),
    )
    files = [kept.flag_file(FILE) for kept in (holder, late, picked)]
    assert len(set(files)) == 3
    for kept in (holder, late, picked):
        kept.close()
    assert [file is not None and file.parent.exists() for file in files] == [True, False, False]


def test_legacy_shared_flag_file_is_copied_once_to_the_per_port_flag_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ, old = {"XDG_STATE_HOME": str(tmp_path)}, tmp_path / "draftd" / "flags.json"
    old.parent.mkdir()
    old.write_text("first")
    kept = PersistentState(settings(50551), environ)
    assert (kept.flag_file(FILE) or old).read_text() == "first"
    assert f" from {old}, which is not read any more" in caplog.text
    old.write_text("second")
    assert (kept.flag_file(FILE) or old).read_text() == "first"
    kept.close()
