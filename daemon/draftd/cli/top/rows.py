"""The screen's contents as rows: a name and what it is now. How they are laid out is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rich.text import Text

from draftd.cli import figures, ladder
from draftd.cli.figures import NOTHING
from draftd.cli.top.history import WINDOW_SECONDS
from draftd.cli.top.rates import Drafting, failures
from draftd.cli.top.view import View
from draftd.v1 import control_pb2 as pb

GOOD, WARN, BAD, DIM = "green", "yellow", "bold red", "dim"

_DAY = timedelta(days=1)
_ABOUT_A_MINUTE = 55.0


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: Text


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of the last minute, and of all since the daemon started. `share` draws a bar."""

    name: str
    minute: str
    whole: str
    share: float | None = None
    style: str = ""


def period(view: View) -> str:
    """What the window's figures are of: a minute, unless less was seen."""
    seconds = view.minute.seconds if view.minute is not None else WINDOW_SECONDS
    if seconds >= _ABOUT_A_MINUTE:
        return "a minute"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"


def speculation(view: View) -> list[Compared]:
    minute = view.minute.drafting if view.minute is not None else None
    whole = view.whole
    speedup = minute.speedup if minute is not None else None
    return [
        _compared("accepted", "acceptance", minute, whole, figures.percent),
        _compared("tokens a draft", "mean_length", minute, whole, figures.length),
        _compared("speed-up", "speedup", minute, whole, figures.times, style=_against_one(speedup, whole.speedup)),
        _compared(f"depth, of {view.status.max_draft_tokens}", "depth", minute, whole, _tenths),
        _compared("rounds drafted", "drafting", minute, whole, figures.percent),
        _compared("rounds parked", "parked", minute, whole, figures.percent),
        _compared("tokens a forward", "tokens_per_forward", minute, whole, figures.length),
    ]


def positions(view: View) -> list[Compared]:
    """Acceptance of the first drafted token, the second, and so on: of the last minute, else of all."""
    minute = view.minute.drafting.per_position if view.minute is not None else ()
    whole = view.whole.per_position
    made = []
    for place, share in enumerate(whole):
        recent = minute[place] if place < len(minute) else None
        drawn = recent if recent is not None else share
        made.append(Compared(str(place + 1), figures.percent(recent), figures.percent(share), drawn))
    return made


def unavailable(view: View) -> Text | None:
    """Why there is no speculation; None where there can be."""
    model = view.status.model
    if model.speculation_available or not model.model:
        return None
    return Text(f"unavailable: {model.speculation_reason}", WARN)


def serving(view: View, now: datetime, *, brief: bool = False) -> list[Row]:
    """`brief` leaves out the rows that are not always there: what they say is cut to a word beside the level."""
    status, lately = view.status, view.minute
    full = status.queue_capacity > 0 and status.queued_requests >= status.queue_capacity
    return [
        Row("flag", _flag(status)),
        Row("level", _level(status, now, brief=brief)),
        *(_ladder(status.fallback, now) if not brief else ()),
        Row(
            "requests",
            Text.assemble(
                f"{status.active_requests} active, ",
                (f"{status.queued_requests} of {status.queue_capacity} queued", BAD if full else ""),
            ),
        ),
        Row("finished", _counted(sum(status.finished_requests.values()), lately.finished if lately else None, view)),
        Row("failed", _failed(view, lately.failed if lately else None)),
        Row("refused", _counted(status.refused_requests, lately.refused if lately else None, view, bad=True)),
        Row("telemetry", Text("exporting", GOOD) if status.telemetry_exporting else Text("not exporting", DIM)),
    ]


def transitions(view: View, now: datetime, *, short: bool = False) -> list[Row]:
    """The latest first, by the time of day, or by their age where that is more than a day.

    Where they must be `short` the subject is left out: no variant is called as a level is.
    """
    today = "%H:%M" if short else "%H:%M:%S"
    made = []
    for change in reversed(view.status.transitions):
        at = change.at.ToDatetime(tzinfo=UTC).astimezone(now.tzinfo)
        what = Text.assemble(
            "" if short else f"{change.subject} ",
            "" if change.previous == change.current else f"{change.previous or NOTHING} → ",
            (change.current or NOTHING, "bold"),
            (f" · {change.cause}" if change.cause else "", DIM),
        )
        age = now - at
        made.append(Row(at.strftime(today) if age < _DAY else figures.span(int(age.total_seconds())), what))
    return made


def state(view: View) -> Text:
    """What is served, and for how long."""
    status = view.status
    name = pb.DaemonState.Name(status.state).removeprefix("DAEMON_STATE_").lower()
    model = status.model
    served = f"{model.model} + {model.draft_model}" if model.draft_model else model.model
    style = GOOD if status.state == pb.DAEMON_STATE_SERVING else WARN
    parts = [served, status.backend]
    return Text.assemble(
        (f"draftd {status.version}", "bold"),
        f" at {view.target}  ",
        (f"{name} for {figures.span(status.uptime.seconds)}", style),
        "  ",
        ("  ".join(part for part in parts if part), DIM),
    )


def lost(view: View) -> Text:
    """That the daemon is away, and what is done about it. Only where it is."""
    gone = view.lost
    assert gone is not None
    trying = "asking again" if gone.retry is None else f"next try in {max(0.0, gone.retry):.0f} s"
    return Text(f"no answer for {figures.span(int(gone.silent))}, {trying}: {gone.why}", BAD)


def _compared(
    name: str,
    field: str,
    minute: Drafting | None,
    whole: Drafting,
    shown: Callable[[float | None], str],
    style: str = "",
) -> Compared:
    recent = getattr(minute, field) if minute is not None else None
    return Compared(name, shown(recent), shown(getattr(whole, field)), style=style)


def _tenths(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _against_one(*known: float | None) -> str:
    """By the first that is known: is speculation faster or slower?"""
    value = next((v for v in known if v is not None), None)
    return "" if value is None else GOOD if value >= 1 else BAD


def _counted(whole: int, lately: int | None, view: View, *, bad: bool = False) -> Text:
    style = "" if not bad else BAD if lately else WARN if whole else ""
    return Text.assemble((str(whole), style), (f", {lately} in {period(view)}" if lately else "", DIM))


def _failed(view: View, lately: int | None) -> Text:
    status = view.status
    shown = _counted(failures(status), lately, view, bad=True)
    errors = [(status.drafter_errors, "drafter"), (status.verifier_errors, "verifier")]
    if any(count for count, _ in errors):
        shown.append(", errors: " + ", ".join(f"{count} {what}" for count, what in errors if count), WARN)
    return shown


def _flag(status: pb.GetStatusResponse) -> Text:
    variant = status.flag_variant or NOTHING
    if status.flag.error:
        return Text.assemble(variant, (f" · {status.flag.error}", BAD))
    style = GOOD if variant == "on" else WARN
    return Text.assemble((variant, style), (f" · {status.flag.provider}" if status.flag.provider else "", DIM))


def _level(status: pb.GetStatusResponse, now: datetime, *, brief: bool) -> Text:
    state = status.fallback
    name = ladder.current(state) or status.level or NOTHING
    told = [status.level_cause] if status.level_cause else []
    if brief:
        asked = [f"asked by {_strongest(state).signal}"] if state.demands else []
        told = ["held"] * state.HasField("hold") + asked + told
    return Text.assemble(
        (name.replace("_", " "), GOOD if status.level == "full" else WARN),
        (f", {state.rung} of {len(state.ladder) - 1} down" if state.rung and not brief else "", DIM),
        (f" · {', '.join(told)}" if told else "", DIM),
    )


def _ladder(state: pb.FallbackState, now: datetime) -> list[Row]:
    """Who holds it, who asks for what, and what comes next: each only where there is something to say."""
    made = []
    if held := ladder.held(state, now):
        made.append(Row("held", Text(held, WARN)))
    if state.demands:
        lowest = _strongest(state)
        others = len(state.demands) - 1
        made.append(
            Row(
                "asked",
                Text.assemble(
                    (f"{lowest.signal} → {lowest.level}", BAD if lowest.hard else WARN),
                    f", {others} more" if others else "",
                    (f" · {lowest.evidence}" if lowest.evidence else "", DIM),
                ),
            )
        )
    if (outlook := ladder.outlook(state, now)) and not held:
        made.append(Row("next", Text(outlook)))
    return made


def _strongest(state: pb.FallbackState) -> pb.Demand:
    """What is obeyed first, of demands that there are."""
    return min(state.demands, key=lambda one: (not one.hard, ladder.rank(one.level)))
