"""The state that survives a restart, as one JSON document: ladders, leases, baselines, and the canaries' verdict.

Times are the ladder's clock: the wall clock at start plus elapsed time. A level is saved as what it allows, because a
restart may have another ladder. An unreadable document leads lower, never higher.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from draftd.core import FallbackLevel, LadderLevel, drafter_cost_rank
from draftd.fallback.baselines import Baselines, ProbeBaselines
from draftd.fallback.ladder import Cause, LadderState, Signal, lowest
from draftd.fallback.leases import Leases
from draftd.fallback.store import Document, StateStore, first_fault
from draftd.rate_limited_log import OutageLog

log = logging.getLogger(__name__)


def _readable(document: object, read: ValidatorFunctionWrapHandler) -> ProbeBaselines | None:
    """Returns None if the baselines cannot be read: they are learnt again, and the rest stays valid."""
    try:
        baselines: ProbeBaselines | None = read(document)
        return baselines
    except ValidationError as error:
        why = first_fault(error, "probe_baselines.")
        log.warning("the probes' baselines cannot be used and are measured again: %s", why)
        return None


class _Level(Document):
    level: LadderLevel


class SavedLevels(_Level):
    """The saved document. `at`: when it was saved. `level`: the ladder's level. `hold_level`, `unheld_level`: the level
    that an operator holds, and the level to return to afterwards; None without a hold. `quality`: see SignalState."""

    version: Literal[2] = 2
    at: float
    hold_level: LadderLevel | None
    unheld_level: LadderLevel | None = None
    ladder: LadderState
    remote: LadderState | None = None
    leases: Leases
    baselines: Baselines
    quality: str
    probe_baselines: Annotated[ProbeBaselines | None, WrapValidator(_readable)] = None

    @classmethod
    def of(cls, at: float, levels: Sequence[LadderLevel], ladder: LadderState, **more: Any) -> SavedLevels:
        """Returns the document for a ladder with these levels; `more`: its other fields. Raises ValueError for values
        that cannot be saved."""
        level, hold = levels[ladder.position], ladder.hold
        fields = {"leases": Leases(), "baselines": {}, "quality": "", **more}
        held_at, unheld = (None, None) if hold is None else (levels[hold.position], levels[hold.before])
        return cls(at=at, level=level, hold_level=held_at, unheld_level=unheld, ladder=ladder, **fields)

    def resume_at(self, now: float) -> SavedLevels:
        """Returns the state at `now`, after a restart. If the clock went back, all times in the state are moved back by
        the same amount, as if no time had passed."""
        ahead = now - self.at
        if ahead >= 0:
            return self
        ladder, remote = self.ladder.shift_clock(ahead), self.remote and self.remote.shift_clock(ahead)
        extended = {name: replace(lease, until=lease.until + ahead) for name, lease in self.leases.active.items()}
        leases = replace(self.leases, active=extended)
        return self.model_copy(update={"at": now, "ladder": ladder, "remote": remote, "leases": leases})


def parse(text: str, levels: Sequence[LadderLevel]) -> SavedLevels:
    """Reads a document for a ladder with these levels; a level that the ladder lacks becomes the nearest lower one.
    Raises ValueError naming the field, its value and what is allowed."""
    try:
        saved = SavedLevels.model_validate_json(text)
    except ValidationError as error:
        raise first_fault(error) from None
    hold = saved.ladder.hold
    if hold is not None and saved.hold_level is not None:
        before = _position(saved.unheld_level or saved.hold_level, levels)
        hold = replace(hold, position=_position(saved.hold_level, levels), before=before)
    ladder = replace(saved.ladder, position=_position(saved.level, levels), hold=hold)
    return saved.model_copy(update={"ladder": ladder})


def safer(text: str | None, levels: Sequence[LadderLevel], now: float) -> SavedLevels:
    """Returns the state to start with if `parse` fails: the document's level, if that is readable; otherwise
    autoregressive decoding, because an operator may have held that level. The ladder rises after a good probe of a
    higher level."""
    try:
        position = _position(_Level.model_validate_json(text or "").level, levels)
    except ValidationError:
        position = lowest(levels, FallbackLevel.AUTOREGRESSIVE)
    signal = Signal(Cause.UNREADABLE_STATE, levels[position].kind, "the saved state could not be read")
    return SavedLevels.of(now, levels, LadderState(position, since=now, signal=signal))


class SavedState:
    """Reads and saves the document. One caller at a time. The `store` has the document of the served models only; other
    models have another file."""

    def __init__(
        self,
        store: StateStore,
        levels: Sequence[LadderLevel],
        probe_baselines: ProbeBaselines,
    ) -> None:
        self._store, self._levels, self._probe_baselines = store, tuple(levels), probe_baselines
        self._kept = ""  # as on disk, except for its time
        self.unsaved = ""  # why the file is not up to date; empty if it is
        self._outage = OutageLog(log)

    @property
    def path(self) -> Path | None:
        return self._store.path

    def restore(self, now: float) -> SavedLevels:
        """Returns the saved state at `now`. An unreadable file is set aside, and the safer state is returned."""
        text: str | None = None
        try:
            text = self._store.load()
            if text is None:
                return SavedLevels.of(now, self._levels, LadderState())
            saved = parse(text, self._levels)
        except ValueError as error:
            log.warning("%s cannot be used: %s", self.path, error)
            self._store.set_aside()
            return safer(text, self._levels, now)
        if saved.probe_baselines is not None:
            self._probe_baselines.recall(saved.probe_baselines)
        resumed = saved.resume_at(now)
        # Nothing is written until something changes. But a clock that went back has changed all times: if they were not
        # written, each restart would postpone the end of a hold again.
        self._kept = _timeless(saved)
        return resumed

    def keep(self, at: float, ladder: LadderState, **more: Any) -> None:
        """Saves the state; see `SavedLevels.of`. A failure is counted, and logged once until a save succeeds."""
        try:
            saved = SavedLevels.of(at, self._levels, ladder, probe_baselines=self._probe_baselines, **more)
            timeless = _timeless(saved)
            if timeless == self._kept:
                self.unsaved = ""
                self._outage.clear(f"{self.path} has the present level again")
                return
            self._store.save(saved.model_dump_json(indent=1))
        except (OSError, ValueError) as error:
            self._store.errors += 1
            self.unsaved = f"{self.path} cannot be saved: {getattr(error, 'strerror', None) or error}"
            self._outage.report(f"{self.unsaved}; a restart would not know the present level", self.unsaved)
            return
        self.unsaved, self._kept = "", timeless
        self._outage.clear(f"{self.path} can be saved again")


def _timeless(saved: SavedLevels) -> str:
    return saved.model_dump_json(exclude={"at"})


def _position(was: LadderLevel, levels: Sequence[LadderLevel]) -> int:
    """Returns the position of the level `was`. If the ladder lacks that level, returns the first of the same kind whose
    drafts are no longer (for light drafts: whose drafter is no more expensive), or else the first of a lower kind. The
    full level is always position 0."""
    if was.kind is FallbackLevel.FULL:
        return 0
    if was in levels:
        return levels.index(was)
    return next((i for i, level in enumerate(levels) if _no_more(level, was)), len(levels) - 1)


def _no_more(level: LadderLevel, was: LadderLevel) -> bool:
    if level.kind is not was.kind:
        return level.kind < was.kind
    if level.drafter is not None and was.drafter is not None and level.kind is FallbackLevel.LIGHT_DRAFT:
        return drafter_cost_rank(level.drafter) >= drafter_cost_rank(was.drafter)
    return level.max_draft_tokens <= was.max_draft_tokens
