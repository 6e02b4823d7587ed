"""What is kept over a restart, and where: the fallback's state, and the transitions that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftd.control.history import History
from draftd.control.journal import Journal
from draftd.control.store import FileStore, NoStore, StateFolder, StateStore, sweep
from draftd.settings import Settings
from draftd.settings_base import state_dir

_STATE, _HISTORY = "fallback.json", "history.jsonl"


def folder_of(settings: Settings, environ: Mapping[str, str]) -> Path | None:
    """The folder to keep it in. None where a daemon cannot be told from the next: it listens on any free port."""
    if settings.fallback.state_dir is not None:
        return settings.fallback.state_dir
    port = settings.server.port
    return state_dir(environ) / f"port-{port}" if port else None


@dataclass(frozen=True)
class Kept:
    """The store, and a journal that goes on from where the last run's ended and is written down as it grows."""

    store: StateStore
    journal: Journal
    folder: StateFolder | None = None

    @classmethod
    def open(cls, path: Path | None) -> Kept:
        """Raises ConfigError where the folder cannot be used, or another daemon uses it. None keeps nothing."""
        if path is None:
            return cls(NoStore(), Journal())
        folder = StateFolder.open(path)
        sweep(path, _STATE)
        history = History(path / _HISTORY)
        journal = Journal(restored=history.restore())
        journal.listen(history.append)
        return cls(FileStore(path / _STATE), journal, folder)

    def close(self) -> None:
        """Another daemon may use the folder. What is saved from here on is nobody's."""
        if self.folder is not None:
            self.folder.close()
