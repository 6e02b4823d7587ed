"""The screen's contents as rows: a name and what it is now. How they are laid out is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rich.text import Text

from draftd.cli import figures, ladder
from draftd.cli.figures import NOTHING
from draftd.cli.output import enum_name
from draftd.cli.top.rates import WINDOW_SECONDS, Drafting, View, failures
from draftd.v1 import control_pb2 as pb

GOOD, WARN, BAD, DIM = "green", "yellow", "bold red", "dim"

_DAY = timedelta(days=1)
_ABOUT_A_MINUTE = 55.0
_PRESSURE_STYLES = {
    pb.MEMORY_PRESSURE_NORMAL: GOOD,
    pb.MEMORY_PRESSURE_WARN: WARN,
    pb.MEMORY_PRESSURE_CRITICAL: BAD,
}


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
        _compared("steps drafted", "drafting", minute, whole, figures.percent),
        _compared("steps parked", "parked", minute, whole, figures.percent),
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
    name = str(enum_name(pb.DaemonState.DESCRIPTOR, status.state))
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
        (f", {state.position} of {len(state.ladder) - 1} down" if state.position and not brief else "", DIM),
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
    if (then := ladder.what_next(state, now)) and not held:
        made.append(Row("next", Text(then)))
    return made


def _strongest(state: pb.FallbackState) -> pb.Demand:
    """What is obeyed first, of demands that there are."""
    return min(state.demands, key=lambda one: (not one.hard, ladder.rank(one.level)))


def machine(view: View) -> list[Row]:
    status = view.status
    h = status.hardware
    return [
        Row("headroom", _headroom(h)),
        Row("pressure", _pressure(h)),
        Row("MLX", _mlx(h)),
        Row("model", _model(status)),
        Row("GPU", _gpu(h)),
        Row("thermal", _thermal(h)),
        Row("power", _power(h)),
    ]


def _headroom(h: pb.Hardware) -> Text:
    if not h.HasField("memory_headroom_bytes"):
        return Text(NOTHING)
    room = h.memory_headroom_bytes
    shown = figures.size(room) if room >= 0 else f"−{figures.size(-room)}"
    return Text.assemble(
        (shown, GOOD if room >= 0 else BAD),
        f", floor {_size(h, 'memory_floor_bytes')}",
        (f" of {_size(h, 'memory_limit_bytes')}", DIM),
    )


def _model(status: pb.GetStatusResponse) -> Text:
    if not status.model.model:  # it is still loading
        return Text(NOTHING)
    return Text(f"{figures.size(status.weight_bytes)}, KV cache {figures.size(status.kv_cache_bytes)}")


def _mlx(h: pb.Hardware) -> Text:
    if not h.HasField("mlx_active_bytes"):
        return Text(NOTHING)
    return Text(
        f"{_size(h, 'mlx_active_bytes')}, cache {_size(h, 'mlx_cache_bytes')}, peak {_size(h, 'mlx_peak_bytes')}"
    )


def _pressure(h: pb.Hardware) -> Text:
    name = NOTHING
    if h.HasField("memory_pressure"):
        name = str(enum_name(pb.MemoryPressure.DESCRIPTOR, h.memory_pressure))
    return Text.assemble(
        (name, _PRESSURE_STYLES.get(h.memory_pressure, "")),
        ", swapped in ",
        (_size(h, "swap_in_bytes"), WARN if h.swap_in_bytes else ""),
    )


def _gpu(h: pb.Hardware) -> Text:
    if not h.HasField("gpu_utilization") and not h.HasField("gpu_memory_bytes"):
        return Text(NOTHING)
    busy = figures.percent(h.gpu_utilization if h.HasField("gpu_utilization") else None)
    return Text(f"{busy} busy, {_size(h, 'gpu_memory_bytes')}")


def _thermal(h: pb.Hardware) -> Text:
    name, style = NOTHING, ""
    if h.HasField("thermal_level"):
        name = str(enum_name(pb.ThermalLevel.DESCRIPTOR, h.thermal_level))
        style = BAD if h.thermal_level >= pb.THERMAL_LEVEL_HEAVY else WARN
        if h.thermal_level == pb.THERMAL_LEVEL_NOMINAL:
            style = GOOD
    shown = Text.assemble((name, style))
    if h.HasField("throttles"):
        shown.append(f", {h.throttles} throttles", WARN if h.throttles else "")
    if h.temperatures:
        shown.append(f", {max(h.temperatures.values()):.0f} °C")
    return shown


def _power(h: pb.Hardware) -> Text:
    parts: list[tuple[str, str]] = []
    if h.HasField("on_mains"):
        parts.append(("mains" if h.on_mains else "battery", "" if h.on_mains else WARN))
    if h.HasField("low_power"):
        parts.append(("low-power mode" if h.low_power else "normal mode", WARN if h.low_power else ""))
    if "system" in h.power:
        parts.append((f"{h.power['system']:.0f} W", ""))
    return Text(", ").join(Text(*part) for part in parts) if parts else Text(NOTHING)


def _size(h: pb.Hardware, field: str) -> str:
    return figures.size(getattr(h, field)) if h.HasField(field) else NOTHING
