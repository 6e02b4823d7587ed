"""The ladder: how far to fall back, when, and when to come back. State, signals and `now` in; state and a step out.

The ladder is a list of levels from the top: everything configured, then shorter blocks, then lighter drafters, then no
drafts. `FallbackLevel` names the four kinds; a `LadderLevel` is one level of the list, which may have several of one
kind. Positions count from the top, which is 0.

Signals ask for a kind of level; the ladder heads for the lowest one asked for. It goes down one level per cooldown, or
at once for a hard signal. It goes up one level at a time, when no signal asks for the present level, the wait is over
and a probe of the level above was good.

The first step up after one down waits for two cooldowns, the next ones for one each. So down, up and down again takes
at least two cooldowns, and nothing flaps. Each relapse doubles the wait up to a limit; a long good time halves it
again, so nothing latches.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import Field

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, FallbackLevel, LadderLevel
from draftd.journal import Journal, Subject
from draftd.settings import FallbackSettings, Settings
from draftd.strategies import RemoteLevel

log = logging.getLogger(__name__)

_RELAPSE_COOLDOWNS, _RELAPSE_WINDOWS = 6, 4  # seeing that a step up was too early takes two windows


Kind = FallbackLevel | RemoteLevel
Level = LadderLevel | RemoteLevel
"""One level of a ladder: of the daemon's, or of what another daemon is asked for."""

LevelT = TypeVar("LevelT", bound=Level)


class Cause(enum.StrEnum):
    """The cause of a ladder's step. Also the attribute's value in metrics and the journal."""

    ACCEPTANCE_FLOOR = "acceptance_floor"
    ACCEPTANCE_DRIFT = "acceptance_drift"
    BREAK_EVEN = "break_even"
    SWAP = "swap"
    MEMORY = "memory"
    THERMAL = "thermal"
    VERIFIER_ERRORS = "verifier_errors"
    DRAFTER_ERRORS = "drafter_errors"
    QUALITY = "quality"
    REMOTE_ERRORS = "remote_errors"
    REMOTE_ROUND_TRIP = "remote_round_trip"
    REMOTE_BREAK_EVEN = "remote_break_even"
    ALERT = "alert"
    HOLD = "hold"
    RELEASED = "released"
    RECOVERED = "recovered"
    UNREADABLE_STATE = "unreadable_state"


@dataclass(frozen=True, slots=True)
class Signal:
    """A request to be at a lower level. `asks_for`: the highest kind of level that the signal allows. A hard signal is
    obeyed at once and also limits running requests. `evidence`: the figures, for people."""

    cause: Cause
    asks_for: Kind
    evidence: str = ""
    hard: bool = False

    @property
    def text(self) -> str:
        return f"{self.cause}: {self.evidence}" if self.evidence else str(self.cause)


def ladder_levels(
    max_draft_tokens: int, blocks: Sequence[int], drafter: DrafterName, lighter: Sequence[DrafterName]
) -> tuple[LadderLevel, ...]:
    """Returns the levels from the top. Omits `blocks` that are not shorter than the level above, and drafters already
    used. If nothing may be drafted, the only level is FULL with no tokens."""
    levels = [LadderLevel(FallbackLevel.FULL, max_draft_tokens, drafter)]
    if not max_draft_tokens:
        return tuple(levels)
    for block in blocks:
        if 0 < block < levels[-1].max_draft_tokens:
            levels.append(LadderLevel(FallbackLevel.SHORT_BLOCK, block, drafter))
    used = {drafter}
    for drafter_name in lighter:
        if drafter_name not in used:
            used.add(drafter_name)
            levels.append(LadderLevel(FallbackLevel.LIGHT_DRAFT, levels[-1].max_draft_tokens, drafter_name))
    return (*levels, LadderLevel(FallbackLevel.AUTOREGRESSIVE, 0, None))


def configured_ladder(settings: Settings) -> tuple[LadderLevel, ...]:
    """Returns the levels that the settings allow, from the top."""
    configured = {
        PROMPT_LOOKUP: settings.model.prompt_lookup,
        LIGHT_DRAFT_MODEL: settings.model.light_draft_path is not None,
    }
    return ladder_levels(
        settings.engine.max_draft_tokens,
        settings.fallback.blocks,
        settings.model.drafter or DRAFT_MODEL,
        [kind for kind in settings.fallback.lighter if configured.get(kind, True)],
    )


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """Times of the ladder, in seconds."""

    cooldown: float = 300.0  # least time between two steps, except hard ones down
    longest_wait: float = 7200.0  # the longest wait, however many relapses
    relapse_within: float = 1800.0  # a step down within this time after a step up is a relapse
    forgiven_after: float = 7200.0  # after this time at the top, one relapse is forgotten

    @classmethod
    def of(cls, settings: FallbackSettings) -> LadderSettings:
        cooldown = settings.cooldown_seconds
        longest = max(settings.longest_wait_seconds, cooldown)
        relapse = max(_RELAPSE_COOLDOWNS * cooldown, _RELAPSE_WINDOWS * settings.window_seconds)
        return cls(cooldown, longest, relapse, forgiven_after=longest)


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's hold of the ladder at `position`. `until` None: until released. `before`: the position to return to
    afterwards; `released`: by the operator."""

    position: int
    until: float | None = None
    before: int = 0
    released: bool = False

    @property
    def evidence(self) -> str:
        if self.until is None:
            return "by an operator, until it is released"
        return f"by an operator, until {utc_text(self.until)}"


def utc_text(seconds: float) -> str:
    """Returns a time since 1970 as text."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class LadderState:
    """The position of the ladder. Times are the caller's clock, in seconds."""

    position: int = 0
    since: float = 0.0
    signal: Signal | None = None  # the signal of the last step
    relapses: Annotated[int, Field(ge=0)] = 0
    stepped_up: float | None = None  # time of the last step up; None after a step down
    hold: Hold | None = None
    forgave: float | None = None  # time at which a relapse was last forgotten

    @property
    def held(self) -> bool:
        return self.hold is not None

    def shift_clock(self, seconds: float) -> LadderState:
        """Returns the state with times moved by `seconds`. `since` stays 0 for a ladder that never moved."""
        since = self.since and self.since + seconds
        stepped_up = None if self.stepped_up is None else self.stepped_up + seconds
        forgave = None if self.forgave is None else self.forgave + seconds
        hold = self.hold
        if hold is not None and hold.until is not None:
            hold = replace(hold, until=hold.until + seconds)
        return replace(self, since=since, stepped_up=stepped_up, forgave=forgave, hold=hold)

    def wait(self, settings: LadderSettings) -> float:
        """Returns how long the ladder must have been at a level before the next step up."""
        least = settings.cooldown if self.stepped_up is not None else 2 * settings.cooldown
        return max(least, min(least * 2.0 ** min(self.relapses, 30), settings.longest_wait))


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission for a step up: the position it leads to, and the evidence for it."""

    position: int
    evidence: str = ""


class Ladder(Generic[LevelT]):
    """A ladder: its levels, its position, and a record of each move. One caller at a time moves it; any thread may read
    `level`, the ceiling of new plans."""

    def __init__(
        self,
        levels: Sequence[LevelT],
        journal: Journal | None = None,
        settings: LadderSettings | None = None,
        *,
        subject: Subject = Subject.LEVEL,
    ) -> None:
        """`subject` names the ladder in the journal and the log."""
        self.levels = tuple(levels)
        self.settings = settings or LadderSettings()
        self.state = LadderState()
        self.position = 0  # the position in force; a lower one in the state is saved before it is in force
        self._journal = journal if journal is not None else Journal()
        self._subject = subject

    @property
    def level(self) -> LevelT:
        return self.levels[self.position]

    @property
    def wait(self) -> float:
        """Returns the seconds that a level must have been in force before the next step up."""
        return self.state.wait(self.settings)

    def resume(self, state: LadderState) -> None:
        """Restores an earlier process's state, without recording a move."""
        self.state, self.position = state, state.position

    def next_state(self, signals: Iterable[Signal], permit: Permit | None, now: float) -> LadderState:
        """Returns the next state by the function `move`. Changes nothing."""
        return move(self.state, self.levels, signals, permit, self.settings, now)

    def take(self, state: LadderState) -> Signal | None:
        """Stores `state`, without putting its level in force, which the method `move` does. Returns the signal that
        caused a step; None if the position stays the same."""
        before, self.state = self.state, state
        if before.hold is not None and not state.held:
            self.note(Cause.RELEASED, "by an operator" if before.hold.released else "the hold's time is over")
        return None if state.position == before.position else state.signal

    def move(self, position: int, signal: Signal) -> bool:
        """Puts a level in force for the next plans. Returns False if it already was."""
        before, after = self.level, self.levels[position]
        if position == self.position:
            return False
        self.position = position
        self._journal.record(self._subject, before.label, after.label, signal.cause, signal.evidence)
        log.info("%s %s, was %s: %s", self._subject, after.label, before.label, signal.text)
        return True

    def hold(self, kind: Kind, until: float | None) -> None:
        """Holds the ladder at `highest(kind)` from the next look on. `until`: as in `Hold`."""
        previous = self.state.hold
        hold = Hold(highest(self.levels, kind), until, self.state.position if previous is None else previous.before)
        self.state = replace(self.state, hold=hold)
        if hold.position == self.state.position:
            self.note(Cause.HOLD, hold.evidence)

    def release(self, now: float) -> bool:
        """Ends the hold with the next look. Returns whether there was one."""
        hold = self.state.hold
        if hold is None or hold.released:
            return False
        self.state = replace(self.state, hold=replace(hold, until=now, released=True))
        return True

    def note(self, cause: str, evidence: str) -> None:
        """Records an event that concerns the level in force without changing it."""
        self._journal.record(self._subject, self.level.label, self.level.label, cause, evidence)


def move(
    state: LadderState,
    ladder: Sequence[Level],
    signals: Iterable[Signal],
    permit: Permit | None,
    settings: LadderSettings,
    now: float,
) -> LadderState:
    """Returns the next state. A different position means a step; its `signal` is the cause.

    `permit` is for the level above, or for a higher one if those between were probed without success: a drafter that
    does not suit this text must not bar the way to one that does. A clock that jumped back counts as no time passed."""
    if now < state.since:
        state = replace(state, since=now)
    if (hold := state.hold) is not None:
        if hold.until is None or now < hold.until:
            signal = Signal(Cause.HOLD, ladder[hold.position].kind, hold.evidence)
            return _to(_replace_hold_signal(state, signal), hold.position, signal, now)
        return _unheld(state, hold, ladder, signals, now)
    wanted = [(lowest(ladder, signal.asks_for), signal) for signal in signals]
    below = [(position, signal) for position, signal in wanted if position > state.position]
    waited = now - state.since
    if below:
        hard = [(position, signal) for position, signal in below if signal.hard]
        position, signal = max(hard or below, key=lambda candidate: candidate[0])
        if hard:
            return _down(state, position, signal, settings, now)
        if waited >= settings.cooldown or state.signal is None:  # the very first step need not wait
            return _down(state, state.position + 1, signal, settings, now)
        return state
    if state.position == 0:
        good = now - max(state.since, min(state.forgave or state.since, now))
        if state.relapses and good >= settings.forgiven_after:
            return replace(state, relapses=state.relapses - 1, forgave=now)
        return state
    if permit is None or waited < state.wait(settings):
        return state
    above = max(0, min(permit.position, state.position - 1))
    if any(position > above for position, _ in wanted):
        return state
    signal = Signal(Cause.RECOVERED, ladder[above].kind, permit.evidence)
    return replace(_to(state, above, signal, now), stepped_up=now)


def to_probe(ladder: Sequence[LadderLevel], position: int, tried: Collection[int]) -> int | None:
    """Returns the position to probe next; None at the top. `tried`: positions that were probed without success since
    the last step. Prefers the nearest level above whose drafter is not that of a tried level. If all drafters above
    were tried, returns the level above."""
    if position == 0:
        return None
    vain = {ladder[index].drafter for index in tried}
    return next((index for index in range(position - 1, -1, -1) if ladder[index].drafter not in vain), position - 1)


def lowest(ladder: Sequence[Level], kind: Kind) -> int:
    """Returns the position that a signal for `kind` leads to: the last level of this kind, so that trouble that
    persists at a short block leads to a shorter one. If the ladder has no such level, the first level of a lower
    kind."""
    own = [i for i, level in enumerate(ladder) if level.kind is kind]
    return own[-1] if own else next((i for i, level in enumerate(ladder) if level.kind < kind), len(ladder) - 1)


def highest(ladder: Sequence[Level], kind: Kind) -> int:
    """Returns the position for an operator who names `kind`: the first level of this kind. If the ladder has no such
    level, the first level of a lower kind."""
    return next((i for i, level in enumerate(ladder) if level.kind <= kind), len(ladder) - 1)


def _unheld(
    state: LadderState, hold: Hold, ladder: Sequence[Level], signals: Iterable[Signal], now: float
) -> LadderState:
    """Returns the state after a hold. A ladder held lower than before goes back at once to its earlier position; a
    ladder held higher stays. Either goes lower if a signal asks for that. The next step is at least a cooldown away."""
    back = Signal(Cause.RELEASED, ladder[hold.before].kind, "the hold is over")
    candidates = [
        (min(hold.before, state.position), back),
        *((lowest(ladder, signal.asks_for), signal) for signal in signals),
    ]
    position, signal = max(candidates, key=lambda candidate: candidate[0])
    return _to(replace(_replace_hold_signal(state, signal), hold=None, since=now), position, signal, now)


def _replace_hold_signal(state: LadderState, signal: Signal) -> LadderState:
    """Replaces the state's `signal` by a newer one if a hold was the cause of the present position; otherwise returns
    the state unchanged."""
    return replace(state, signal=signal) if state.signal is not None and state.signal.cause is Cause.HOLD else state


def _down(state: LadderState, position: int, signal: Signal, settings: LadderSettings, now: float) -> LadderState:
    relapsed = state.stepped_up is not None and now - state.stepped_up <= settings.relapse_within
    return _to(replace(state, relapses=state.relapses + relapsed, stepped_up=None), position, signal, now)


def _to(state: LadderState, position: int, signal: Signal, now: float) -> LadderState:
    if position == state.position:
        return state
    return replace(state, position=position, since=now, signal=signal)
