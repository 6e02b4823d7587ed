"""The state that survives a restart, as one JSON document: the ladder, the leases, the baselines, the canaries'
verdict.

Times are the ladder's clock, which is the wall clock at start and what has passed since. A level is saved as what it
allows, since a restart may come with another ladder. A document that cannot be read leads lower, never higher.
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
    """None where it cannot be read: it is learnt again, and the rest stays valid."""
    try:
        baselines: ProbeBaselines | None = read(document)
        return baselines
    except ValidationError as error:
        why = first_fault(error, "probe_baselines.")
        log.warning("the probes' baselines cannot be used and are learnt again: %s", why)
        return None


class _Level(Document):
    level: LadderLevel


class SavedLevels(_Level):
    """`at` is when it was saved; `level`, `hold_level` and `unheld_level` are what the ladder's positions stood for;
    `quality` as Guard has it."""

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
        """Of a ladder with these levels; `more` are the other fields. Raises ValueError where one cannot be saved."""
        level, hold = levels[ladder.position], ladder.hold
        fields = {"leases": Leases(), "baselines": {}, "quality": "", **more}
        held_at, unheld = (None, None) if hold is None else (levels[hold.position], levels[hold.before])
        return cls(at=at, level=level, hold_level=held_at, unheld_level=unheld, ladder=ladder, **fields)

    def resume_at(self, now: float) -> SavedLevels:
        """As of `now`, after a restart. Where the clock has gone back no time has passed: everything moves with it."""
        ahead = now - self.at
        if ahead >= 0:
            return self
        ladder, remote = self.ladder.shift_clock(ahead), self.remote and self.remote.shift_clock(ahead)
        extended = {name: replace(lease, until=lease.until + ahead) for name, lease in self.leases.held.items()}
        leases = replace(self.leases, held=extended)
        return self.model_copy(update={"at": now, "ladder": ladder, "remote": remote, "leases": leases})


def parse(text: str, levels: Sequence[LadderLevel]) -> SavedLevels:
    """What was saved, for a ladder with these levels: one that it lacks is the nearest lower one. Raises ValueError,
    which names the field, its value and what is allowed."""
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
    """What to begin with where `parse` raises: the level, if that can be read; else no drafts, until a probe of a
    higher level is good: what was held there is not known any more."""
    try:
        position = _position(_Level.model_validate_json(text or "").level, levels)
    except ValidationError:
        position = lowest(levels, FallbackLevel.AUTOREGRESSIVE)
    signal = Signal(Cause.UNREADABLE_STATE, levels[position].kind, "the saved state could not be read")
    return SavedLevels.of(now, levels, LadderState(position, since=now, signal=signal))


class SavedState:
    """Reads and keeps it. One caller at a time. The store is of these models alone."""

    def __init__(
        self,
        store: StateStore,
        levels: Sequence[LadderLevel],
        probe_baselines: ProbeBaselines,
    ) -> None:
        self._store, self._levels, self._probe_baselines = store, tuple(levels), probe_baselines
        self._kept = ""  # as it is on the disk, but for its time
        self.unsaved = ""  # why it is not, where it could not be saved
        self._outage = OutageLog(log)

    @property
    def path(self) -> Path | None:
        return self._store.path

    def restore(self, now: float) -> SavedLevels:
        """What was saved, as of `now`. What cannot be read is put aside, and the safer state is begun with."""
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
        # Nothing is written before something changes. A clock that went back has changed all times: were they not
        # written, each restart would put off the end of a hold again.
        self._kept = _timeless(saved)
        return resumed

    def keep(self, at: float, ladder: LadderState, **more: Any) -> None:
        """As `Saved.of`. What cannot be saved is counted, and logged once until it can be again."""
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
    """The same level's; else that of the highest of its kind that allows no more; else of the first one of a lower
    kind. The top stays the top, whatever it allows now."""
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
