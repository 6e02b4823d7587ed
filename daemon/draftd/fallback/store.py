"""The fallback's state on disk: a small JSON file, replaced in one step, in a folder that one daemon has to itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from draftd.errors import ConfigError
from draftd.fallback import state as policy
from draftd.fallback.ladder import Rung
from draftd.fallback.probe_schedule import Remembers
from draftd.fallback.seams import ControlTelemetry
from draftd.fallback.state import Saved

log = logging.getLogger(__name__)


_MOST_BYTES = 4 * 1024 * 1024  # a state is a few kilobytes; what is larger is none of ours


class StateStore(Protocol):
    """Keeps one document."""

    @property
    def path(self) -> Path | None:
        """The file; None where nothing is kept."""
        ...

    def load(self) -> Mapping[str, Any] | None:
        """None where there is none. Raises ValueError with what is wrong with it."""
        ...

    def save(self, document: Mapping[str, Any]) -> None:
        """It is on the disk when this returns. Raises OSError; then the one before is whole."""
        ...

    def set_aside(self) -> None:
        """Puts a broken file where a person can look at it."""
        ...


class NoStore:
    """Keeps nothing: where there is no folder for it."""

    path: Path | None = None

    def load(self) -> Mapping[str, Any] | None:
        return None

    def save(self, document: Mapping[str, Any]) -> None:
        return None

    def set_aside(self) -> None:
        return None


class StateFolder:
    """A folder that one daemon has to itself, from `open` to `close` or the end of its process."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> StateFolder:
        """Makes it where it is missing. Raises ConfigError where it cannot be used, or another daemon uses it."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise ConfigError("fallback.state_dir", str(path), allowed) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            taken = isinstance(error, BlockingIOError)
            allowed = (
                "a folder that no other daemon uses" if taken else f"a folder that can be locked ({error.strerror})"
            )
            raise ConfigError("fallback.state_dir", str(path), allowed) from None
        return cls(path, lock)

    def close(self) -> None:
        """Another daemon may have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class FileStore:
    """One file. Only its owner may read it."""

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path
        self._file = path

    def load(self) -> Mapping[str, Any] | None:
        try:
            with self._file.open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"cannot be read ({error.strerror})") from None
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        try:
            document = json.loads(raw)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not valid JSON ({error})") from None
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        return document

    def save(self, document: Mapping[str, Any]) -> None:
        folder = self._file.parent
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{self._file.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        _sync_folder(folder)

    def set_aside(self) -> None:
        aside = self._file.with_name(f"{self._file.name}.broken")
        try:
            os.replace(self._file, aside)
        except OSError as error:
            log.warning("%s cannot be put aside: %s", self._file, error.strerror)
        else:
            log.warning("what could not be read is kept as %s", aside)


def sweep(folder: Path, name: str) -> None:
    """Removes what a process that was killed while it saved has left."""
    for left in folder.glob(f".{name}.*"):
        with contextlib.suppress(OSError):
            left.unlink()


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a power cut. Not every file system can: the file itself is whole without."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Saving:
    """One thread's. `pair` names the models: what was learnt of others is not theirs."""

    def __init__(
        self,
        store: StateStore,
        ladder: Sequence[Rung],
        telemetry: ControlTelemetry,
        *,
        pair: str = "",
        lessons: Remembers | None = None,
    ) -> None:
        self._lessons = lessons
        self._store, self._ladder, self._telemetry, self._pair = store, tuple(ladder), telemetry, pair
        self._kept: Mapping[str, object] | None = None  # as it is on the disk, but for its time
        self._failing = False

    @property
    def path(self) -> Path | None:
        return self._store.path

    def restore(self, now: float) -> Saved:
        """What was saved, as of `now`. What cannot be read is put aside, and the safer state is begun with."""
        document: Mapping[str, object] | None = None
        try:
            document = self._store.load()
            if document is None:
                return Saved(now)
            found = policy.parse(document, self._ladder)
        except ValueError as error:
            log.warning("%s cannot be used: %s", self.path, error)
            self._store.set_aside()
            return policy.safer(document, self._ladder, now)
        if document.get("pair") != self._pair:
            log.info("%s is of other models: its level stays, what was learnt of them does not", self.path)
            found = replace(found, baselines={}, quality="")
        else:
            self._recall(document)
        return found.resumed(now)

    def keep(self, state: Saved) -> bool:
        """Whether the disk has it now. What cannot be saved is counted, and logged once until it can be again."""
        document = {**policy.document(state, self._ladder), "pair": self._pair}
        if self._lessons is not None:
            document["lessons"] = self._lessons.document()
        timeless = {**document, "at": None}
        if timeless == self._kept:
            return True
        try:
            self._store.save(document)
        except (OSError, ValueError) as error:
            self._telemetry.save_failed()
            if not self._failing:
                log.warning("%s cannot be saved: %s; a restart would not find the level of now", self.path, error)
            self._failing = True
            return False
        if self._failing:
            log.info("%s can be saved again", self.path)
        self._kept, self._failing = timeless, False
        return True

    def _recall(self, document: Mapping[str, object]) -> None:
        """A lesson that cannot be read is given again: it is no reason to doubt the rest."""
        lessons = document.get("lessons")
        if self._lessons is None or not isinstance(lessons, Mapping):
            return
        try:
            self._lessons.recall(lessons)
        except ValueError as error:
            log.warning("what probes showed is to be learnt anew: %s: %s", self.path, error)
