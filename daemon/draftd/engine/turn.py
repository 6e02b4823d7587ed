"""Plans the next step: the sequences that decode in it, whether prompts or a drafter have a slice before, and whether
the step after it begins early. It changes no sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftd.core import PROMPT_LOOKUP
from draftd.engine.depth.costs import DEEPEST, Batch, StepCosts
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import StepPlan

_AWAKE_SECONDS = 1.0  # since its last token: a sequence that rests is likely to go on soon
_WAVE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Turn:
    """One step. `members`: the sequences that decode in it. `in_turn`: the running sequences, resting ones too, except
    those that the fair share holds back. `room`: prompts that may join. `hurried`: sequences that a long slice of a
    prompt would delay. `catches_up`: a drafter prefills a slice of running texts, in place of a prompt. `decodes`:
    whether sequences decode; if not, the step only prefills."""

    members: list[DecodeSequence]
    in_turn: Sequence[DecodeSequence]
    room: int
    hurried: Sequence[DecodeSequence]
    catches_up: bool
    decodes: bool


def plan_turn(
    running: Sequence[DecodeSequence],
    in_turn: Sequence[DecodeSequence],
    begun: StepPlan | None,
    *,
    most: int,
    now: float,
    wave: bool = False,
    may_catch_up: bool = False,
) -> Turn:
    """Plans a step. `running`: in the target's order. `in_turn`: `running` without the sequences that the fair share
    holds back. `begun`: a step that was started early, whose sequences are fixed. `most`: sequences of a step. `wave`:
    prompts that came together are being prefilled, so nothing decodes. `may_catch_up`: a drafter lags behind and may
    have a slice."""
    due = [one for one in in_turn if not rests(one)]
    if begun is None:
        members = _members(due, most)
    else:
        ids = {entry.sequence for entry in begun.entries}
        members = [one for one in running if one.id in ids]
    hurried: Sequence[DecodeSequence] = ()
    if not wave:
        hurried = in_turn if len(due) == len(in_turn) else awake(in_turn, now)
    return Turn(
        members, in_turn, most - len(members), hurried, bool(members) and may_catch_up, bool(members) and not wave
    )


def runs_ahead(turn: Turn, *, prefilling: bool, masked: bool) -> bool:
    """Returns whether the next step may begin before this step's result is read. Both must have the same sequences, and
    peers must propose nothing and have granted at least two tokens. `prefilling`: a slice of a prompt comes next.
    `masked`: a grammar's mask needs this step's token."""
    if prefilling or masked:
        return False
    due = [one.proposals for one in turn.in_turn if one.of_peer and not rests(one)]
    return len(due) == sum(one.of_peer for one in turn.members) and all(proposals.streams for proposals in due)


def rests(sequence: DecodeSequence) -> bool:
    """Returns whether the sequence takes no part in steps, because its peer has sent no step."""
    return not sequence.proposals.due(sequence.tokens)


def _members(due: list[DecodeSequence], most: int) -> list[DecodeSequence]:
    """Returns at most `most` of the sequences: those whose last token is oldest."""
    if len(due) <= most:
        return due
    oldest = {one.id for one in sorted(due, key=lambda one: one.stats.last_token or 0.0)[:most]}
    return [one for one in due if one.id in oldest]


def awake(in_turn: Sequence[DecodeSequence], now: float) -> list[DecodeSequence]:
    """Returns the sequences that do not rest, or whose last token is less than a second old."""
    since = now - _AWAKE_SECONDS
    return [one for one in in_turn if not rests(one) or (one.stats.last_token or since) > since]


class Wave:
    """Prompts that came at about the same time are prefilled before any of them decodes, and so decode together."""

    def __init__(self) -> None:
        self._ends = -math.inf

    def goes_on(self, now: float, running: int, short_prompts: int) -> bool:
        """Returns whether the wave goes on: prompts are prefilled, and nothing decodes in this step. A wave begins when
        nothing runs, and lasts up to half a second while more short prompts wait than sequences run."""
        if not running:
            self._ends = now + _WAVE_SECONDS
        elif short_prompts <= running:
            self._ends = -math.inf
        return now < self._ends


class BatchWait:
    """Delays a step of peers' sequences a moment for those of other peers, if one forward for all costs less than
    two."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """`seconds`: the longest that a step waits; 0: none does."""
        self._seconds, self._clock = seconds, clock
        self._until: float | None = None  # the end of the wait under way

    def wait(self, running: Sequence[DecodeSequence], taking_part: Sequence[DecodeSequence], costs: StepCosts) -> float:
        """Returns how many seconds the next step may wait; 0 begins it."""
        now = self._clock()
        self._until = self._end(running, taking_part, costs, now) if self._seconds else None
        return 0.0 if self._until is None else self._until - now

    def _end(
        self, running: Sequence[DecodeSequence], taking_part: Sequence[DecodeSequence], costs: StepCosts, now: float
    ) -> float | None:
        if not taking_part or any(not one.of_peer for one in running):
            return None
        until = now + self._seconds if self._until is None else self._until
        others = [one.proposals for one in running if rests(one)]
        if now >= until or not any(now <= proposals.expected <= until for proposals in others):
            return None
        depth = min(max(len(one.proposed) for one in taking_part), DEEPEST - 1)
        sizes = len(taking_part) + 1, len(taking_part), 1
        together, apart, another = (costs.by_depth(PROMPT_LOOKUP, Batch(size), depth)[depth] for size in sizes)
        return until if apart + another - together >= self._seconds else None
