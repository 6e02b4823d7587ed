"""What the fallback keeps on disk: a folder that one daemon has to itself, and small JSON files replaced in one
step."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from draftd.errors import ConfigError

log = logging.getLogger(__name__)

_MOST_BYTES = 4 * 1024 * 1024  # a document is a few kilobytes; what is larger was not written here
_MOST_SHOWN = 80
_MOST_PAIRS = 8  # those that were kept last
_PERIOD_SECONDS = 60.0


class Document(BaseModel):
    """A JSON document, or a part of one. Fields that are not known are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def explained(error: ValidationError, root: str = "") -> ValueError:
    """The first thing that is wrong with a document: the field, its value, and what is allowed."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in (*([root] if root else []), *first["loc"])) or "the document"
    if first["type"] == "json_invalid":
        return ValueError(f"not valid JSON ({first['msg'].removeprefix('Invalid JSON: ')})")
    if first["type"] == "missing":
        return ValueError(f"{path}: missing")
    shown = repr(first["input"])
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 3]}…"
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return ValueError(f"{path}: got {shown}; allowed: {allowed}")


class StateStore(Protocol):
    """Keeps one document."""

    @property
    def path(self) -> Path | None:
        """The file; None where nothing is kept."""
        ...

    def load(self) -> str | None:
        """None where there is none. Raises ValueError with what is wrong with it."""
        ...

    def save(self, document: str) -> None:
        """It is on the disk when this returns. Raises OSError; then the one before is whole."""
        ...

    def set_aside(self) -> None:
        """Puts a broken file where a person can look at it."""
        ...


class NoStore:
    """Keeps nothing: where there is no folder for it."""

    path: Path | None = None

    def load(self) -> str | None:
        return None

    def save(self, document: str) -> None:
        return None

    def set_aside(self) -> None:
        return None


class FileStore:
    """One file. Only its owner may read it."""

    def __init__(self, path: Path) -> None:
        self.path: Path | None = path
        self._file = path

    def load(self) -> str | None:
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
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"not valid JSON ({error})") from None

    def save(self, document: str) -> None:
        folder = self._file.parent
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{self._file.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(document)
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


class _Pair(Document):
    of: dict[str, Any]
    learnt: dict[str, Any]


class _Learnt(Document):
    version: Literal[1] = 1
    pairs: list[_Pair]


class LearntFile:
    """What the engine has learnt of a pair on a machine, kept over a restart. One thread at a time.

        {"version": 1, "pairs": [{"of": {"target": …, "device": …}, "learnt": {…}}]}

    `identity` names the pair and the machine as they are now, in what JSON can hold. What was learnt of another pair,
    or on another machine, is left alone and not used."""

    def __init__(self, store: StateStore, identity: Callable[[], Mapping[str, Any]]) -> None:
        self._store, self._identity = store, identity
        self._others: list[_Pair] = []
        self._failing = False

    def load(self) -> Mapping[str, Any] | None:
        """What was learnt of this pair on this machine; None where there is nothing of it, and where that is a surprise
        the log says why."""
        try:
            document = self._store.load()
            if document is None:
                return None
            pairs = _Learnt.model_validate_json(document).pairs
        except ValueError as error:
            why = explained(error) if isinstance(error, ValidationError) else error
            log.warning("%s cannot be used: %s; what drafts cost is learnt anew", self._store.path, why)
            self._store.set_aside()
            return None
        identity = dict(self._identity())
        self._others = [one for one in pairs if one.of != identity]
        found = next((one.learnt for one in pairs if one.of == identity), None)
        if found is None and pairs:
            other = pairs[0].of
            names = ", ".join(sorted(name for name in {*identity, *other} if identity.get(name) != other.get(name)))
            log.warning(
                "%s is not of this pair on this machine: it differs in %s; what drafts cost is learnt anew",
                self._store.path,
                names,
            )
        return found

    def save(self, learnt: Mapping[str, Any]) -> bool:
        """Whether the disk has it now. What cannot be saved is logged once until it can be again."""
        identity = dict(self._identity())
        others = [one for one in self._others if one.of != identity]
        try:
            document = _Learnt(pairs=[_Pair(of=identity, learnt=dict(learnt)), *others][:_MOST_PAIRS])
            self._store.save(document.model_dump_json(indent=1))
        except (OSError, ValueError) as error:
            if not self._failing:
                log.warning("%s cannot be saved: %s; a restart would learn anew", self._store.path, error)
            self._failing = True
            return False
        self._failing = False
        return True


class LearntKeeper:
    """A thread of its own, which asks for what was learnt every `period` seconds and when it is closed."""

    def __init__(
        self, file: LearntFile, learnt: Callable[[], Mapping[str, Any] | None], period: float = _PERIOD_SECONDS
    ) -> None:
        """`learnt` answers at once, None while there is nothing to keep."""
        self._file, self._learnt, self._period = file, learnt, period
        self._kept: Mapping[str, Any] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="draftd-learnt", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Keeps it a last time. True when that is over within `timeout` seconds."""
        self._closing.set()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing.wait(self._period):
            self._keep()
        self._keep()

    def _keep(self) -> None:
        try:
            learnt = self._learnt()
            if learnt is not None and learnt != self._kept and self._file.save(learnt):
                self._kept = learnt
        except Exception:  # whatever it is, no request waits for this
            log.exception("what was learnt cannot be kept")
