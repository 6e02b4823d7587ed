"""The fallback ladder in words: the level, who holds it, what asks for another level, and what comes next."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from draftd.cli.figures import in_local_time, span
from draftd.core import PROMPT_LOOKUP, FallbackLevel
from draftd.strategies import RemoteLevel
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference

_RANKS = {level.label: level.value for level in FallbackLevel} | {level.label: level.value for level in RemoteLevel}
_PROBE, _LINK = "a probe of a level above is good", "the link is up, its round trip short, and no error came"
_DAY = 86_400


def label(level: pb.LadderLevel) -> str:
    """The level, and what tells it from others of the same name, as transitions call it."""
    if level.level == FallbackLevel.SHORT_BLOCK.label:
        return f"{level.level} {level.max_draft_tokens}"
    return f"{level.level} {level.drafter}" if level.level == FallbackLevel.LIGHT_DRAFT.label else level.level


def current(state: pb.FallbackState) -> str:
    """The level in force; empty of a state that has no ladder."""
    return label(state.ladder[state.position]) if state.position < len(state.ladder) else ""


def drafting(level: pb.LadderLevel, model: inference.GetModelResponse) -> str:
    """How many tokens a step may draft at this level, and with what. Prompt lookup takes the place of a drafter that is
    not there, unless depth is fixed. An empty `model` is one that is not loaded."""
    if not level.drafter:
        return "no drafts"
    most = f"up to {level.max_draft_tokens} tokens a step from"
    if not model.model or level.drafter in model.drafters:
        return f"{most} {level.drafter}"
    if PROMPT_LOOKUP in model.drafters and model.depth_mode != inference.DEPTH_MODE_FIXED:
        return f"{most} {PROMPT_LOOKUP}, as there is no {level.drafter}"
    return f"no drafts: there is no {level.drafter}"


def rank(level: str) -> int:
    """3 is full; a name that this version does not know is the lowest."""
    return _RANKS.get(level, 0)


def fields(state: pb.FallbackState, now: datetime, *, whole: bool = False) -> list[tuple[str, str]]:
    """Name and value of what there is to say; an empty name belongs to the one above. `whole`: leases too, and that
    nothing asks."""
    place = f"{state.position} of {len(state.ladder) - 1} down" if state.position else "the top"
    rows = [("level", f"{current(state)} ({place})")]
    if state.cause:
        cause = in_local_time(state.cause, now.tzinfo)
        rows.append(("since", f"{span(_whole(now, moment(state.since)))} ago: {cause}"))
    if until := hold_end(state, now):
        rows.append(("held", until))
    demands = [in_local_time(_demand(item), now.tzinfo) for item in state.demands] or ["nothing"] * whole
    rows += [("asked" if not i else "", text) for i, text in enumerate(demands)]
    rows += [("alerts" if not i else "", _lease(item, now)) for i, item in enumerate(state.leases) if whole]
    if then := what_next(state, now):
        rows.append(("next", then))
    return [*rows, *remote_fields(state.remote, now, whole=whole)] if state.HasField("remote") else rows


def remote_fields(state: pb.FallbackState, now: datetime, *, whole: bool = False) -> list[tuple[str, str]]:
    """What the remote is asked for; without `whole` only where that is not all, or something asks for less."""
    if not (whole or state.position or state.demands or state.HasField("hold")):
        return []
    (_, level), *rest = fields(state, now)
    return [("remote", level), *(("", f"{name} {text}") for name, text in rest)]


def hold_end(state: pb.FallbackState, now: datetime) -> str:
    """Until when it is held; empty where it is not."""
    if not state.HasField("hold"):
        return ""
    if not state.hold.HasField("until"):
        return "until it is released"
    until = moment(state.hold.until)
    return f"until {clock(until, now)} ({span(_whole(until, now))} left)"


def what_next(state: pb.FallbackState, now: datetime) -> str:
    """What would move it next; empty where it is at the top and nothing asks for another level."""
    demands = [(_leads(state, demand), demand) for demand in state.demands]
    if state.HasField("hold"):
        if state.hold.position == state.position:
            return "stays: it is held"
        return f"moving to {label(state.ladder[state.hold.position])}, where it is held"
    if lower := [(position, demand) for position, demand in demands if position > state.position]:
        position, demand = max(lower, key=lambda entry: entry[0])
        return f"stepping down to {label(state.ladder[position])}: asked for by {demand.signal}"
    if not state.position:
        return ""
    if barring := {demand.signal for position, demand in demands if position >= state.position}:
        return f"no step up while asked for by {', '.join(sorted(barring))}"
    left = state.wait.ToTimedelta().total_seconds() - (now - moment(state.since)).total_seconds()
    when = f"in {span(max(1, round(left)))}, " if left >= 1 else ""
    if state.ladder[state.position - 1].drafter in state.absent_drafters:
        return f"up {when.rstrip(', ') or 'now'}: its drafter is not there, so there is nothing to probe"
    of_remote = state.ladder[0].level == RemoteLevel.SPECULATIVE.label
    return f"up {when}once {_LINK if of_remote else _PROBE}"


def moment(at: Timestamp) -> datetime:
    return at.ToDatetime(tzinfo=UTC)


def clock(at: datetime, now: datetime) -> str:
    """The time of day where `now` is, with its zone; with the date where that is more than a day away."""
    local = at.astimezone(now.tzinfo)
    return local.strftime("%H:%M:%S %Z" if abs((at - now).total_seconds()) < _DAY else "%Y-%m-%d %H:%M:%S %Z")


def _demand(demand: pb.Demand) -> str:
    """Which signal asks for what, with the figures."""
    how = f"{demand.signal} asks for {demand.level}" + (" at once" if demand.hard else "")
    return f"{how}: {demand.evidence}" if demand.evidence else how


def _lease(lease: pb.Lease, now: datetime) -> str:
    return f"{lease.alert} asks for {lease.level}, until {clock(moment(lease.until), now)} unless it is repeated"


def _whole(later: datetime, earlier: datetime) -> int:
    """Seconds, never less than none: the daemon's clock may not be this machine's."""
    return max(0, round((later - earlier).total_seconds()))


def _leads(state: pb.FallbackState, demand: pb.Demand) -> int:
    """The place on the ladder that a demand leads to: the last one of its level, else the first one below."""
    own = [i for i, level in enumerate(state.ladder) if level.level == demand.level]
    below = (i for i, level in enumerate(state.ladder) if rank(level.level) < rank(demand.level))
    return own[-1] if own else next(below, len(state.ladder) - 1)
