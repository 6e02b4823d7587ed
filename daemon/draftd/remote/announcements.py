"""What people are told of the link: a line of the log and an event whenever it is another than before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from draftd.engine.remote.verifier_link import RemoteModel
from draftd.fallback.journal import Journal, Subject
from draftd.fallback.logs import Changes, changes_left_out
from draftd.remote.failures import LinkError
from draftd.strategies import LinkFailure

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Change:
    """`state`: up or down. `kind` tells whether the link is another than before."""

    state: str
    kind: object
    cause: str
    why: str


class LinkAnnouncements:
    """Each change is told at once, unless there are very many: see `Changes`. One caller at a time."""

    def __init__(self, target: str, journal: Journal | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._target, self._journal = target, journal
        self._changes = Changes(self._tell, clock=clock)
        self._present = _Change("", None, "", "")
        self._told = ""  # the state

    def up(self, model: RemoteModel, before: RemoteModel | None) -> None:
        """It is up, with this model, and had another one before."""
        others = before is not None and before.fingerprint != model.fingerprint
        why = f"it serves {model.model} ({model.quality.label})" + (
            ", with other weights than before" if others else ""
        )
        if not model.shared_tokenizer:
            why += f"; its tokenizer is another: {model.difference}"
        kind = (model.fingerprint, model.model, model.difference)
        self._change(_Change("up", kind, "weights_changed" if others else "connected", why))

    def down(self, error: LinkError) -> None:
        """It is down, for this reason."""
        kind = (error.kind, error.what) if error.kind is LinkFailure.OTHER else error.kind
        self._change(_Change("down", kind, error.kind.value, error.message))

    def settle(self) -> float | None:
        """Tells what waits, if it may be told now. Returns the seconds until it may; None: nothing waits."""
        return self._changes.settle()

    def _change(self, change: _Change) -> None:
        if (change.state, change.kind) != (self._present.state, self._present.kind):
            self._present = change
            self._changes.change(change)

    def _tell(self, change: _Change, left_out: int) -> None:
        before, self._told = self._told, change.state
        why = change.why + changes_left_out(left_out)
        level = logging.INFO if change.state == "up" else logging.WARNING
        log.log(level, "verifier %s: %s: %s", self._target, change.state, why)
        if self._journal is not None:
            self._journal.record(Subject.LINK, before, change.state, change.cause, why)
