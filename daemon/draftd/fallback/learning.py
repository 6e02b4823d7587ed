"""What the engine has learnt of a pair on a machine, kept over a restart: a JSON file, written now and then and at the
end.

    {"version": 1, "pairs": [{"of": {"target": …, "device": …}, "learnt": {…}}]}

What was learnt of another pair, or on another machine, is left alone and not used.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from draftd.fallback.store import StateStore

VERSION = 1
PERIOD_SECONDS = 60.0
_MOST_PAIRS = 8  # those that were kept last

log = logging.getLogger(__name__)

Identity = Mapping[str, Any]


class LearntFile:
    """One thread at a time. `identity` names the pair and the machine as they are now, in what JSON can hold."""

    def __init__(self, store: StateStore, identity: Callable[[], Identity]) -> None:
        self._store, self._identity = store, identity
        self._others: list[Any] = []  # what is kept beside
        self._failing = False

    def load(self) -> Mapping[str, Any] | None:
        """What was learnt of this pair on this machine; None where there is nothing of it, and where that is a surprise
        the log says why."""
        try:
            document = self._store.load()
            if document is None:
                return None
            if document.get("version") != VERSION:
                raise ValueError(f"version: got {document.get('version')!r}; allowed: {VERSION}")
            pairs = document.get("pairs")
            if not isinstance(pairs, list) or not all(map(_whole, pairs)):
                raise ValueError("pairs: got something else; allowed: a list of objects with `of` and `learnt`")
        except ValueError as error:
            log.warning("%s cannot be used: %s; what drafts cost is learnt anew", self._store.path, error)
            self._store.set_aside()
            return None
        identity = self._identity()
        self._others = [one for one in pairs if one["of"] != identity]
        found = next((one["learnt"] for one in pairs if one["of"] == identity), None)
        if found is None and pairs:
            names = ", ".join(sorted(_differing(identity, pairs[0]["of"])))
            log.warning(
                "%s is not of this pair on this machine: it differs in %s; what drafts cost is learnt anew",
                self._store.path,
                names,
            )
        return found

    def save(self, learnt: Mapping[str, Any]) -> bool:
        """Whether the disk has it now. What cannot be saved is logged once until it can be again."""
        identity = self._identity()
        others = [one for one in self._others if one["of"] != identity]
        document = {"version": VERSION, "pairs": [{"of": identity, "learnt": learnt}, *others][:_MOST_PAIRS]}
        try:
            self._store.save(document)
        except (OSError, ValueError) as error:
            if not self._failing:
                log.warning("%s cannot be saved: %s; a restart would learn anew", self._store.path, error)
            self._failing = True
            return False
        self._failing = False
        return True


class Keeper:
    """A thread of its own, which asks for what was learnt every `period` seconds and when it is closed."""

    def __init__(
        self, file: LearntFile, learnt: Callable[[], Mapping[str, Any] | None], period: float = PERIOD_SECONDS
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


def _whole(pair: object) -> bool:
    return isinstance(pair, dict) and isinstance(pair.get("of"), dict) and isinstance(pair.get("learnt"), dict)


def _differing(one: Identity, other: Identity) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}
