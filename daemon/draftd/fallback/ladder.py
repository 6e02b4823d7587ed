"""The ladder: how far down, when, and when back up. State, demands and `now` in; state and a transition out.

The rungs are FULL, then each shorter block, then each lighter drafter, then AUTOREGRESSIVE. Signals demand a level; the
lowest demanded is where the ladder is heading. It goes down a rung a dwell, and to a hard demand at once; it goes up a
rung at a time, when nothing demands it down, the wait is over and a probe of the rung above was good.

The first step up after one down waits for two dwells, the next ones for one each. So down, up and down again takes two
dwells at least, whatever asks for it and however hard: nothing flaps. Each relapse doubles the wait, up to a limit; a
long good time halves it again, so that nothing latches."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from draftd.core import DrafterName, FallbackLevel


class Signal(enum.StrEnum):
    """What may demand a level."""

    ACCEPTANCE_FLOOR = "acceptance_floor"
    ACCEPTANCE_DRIFT = "acceptance_drift"
    BREAK_EVEN = "break_even"
    SWAP = "swap"
    MEMORY = "memory"
    THERMAL = "thermal"
    VERIFIER_ERRORS = "verifier_errors"
    DRAFTER_ERRORS = "drafter_errors"
    QUALITY = "quality"
    ALERT = "alert"


@dataclass(frozen=True, slots=True)
class Demand:
    """A signal's wish for a ceiling. A hard one is obeyed at once. `evidence`: the figures, for people."""

    signal: Signal
    level: FallbackLevel
    evidence: str
    hard: bool = False


@dataclass(frozen=True, slots=True)
class Rung:
    """What is allowed at one place of the ladder. AUTOREGRESSIVE has neither tokens nor a drafter."""

    level: FallbackLevel
    max_draft_tokens: int
    drafter: DrafterName | None

    @property
    def label(self) -> str:
        """The level, and what tells this rung from others of it: `short_block 3`, `light_draft prompt_lookup`."""
        if self.level is FallbackLevel.SHORT_BLOCK:
            return f"{self.level.label} {self.max_draft_tokens}"
        if self.level is FallbackLevel.LIGHT_DRAFT:
            return f"{self.level.label} {self.drafter}"
        return self.level.label


def rungs(
    max_draft_tokens: int, blocks: Sequence[int], drafter: DrafterName, lighter: Sequence[DrafterName]
) -> tuple[Rung, ...]:
    """From the top. `blocks` that are no shorter than what is above them, and drafters already used, are left out.

    Where nothing may be drafted there is no way down: the only rung is FULL, with no tokens.
    """
    found = [Rung(FallbackLevel.FULL, max_draft_tokens, drafter)]
    if not max_draft_tokens:
        return tuple(found)
    for block in blocks:
        if 0 < block < found[-1].max_draft_tokens:
            found.append(Rung(FallbackLevel.SHORT_BLOCK, block, drafter))
    used = {drafter}
    for one in lighter:
        if one not in used:
            used.add(one)
            found.append(Rung(FallbackLevel.LIGHT_DRAFT, found[-1].max_draft_tokens, one))
    return (*found, Rung(FallbackLevel.AUTOREGRESSIVE, 0, None))


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """Seconds."""

    dwell: float = 300.0  # least time between two steps, hard ones down excepted
    longest_wait: float = 7200.0  # however many relapses
    relapse_within: float = 1800.0  # a step down so soon after a step up is a relapse
    forgiven_after: float = 7200.0  # on the top rung, without a step down: one relapse is forgotten


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's word. `until` None is for ever."""

    rung: int
    until: float | None = None

    def over(self, now: float) -> bool:
        return self.until is not None and now >= self.until


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where the ladder stands. `rung` counts from the top, 0. Times are the caller's clock, in seconds."""

    rung: int = 0
    since: float = 0.0
    cause: str = ""
    relapses: int = 0
    climbed: float | None = None  # the last step up; None once it was followed by one down
    hold: Hold | None = None
    forgave: float | None = None  # when a relapse was last forgotten

    def wait(self, settings: LadderSettings) -> float:
        """How long a rung must have been stood on before the next step up."""
        least = settings.dwell if self.climbed is not None else 2 * settings.dwell
        return max(least, min(least * 2.0 ** min(self.relapses, 30), settings.longest_wait))


@dataclass(frozen=True, slots=True)
class Step:
    """One transition. `previous` and `current` are rungs."""

    previous: int
    current: int
    cause: str
    at: float


def move(
    state: Ladder,
    ladder: Sequence[Rung],
    demands: Iterable[Demand],
    probe_good: bool,
    settings: LadderSettings,
    now: float,
    target: int | None = None,
) -> tuple[Ladder, Step | None]:
    """The next state, and the step that led there. `probe_good`: a probe of `target`, made since the last step, was
    good. That is the rung above, or one above it where those between were tried and found wanting: a drafter that is no
    good on this text must not bar the way to one that is. A clock that jumped back counts as no time having passed."""
    if now < state.since or state.rung >= len(ladder):
        state = replace(state, since=min(state.since, now), rung=min(state.rung, len(ladder) - 1))
    if state.hold is not None:
        if not state.hold.over(now):
            return _to(state, min(state.hold.rung, len(ladder) - 1), "hold: an operator's word", now)
        state = released(state, now)
    wanted = [(lowest(ladder, demand.level), demand) for demand in demands]
    below = [(rung, demand) for rung, demand in wanted if rung > state.rung]
    stood = now - state.since
    if below:
        hard = [(rung, demand) for rung, demand in below if demand.hard]
        rung, demand = max(hard or below, key=lambda found: found[0])
        if hard:
            return _down(state, rung, demand, settings, now)
        if stood >= settings.dwell or not state.cause:  # the first step of all has nothing to wait for
            return _down(state, state.rung + 1, demand, settings, now)
        return state, None
    if state.rung == 0:
        good = now - max(state.since, min(state.forgave or state.since, now))
        if state.relapses and good >= settings.forgiven_after:
            return replace(state, relapses=state.relapses - 1, forgave=now), None
        return state, None
    above = state.rung - 1 if target is None else max(0, min(target, state.rung - 1))
    if probe_good and stood >= state.wait(settings) and not any(rung > above for rung, _ in wanted):
        state, step = _to(state, above, "recovered: a probe of the level above was good", now)
        return replace(state, climbed=now), step
    return state, None


def held(state: Ladder, hold: Hold) -> Ladder:
    """The operator's word is given: the next move obeys it."""
    return replace(state, hold=hold)


def released(state: Ladder, now: float) -> Ladder:
    """The operator's word is over: what is demanded is asked anew, and a step is a dwell away at least."""
    return replace(state, hold=None, since=now)


def to_probe(ladder: Sequence[Rung], rung: int, tried: Collection[int]) -> int | None:
    """What to probe next from `rung`, with those rungs tried in vain since the last step: the nearest one above whose
    drafter was not among them, or the rung above again once all drafters were. None at the top."""
    if rung == 0:
        return None
    vain = {ladder[one].drafter for one in tried}
    return next((one for one in range(rung - 1, -1, -1) if ladder[one].drafter not in vain), rung - 1)


def lowest(ladder: Sequence[Rung], level: FallbackLevel) -> int:
    """Where a demand for `level` leads: its last rung, so that what goes on being bad at a short block leads to a
    shorter one; the first rung below it where it has none."""
    own = [i for i, rung in enumerate(ladder) if rung.level is level]
    return own[-1] if own else next((i for i, rung in enumerate(ladder) if rung.level < level), len(ladder) - 1)


def highest(ladder: Sequence[Rung], level: FallbackLevel) -> int:
    """Where a person who names `level` wants to be: its first rung, or the first one below it."""
    return next((i for i, rung in enumerate(ladder) if rung.level <= level), len(ladder) - 1)


def _down(state: Ladder, rung: int, demand: Demand, settings: LadderSettings, now: float) -> tuple[Ladder, Step | None]:
    relapsed = state.climbed is not None and now - state.climbed <= settings.relapse_within
    state = replace(state, relapses=state.relapses + relapsed, climbed=None)
    return _to(state, rung, f"{demand.signal}: {demand.evidence}", now)


def _to(state: Ladder, rung: int, cause: str, now: float) -> tuple[Ladder, Step | None]:
    if rung == state.rung:
        return state, None
    return replace(state, rung=rung, since=now, cause=cause), Step(state.rung, rung, cause, now)


def flaps(steps: Iterable[Step], dwell: float) -> list[tuple[Step, Step, Step]]:
    """Each step up with the last step down before it and the next one after it, where those two lie less than two
    dwells apart. `steps` are in order of time."""
    found: list[tuple[Step, Step, Step]] = []
    down: Step | None = None
    up: Step | None = None
    for step in steps:
        if step.current < step.previous:
            up = step if up is None else up  # a climb of several rungs counts once, from its first step
            continue
        if down is not None and up is not None and step.at - down.at < 2 * dwell:
            found.append((down, up, step))
        down, up = step, None
    return found
