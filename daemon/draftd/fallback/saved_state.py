"""What a restart must not lose, as one JSON document: the ladder, the leases, the baselines, the canaries' verdict.

Times are the ladder's clock, which is the wall clock at start and what has passed since. A level is saved as what it
allows, since a restart may come with another ladder. A document that cannot be read leads lower, never higher.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic_core import from_json

from draftd.core import FallbackLevel, drafter_cost_rank
from draftd.fallback.baselines import Baselines, ProbeBaselines
from draftd.fallback.drift import Baseline, StreamKey
from draftd.fallback.ladder import Cause, LadderLevel, LadderState, Signal, lowest
from draftd.fallback.leases import Leases
from draftd.fallback.logs import OutageLog
from draftd.fallback.seams import FallbackTelemetry
from draftd.fallback.store import Document, StateStore, explained

log = logging.getLogger(__name__)

_LATEST = 253_402_300_799.0  # the year 9999, the last one that has a date


@dataclass(frozen=True, slots=True)
class Saved:
    """`at` is when it was saved. `quality` as Guard has it."""

    at: float
    ladder: LadderState = field(default_factory=LadderState)
    leases: Leases = field(default_factory=Leases)
    baselines: Mapping[StreamKey, Baseline] = field(default_factory=dict)
    quality: str = ""

    def resumed(self, now: float) -> Saved:
        """As of `now`, after a restart. Where the clock has gone back no time has passed: everything moves with it."""
        back = self.at - now
        if back <= 0:
            return self

        def moved(at: float | None) -> float | None:
            return None if at is None else at - back

        state = self.ladder
        hold = state.hold and replace(state.hold, until=moved(state.hold.until))
        stepped_up, forgave = moved(state.stepped_up), moved(state.forgave)
        ladder = replace(state, since=state.since - back, stepped_up=stepped_up, forgave=forgave, hold=hold)
        leases = {name: replace(lease, until=lease.until - back) for name, lease in self.leases.held.items()}
        return replace(self, at=now, ladder=ladder, leases=replace(self.leases, held=leases))


def _dated(leases: Leases) -> Leases:
    times = [*(lease.notice.starts_at for lease in leases.held.values()), *leases.ended.values()]
    if not all(0 <= at <= _LATEST for at in times):
        raise ValueError("alerts that begin between 1970 and 9999")
    return leases


class _State(Document):
    """`level` and `hold_level` are what the ladder's positions stood for."""

    version: Literal[2] = 2
    at: float
    level: LadderLevel
    hold_level: LadderLevel | None
    ladder: LadderState
    leases: Annotated[Leases, AfterValidator(_dated)]
    baselines: Baselines
    quality: str
    pair: str = ""
    probe_baselines: Any = None

    @classmethod
    def read(cls, text: str) -> _State:
        """Raises ValueError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise explained(error) from None

    def saved(self, ladder: Sequence[LadderLevel]) -> Saved:
        hold, hold_level = self.ladder.hold, self.hold_level
        if hold is not None and hold_level is not None:
            hold = replace(hold, position=_position(hold_level, ladder))
        state = replace(self.ladder, position=_position(self.level, ladder), hold=hold)
        return Saved(self.at, state, self.leases, self.baselines, self.quality)


def document(saved: Saved, ladder: Sequence[LadderLevel], **more: Any) -> str:
    """The JSON that `parse` reads. `more`: the pair, and what probes showed."""
    hold = saved.ladder.hold
    return _State(
        at=saved.at,
        level=ladder[saved.ladder.position],
        hold_level=None if hold is None else ladder[hold.position],
        ladder=saved.ladder,
        leases=saved.leases,
        baselines=dict(saved.baselines),
        quality=saved.quality,
        **more,
    ).model_dump_json(indent=1)


def parse(text: str, ladder: Sequence[LadderLevel]) -> Saved:
    """What was saved, for this ladder: a level that it lacks is the nearest lower one. Raises ValueError, which names
    the field, its value and what is allowed."""
    return _State.read(text).saved(ladder)


def safer(text: str | None, ladder: Sequence[LadderLevel], now: float) -> Saved:
    """What to begin with where `parse` raises: the level, if that can be read; else the last one of SHORT_BLOCK."""
    try:
        level = TypeAdapter(LadderLevel).validate_python(from_json(text or "")["level"])
        position = _position(level, ladder)
    except (ValueError, TypeError, LookupError):
        position = lowest(ladder, FallbackLevel.SHORT_BLOCK)
    signal = Signal(Cause.UNREADABLE_STATE, ladder[position].kind, "the saved state could not be read")
    return Saved(now, LadderState(position, since=now, signal=signal))


class SavedState:
    """Reads and keeps it. One thread's. `pair` names the models: what was learnt of others is not theirs."""

    def __init__(
        self,
        store: StateStore,
        ladder: Sequence[LadderLevel],
        telemetry: FallbackTelemetry,
        probe_baselines: ProbeBaselines,
        pair: str = "",
    ) -> None:
        self._store, self._ladder, self._telemetry, self._pair = store, tuple(ladder), telemetry, pair
        self._probe_baselines = probe_baselines
        self._kept: str | None = None  # as it is on the disk, but for its time
        self._outage = OutageLog(log)

    @property
    def path(self) -> Path | None:
        return self._store.path

    def restore(self, now: float) -> Saved:
        """What was saved, as of `now`. What cannot be read is put aside, and the safer state is begun with."""
        text: str | None = None
        try:
            text = self._store.load()
            if text is None:
                return Saved(now)
            state = _State.read(text)
        except ValueError as error:
            log.warning("%s cannot be used: %s", self.path, error)
            self._store.set_aside()
            return safer(text, self._ladder, now)
        found = state.saved(self._ladder)
        if state.pair != self._pair:
            log.info("%s is of other models: its level is kept, what was learnt of them is not", self.path)
            found = replace(found, baselines={}, quality="")
        elif state.probe_baselines is not None:
            try:
                self._probe_baselines.recall(state.probe_baselines)
            except ValueError as error:  # it is learnt again; the rest stays valid
                log.warning("what probes showed is to be learnt anew: %s: %s", self.path, error)
        return found.resumed(now)

    def keep(self, saved: Saved) -> None:
        """What cannot be saved is counted, and logged once until it can be again."""
        more = {"pair": self._pair, "probe_baselines": self._probe_baselines.document()}
        try:
            timeless = document(replace(saved, at=0.0), self._ladder, **more)
            if timeless == self._kept:
                return
            self._store.save(document(saved, self._ladder, **more))
        except (OSError, ValueError) as error:
            self._telemetry.save_failed()
            self._outage.began(f"{self.path} cannot be saved: {error}; a restart would not find the level of now")
            return
        self._outage.ended(f"{self.path} can be saved again")
        self._kept = timeless


def _position(was: LadderLevel, ladder: Sequence[LadderLevel]) -> int:
    """The same level's; else that of the highest of its kind that allows no more; else of the first one of a lower
    kind. The top stays the top, whatever it allows now."""
    if was.kind is FallbackLevel.FULL:
        return 0
    if was in ladder:
        return ladder.index(was)
    return next((i for i, level in enumerate(ladder) if _no_more(level, was)), len(ladder) - 1)


def _no_more(level: LadderLevel, was: LadderLevel) -> bool:
    if level.kind is not was.kind:
        return level.kind < was.kind
    if level.drafter is not None and was.drafter is not None and level.kind is FallbackLevel.LIGHT_DRAFT:
        return drafter_cost_rank(level.drafter) >= drafter_cost_rank(was.drafter)
    return level.max_draft_tokens <= was.max_draft_tokens
