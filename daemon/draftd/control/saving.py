"""Saves the fallback's state when it has changed, and finds it again after a restart."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from draftd.control.examination import Remembers
from draftd.control.seams import ControlTelemetry
from draftd.control.store import StateStore
from draftd.policy import saved as policy
from draftd.policy.ladder import Rung
from draftd.policy.saved import Saved

log = logging.getLogger(__name__)


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
