"""The fallback ladder in words: where it stands, who holds it, what asks for another level, and what comes next."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from draftd.cli.figures import span
from draftd.core import FallbackLevel

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from draftd.v1 import control_pb2 as pb

_RANKS = {level.label: level.value for level in FallbackLevel}
_DAY = 86_400


def label(rung: pb.Rung) -> str:
    """The level, and what tells this rung from others of it, as transitions call it."""
    if rung.level == FallbackLevel.SHORT_BLOCK.label:
        return f"{rung.level} {rung.max_draft_tokens}"
    if rung.level == FallbackLevel.LIGHT_DRAFT.label:
        return f"{rung.level} {rung.drafter}"
    return rung.level


def standing(state: pb.FallbackState) -> str:
    """The rung's name; empty of a state that has no ladder."""
    return label(state.ladder[state.rung]) if state.rung < len(state.ladder) else ""


def rank(level: str) -> int:
    """3 is full; a name that this version does not know is the lowest."""
    return _RANKS.get(level, 0)


def place(state: pb.FallbackState) -> str:
    """How far down that is."""
    below = len(state.ladder) - 1
    return "the top" if not state.rung else f"{state.rung} of {below} down"


def held(state: pb.FallbackState, now: datetime) -> str:
    """Until when it is held; empty where nobody holds it."""
    if not state.HasField("hold"):
        return ""
    if not state.hold.HasField("until"):
        return "until it is released"
    until = moment(state.hold.until)
    return f"until {clock(until, now)} ({span(_whole(until, now))} left)"


def demand(one: pb.Demand) -> str:
    """Who asks for what, with the figures."""
    how = f"{one.signal} asks for {one.level}" + (" at once" if one.hard else "")
    return f"{how}: {one.evidence}" if one.evidence else how


def lease(one: pb.Lease, now: datetime) -> str:
    until = moment(one.until)
    return f"{one.alert} asks for {one.level}, until {clock(until, now)} unless it is repeated"


def outlook(state: pb.FallbackState, now: datetime) -> str:
    """What would move it next; empty where it is at the top and nothing asks for another level."""
    asked = [(_leads(state, one), one) for one in state.demands]
    lower = [(rung, one) for rung, one in asked if rung > state.rung]
    if state.HasField("hold"):
        there = state.hold.rung == state.rung
        return (
            "stays: it is held" if there else f"on its way to {label(state.ladder[state.hold.rung])}: it is held there"
        )
    if lower:
        rung, one = max(lower, key=lambda found: found[0])
        return f"on its way down to {label(state.ladder[rung])}: asked by {one.signal}"
    if not state.rung:
        return ""
    barring = [one for rung, one in asked if rung >= state.rung]
    if barring:
        return f"not up while asked by {', '.join(sorted({one.signal for one in barring}))}"
    left = state.wait.ToTimedelta().total_seconds() - (now - moment(state.since)).total_seconds()
    when = f"in {span(max(1, round(left)))}, " if left >= 1 else ""
    if state.ladder[state.rung - 1].drafter in state.absent_drafters:
        return f"up {when.rstrip(', ') or 'now'}: nothing is drafted there, so there is nothing to probe"
    return f"up {when}once a probe of a rung above is good"


def moment(at: Timestamp) -> datetime:
    return at.ToDatetime(tzinfo=UTC)


def clock(at: datetime, now: datetime) -> str:
    """The time of day where `now` is, with the date where that is more than a day away."""
    local = at.astimezone(now.tzinfo)
    return local.strftime("%H:%M:%S" if abs((at - now).total_seconds()) < _DAY else "%Y-%m-%d %H:%M:%S")


def ago(at: datetime, now: datetime) -> str:
    return f"{span(_whole(now, at))} ago"


def _whole(later: datetime, earlier: datetime) -> int:
    """Seconds, never less than none: the daemon's clock may not be this machine's."""
    return max(0, round((later - earlier).total_seconds()))


def _leads(state: pb.FallbackState, one: pb.Demand) -> int:
    """The rung that a demand leads to: the last one of its level, else the first one below."""
    own = [i for i, rung in enumerate(state.ladder) if rung.level == one.level]
    below = (i for i, rung in enumerate(state.ladder) if rank(rung.level) < rank(one.level))
    return own[-1] if own else next(below, len(state.ladder) - 1)
