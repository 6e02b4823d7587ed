"""The fallback ladder in words: the level, who holds it, what asks for another level, and what comes next."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from draftd.cli.figures import in_local_time, span
from draftd.core import MODEL_DRAFTERS, PROMPT_LOOKUP, FallbackLevel
from draftd.model_info import model_drafters, stand_in
from draftd.strategies import RemoteLevel
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference

_RANKS = {level.label: level.value for level in FallbackLevel} | {level.label: level.value for level in RemoteLevel}
_PROBE, _LINK = "a probe of a level above is good", "the link is up, its round trip short, and no error came"
_DAY = 86_400


def label(level: pb.LadderLevel) -> str:
    """Names a level as transitions do: a short block with its depth, a light draft with its drafter, because a ladder
    may have several of each."""
    if level.level == FallbackLevel.SHORT_BLOCK.label:
        return f"{level.level} {level.max_draft_tokens}"
    return f"{level.level} {level.drafter}" if level.level == FallbackLevel.LIGHT_DRAFT.label else level.level


def current(state: pb.FallbackState) -> str:
    """Returns the label of the current level; empty if the state has no ladder."""
    return label(state.ladder[state.position]) if state.position < len(state.ladder) else ""


def drafting(level: pb.LadderLevel, model: inference.GetModelResponse) -> str:
    """Says how many tokens a step may draft at this level, and with which drafter. A draft head replaces a missing
    draft model; prompt lookup replaces any missing drafter, unless depth is fixed. `model` is empty while none is
    loaded."""
    if not level.drafter:
        return "no drafts"
    most = f"up to {level.max_draft_tokens} tokens a step from"
    if not model.model:
        return f"{most} {level.drafter}"
    automatic = model.depth_mode != inference.DEPTH_MODE_FIXED
    if level.drafter in MODEL_DRAFTERS and automatic and level.level != FallbackLevel.LIGHT_DRAFT.label:
        names = model_drafters(model.drafters)  # depth control takes the faster one
    else:
        drafter = stand_in(level.drafter, model.drafters)
        names = (drafter,) if drafter in model.drafters else ()
    if names:
        return f"{most} {' or '.join(names)}"
    if PROMPT_LOOKUP in model.drafters and automatic:
        return f"{most} {PROMPT_LOOKUP}, as there is no {level.drafter}"
    return f"no drafts: there is no {level.drafter}"


def rank(level: str) -> int:
    """Returns a level's rank by name: the higher, the more it allows. The ladder's levels have 0 (autoregressive) to 3
    (full), the remote's 0 to 2; an unknown name has 0."""
    return _RANKS.get(level, 0)


def fields(state: pb.FallbackState, now: datetime, *, whole: bool = False) -> list[tuple[str, str]]:
    """Returns names and values; an empty name continues the line above. `whole`: also lists the alerts' leases (levels
    asked for until a time), and says so when nothing asks for a level."""
    place = f"{state.position} of {len(state.ladder) - 1} down" if state.position else "the top of the ladder"
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
    """Returns lines on the remote's level; without `whole`, none if it is at the top, not held, and nothing asks for
    less."""
    if not (whole or state.position or state.demands or state.HasField("hold")):
        return []
    (_, level), *rest = fields(state, now)
    return [("remote", level), *(("", f"{name} {text}") for name, text in rest)]


def hold_end(state: pb.FallbackState, now: datetime) -> str:
    """Says until when the level is held; empty if it is not held."""
    if not state.HasField("hold"):
        return ""
    if not state.hold.HasField("until"):
        return "until it is released"
    until = moment(state.hold.until)
    return f"until {clock(until, now)} ({span(_whole(until, now))} left)"


def what_next(state: pb.FallbackState, now: datetime) -> str:
    """Says what moves the level next; empty if it is at the top and nothing asks for a lower one."""
    demands = [(_leads(state, demand), demand) for demand in state.demands]
    if state.HasField("hold"):
        if state.hold.HasField("until") and moment(state.hold.until) <= now:
            return "the hold is over; the level moves when its drafters are ready"
        if state.hold.position == state.position:
            return "stays: it is held"
        return f"moving to {label(state.ladder[state.hold.position])}, where it is held"
    if lower := [(position, demand) for position, demand in demands if position > state.position]:
        position, demand = max(lower, key=lambda entry: entry[0])
        when = "" if demand.hard else " within one cooldown"
        return f"stepping down to {label(state.ladder[position])}{when}: asked for by {demand.signal}"
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
    """Formats a time in the zone of `now`; with its date if it is more than a day away."""
    local = at.astimezone(now.tzinfo)
    return local.strftime("%H:%M:%S %Z" if abs((at - now).total_seconds()) < _DAY else "%Y-%m-%d %H:%M:%S %Z")


def _demand(demand: pb.Demand) -> str:
    """Says which signal asks for which level, with its evidence."""
    how = f"{demand.signal} asks for {demand.level}" + (" at once" if demand.hard else "")
    return f"{how}: {demand.evidence}" if demand.evidence else how


def _lease(lease: pb.Lease, now: datetime) -> str:
    return f"{lease.alert} asks for {lease.level}, until {clock(moment(lease.until), now)} unless it is repeated"


def _whole(later: datetime, earlier: datetime) -> int:
    """Returns whole seconds, at least 0: the daemon's clock may differ from this machine's."""
    return max(0, round((later - earlier).total_seconds()))


def _leads(state: pb.FallbackState, demand: pb.Demand) -> int:
    """Returns the position that a demand leads to: the last one of its level, else the first one below."""
    own = [i for i, level in enumerate(state.ladder) if level.level == demand.level]
    below = (i for i, level in enumerate(state.ladder) if rank(level.level) < rank(demand.level))
    return own[-1] if own else next(below, len(state.ladder) - 1)
