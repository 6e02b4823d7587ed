"""The fallback's files on disk: a folder that one daemon has to itself, and small JSON files replaced in one
step."""

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

_MOST_BYTES = 4 * 1024 * 1024  # a document is a few kilobytes; what is larger was not written here
_MOST_PAIRS = 8  # those that were kept last
_PERIOD_SECONDS = 60.0


class Document(BaseModel):
    """A JSON document, or a part of one. Fields that are not known are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def first_fault(error: Exception, prefix: str = "") -> Exception:
    """The first thing that is wrong with a document: the field, its value, and what is allowed. Any other error says
    that itself."""
    if not isinstance(error, ValidationError):
        return error
    path, value, allowed = wrong_field(error, prefix)
    return ValueError(FieldError(path or "the document", value, allowed).message)


class StateStore:
    """Keeps one document in a file that only its owner may read; nothing where `path` is None. `errors`: how often it
    could not be saved, also for a reason that its owner counts."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.errors = 0

    def read(self) -> str | None:
        """None where there is none. Raises ValueError with what is wrong with it."""
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
        """Likewise, and removes what a process that was killed while it saved has left: for the daemon, which saves."""
        if self.path is not None:
            remove_leftovers(self.path)
        return self.read()

    def save(self, document: str) -> None:
        """It is on the disk when this returns. Raises OSError; then the one before is whole."""
        if self.path is not None:
            replace_file(self.path, document)

    def set_aside(self) -> None:
        """Keeps a broken file where a person can look at it. It also stays in its place until the next one is saved: a
        process that is killed before finds it broken again, and not gone."""
        if self.path is None:
            return
        aside = self.path.with_name(f"{self.path.name}.broken")
        try:
            aside.unlink(missing_ok=True)
            try:
                os.link(self.path, aside)
            except OSError:  # a file system without links, or a folder in the file's place
                os.replace(self.path, aside)
        except OSError as error:
            log.warning("%s cannot be renamed: %s", self.path, error.strerror)
        else:
            log.warning("the unreadable file is kept as %s", aside)


class StateFolder:
    """A folder that one daemon has to itself, until `close` or the end of its process."""

    def __init__(self, path: Path, setting: str = "fallback.state_dir") -> None:
        """Makes it where it is missing; one that cannot be written is there to be read. Raises ConfigError, naming the
        setting, where it cannot be had, or another daemon uses it."""
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
        """Another daemon may have it."""
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
    """What the engine has learnt of a pair on a machine, kept over a restart: read once, and then kept by a thread of
    its own, every `period` seconds and when it is closed.

        {"version": 1, "pairs": [{"of": {"target": …, "device": …}, "learnt": {…}}]}

    `identity` names the pair and the machine as they are now, in what JSON can hold. What was learnt of another pair,
    or on another machine, is left alone and not used."""

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
        """What was learnt of this pair on this machine; None where there is nothing of it, and where that is a surprise
        the log says why."""
        try:
            document = self._store.load()
            if document is None:
                return None
            pairs = _Learnt.model_validate_json(document).pairs
        except ValueError as error:
            log.warning(
                "%s cannot be used: %s; the costs of drafting are learnt again", self._store.path, first_fault(error)
            )
            self._store.set_aside()
            return None
        identity = dict(self._identity())
        self._others = [pair for pair in pairs if pair.of != identity]
        learnt = next((pair.learnt for pair in pairs if pair.of == identity), None)
        alike = [
            pair.of for pair in pairs if _paths(pair.of) == _paths(identity)
        ]  # of other models nothing is expected
        if learnt is None and alike:
            names = sorted(name for name in {*identity, *alike[0]} if identity.get(name) != alike[0].get(name))
            log.warning(
                "%s is of another pair or machine: it differs in %s; the costs of drafting are learnt again",
                self._store.path,
                ", ".join(names),
            )
        return learnt

    def read(self) -> Mapping[str, Any] | None:
        """Likewise, but changes nothing and says nothing: a daemon may be using the file."""
        try:
            document = self._store.read()
            pairs = [] if document is None else _Learnt.model_validate_json(document).pairs
        except ValueError:
            return None
        identity = dict(self._identity())
        return next((pair.learnt for pair in pairs if pair.of == identity), None)

    def save(self, learnt: Mapping[str, Any]) -> bool:
        """Whether the disk has it now. What cannot be saved is logged once until it can be again."""
        identity = dict(self._identity())
        if self._store.path is not None:
            with contextlib.suppress(OSError, ValueError):  # another daemon may keep another pair in the same file
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
        """From now on it is kept. `learnt` answers at once, None while there is nothing to keep."""
        self._thread = threading.Thread(target=self._run, args=(learnt,), name="draftd-learnt", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Keeps it a last time. True when that is over within `timeout` seconds."""
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
            except Exception as error:  # whatever it is, no request waits for this
                self._store.errors += 1
                self._outage.report("what was learnt cannot be saved", level=logging.ERROR, error=error)
