"""The fallback's files: a folder used by one daemon only, with small JSON files that are replaced atomically."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from draftd.errors import ConfigError, FieldError, wrong_field
from draftd.files import remove_leftovers, replace_file
from draftd.rate_limited_log import OutageLog

log = logging.getLogger(__name__)

_MOST_BYTES = 4 * 1024 * 1024  # a document has a few kilobytes; a larger file was not written by draftd
_MOST_PAIRS = 8  # model pairs that are kept, the latest ones
_PERIOD_SECONDS = 60.0


class Document(BaseModel):
    """A JSON document, or part of one. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, serialize_by_alias=True)


def first_fault(error: Exception, prefix: str = "") -> Exception:
    """Returns the first fault of a document: the field, its value, and what is allowed. Other errors are returned as
    they are."""
    if not isinstance(error, ValidationError):
        return error
    path, value, allowed = wrong_field(error, prefix)
    return ValueError(FieldError(path or "the document", value, allowed).message)


class StateStore:
    """Keeps one document in a file that only the file's owner may read; nothing if `path` is None. `errors`: failed
    saves, counted by the callers of `save`."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.errors = 0

    def read(self) -> str | None:
        """Returns the document, or None if there is none. Raises ValueError with the fault."""
        if self.path is None:
            return None
        try:
            with self.path.open("rb") as file:
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

    def load(self) -> str | None:
        """Returns the document like `read`, and deletes files left by a process that was killed while saving. For the
        daemon, which saves."""
        if self.path is not None:
            remove_leftovers(self.path)
        return self.read()

    def save(self, document: str) -> None:
        """Writes the document to disk before it returns. Raises OSError; then the old file is intact."""
        if self.path is not None:
            replace_file(self.path, document)

    def set_aside(self) -> None:
        """Copies a broken file to where a person can look at it. The original stays until the next save, so a process
        killed before that finds it broken again, not missing."""
        if self.path is None:
            return
        aside = self.path.with_name(f"{self.path.name}.broken")
        try:
            aside.unlink(missing_ok=True)
            try:
                os.link(self.path, aside)
            except OSError:  # a file system without hard links, or a folder in the file's place
                os.replace(self.path, aside)
        except OSError as error:
            log.warning("%s cannot be renamed: %s", self.path, error.strerror)
        else:
            log.warning("the unreadable file is kept as %s", aside)


class StateFolder:
    """A folder used by one daemon only, until `close` or the end of its process."""

    def __init__(self, path: Path, setting: str = "fallback.state_dir") -> None:
        """Creates the folder if it is missing; a read-only folder can still be read. Raises ConfigError, naming the
        setting, if it is unusable or in use by another daemon."""
        self.path, lock = path, -1
        try:
            allowed = "a folder that can be written"
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                log.warning("%s cannot be written (%s): changes are not kept over a restart", path, error.strerror)
            allowed = "a folder that can be locked, and that no other daemon uses"
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            raise ConfigError(setting, str(path), f"{allowed} ({error.strerror})") from error
        self._lock = lock

    def close(self) -> None:
        """Releases the folder for other daemons."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class _Pair(Document):
    of: dict[str, Any]
    learnt: dict[str, Any]


class _Learnt(Document):
    version: Literal[1] = 1
    pairs: list[_Pair]


def _paths(identity: Mapping[str, Any]) -> list[object]:
    """Returns the paths of a pair's models."""
    models = [identity.get(role) for role in ("target", "draft", "light_draft")]
    return [model.get("path") if isinstance(model, dict) else model for model in models]


class LearntFile:
    """The file of what the engine learnt of model pairs: read at start, then saved by a thread every `period` seconds
    and at close.

        {"version": 1, "pairs": [{"of": {"target": …, "device": …}, "learnt": {…}}]}

    `identity` is the present pair and machine in JSON; entries of others are kept but not used."""

    def __init__(
        self, store: StateStore, identity: Callable[[], Mapping[str, Any]], period: float = _PERIOD_SECONDS
    ) -> None:
        self._store, self._identity, self._period = store, identity, period
        self._others: list[_Pair] = []
        self._kept: Mapping[str, Any] | None = None
        self._outage = OutageLog(log)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def load(self) -> Mapping[str, Any] | None:
        """Returns what was learnt of this pair on this machine, or None; logs why if something was expected."""
        try:
            document = self._store.load()
            if document is None:
                return None
            pairs = _Learnt.model_validate_json(document).pairs
        except ValueError as error:
            log.warning(
                "%s cannot be used: %s; the costs of drafting are measured again", self._store.path, first_fault(error)
            )
            self._store.set_aside()
            return None
        identity = dict(self._identity())
        self._others = [pair for pair in pairs if pair.of != identity]
        learnt = next((pair.learnt for pair in pairs if pair.of == identity), None)
        # Nothing is expected of other models.
        alike = [pair.of for pair in pairs if _paths(pair.of) == _paths(identity)]
        if learnt is None and alike:
            names = sorted(name for name in {*identity, *alike[0]} if identity.get(name) != alike[0].get(name))
            log.warning(
                "%s was measured with another pair or machine (it differs in %s): "
                "the costs of drafting are measured again",
                self._store.path,
                ", ".join(names),
            )
        return learnt

    def read(self) -> Mapping[str, Any] | None:
        """Returns the same as `load`, without changes or logs, because a daemon may be using the file."""
        try:
            document = self._store.read()
            pairs = [] if document is None else _Learnt.model_validate_json(document).pairs
        except ValueError:
            return None
        identity = dict(self._identity())
        return next((pair.learnt for pair in pairs if pair.of == identity), None)

    def save(self, learnt: Mapping[str, Any]) -> bool:
        """Saves, and returns whether that worked. A failure is logged once until a save succeeds."""
        identity = dict(self._identity())
        if self._store.path is not None:
            with contextlib.suppress(OSError, ValueError):  # another daemon may save another pair in the same file
                self._others = _Learnt.model_validate_json(self._store.path.read_bytes()).pairs
        others = [pair for pair in self._others if pair.of != identity]
        try:
            document = _Learnt(pairs=[_Pair(of=identity, learnt=dict(learnt)), *others][:_MOST_PAIRS])
            self._store.save(document.model_dump_json(indent=1))
        except (OSError, ValueError) as error:
            self._store.errors += 1
            why = getattr(error, "strerror", None) or str(error)
            self._outage.report(f"{self._store.path} cannot be saved: {why}; a restart would learn it again", why)
            return False
        self._outage.clear(f"{self._store.path} can be saved again")
        return True

    def start(self, learnt: Callable[[], Mapping[str, Any] | None]) -> None:
        """Starts saving. `learnt` returns at once; None while there is nothing to save."""
        self._thread = threading.Thread(target=self._run, args=(learnt,), name="draftd-learnt", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Saves a last time. Returns whether that ended within `timeout` seconds."""
        self._closing.set()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, learnt: Callable[[], Mapping[str, Any] | None]) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(self._period)
            try:
                now = learnt()
                if now is not None and now != self._kept and self.save(now):
                    self._kept = now
            except Exception as error:  # any error: no request waits for this
                self._store.errors += 1
                self._outage.report("what was learnt cannot be saved", level=logging.ERROR, error=error)
