"""The screen's contents as rows: a name and what it is now. How they are laid out is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest

from rich.text import Text

from draftd.cli import figures, ladder
from draftd.cli import ranks as group
from draftd.cli import remote as two
from draftd.cli.figures import NOTHING
from draftd.cli.top.rates import WINDOW_SECONDS, History, failures
from draftd.core import DRAFT_MODEL
from draftd.protocol import enum_name
from draftd.v1 import control_pb2 as pb

GOOD, WARN, BAD, DIM = "green", "yellow", "bold red", "dim"

Row = tuple[str, Text]  # a name, and what it is now

_DAY = timedelta(days=1)
_ABOUT_A_MINUTE = 55.0
_LINK = "link"  # the subject of a transition
_ESSENTIAL = frozenset(
    (
        *("flag", "level", "held", "asked", "next", "ranks", "lost", "remote", "requests", "failed", "refused"),
        *("headroom", "pressure", "thermal"),
    )
)
_PRESSURE_STYLES = {pb.MEMORY_PRESSURE_NORMAL: GOOD, pb.MEMORY_PRESSURE_WARN: WARN, pb.MEMORY_PRESSURE_CRITICAL: BAD}


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of the last minute, and of all since the daemon started. `share` draws a bar."""

    name: str
    minute: str
    whole: str
    share: float | None = None
    style: str = ""


def period(seen: History) -> str:
    """What the window's figures are of: a minute, unless less was seen."""
    seconds = seen.minute.seconds if seen.minute is not None else WINDOW_SECONDS
    if seconds >= _ABOUT_A_MINUTE:
        return "a minute"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"


def speculation(seen: History) -> list[Compared]:
    minute = seen.minute.drafting if seen.minute is not None else None
    made = []
    for name, field, shown in (
        ("accepted", "acceptance", figures.percent),
        ("tokens a draft", "mean_length", figures.length),
        ("speed-up", "speedup", figures.times),
        (f"depth, of {seen.status.max_draft_tokens}", "depth", figures.tenths),
        ("steps drafted", "drafting", figures.percent),
        ("steps parked", "parked", figures.percent),
        ("tokens a forward", "tokens_per_forward", figures.length),
    ):
        recent, whole = getattr(minute, field, None), getattr(seen.whole, field)
        known = next((value for value in (recent, whole) if value is not None), None)
        style = "" if field != "speedup" or known is None else GOOD if known >= 1 else BAD
        made.append(Compared(name, shown(recent), shown(whole), style=style))
    return made


def positions(seen: History) -> list[Compared]:
    """Acceptance of the first drafted token, the second, and so on: of the last minute, else of all."""
    minute = seen.minute.drafting.per_position if seen.minute is not None else ()
    made = []
    for place, (share, recent) in enumerate(zip_longest(seen.whole.per_position, minute), 1):
        drawn = recent if recent is not None else share
        made.append(Compared(str(place), figures.percent(recent), figures.percent(share), drawn))
    return made


def unavailable(seen: History) -> Text | None:
    """Why there is no speculation; None where there can be."""
    model = seen.status.model
    if model.speculation_available or not model.model:
        return None
    return Text(f"unavailable: {model.speculation_reason}", WARN)


def serving(seen: History, now: datetime) -> list[Row]:
    status, lately = seen.status, seen.minute
    exporting = status.telemetry_exporting
    full = status.queue_capacity > 0 and status.queued_requests >= status.queue_capacity
    waiting = f"{status.queued_requests} of {status.queue_capacity} waiting"
    return [
        ("flag", _flag(status)),
        ("level", _level(status)),
        *_ladder(status.fallback, now),
        ("requests", Text.assemble(f"{status.active_requests} running, ", (waiting, BAD if full else ""))),
        ("prompts", _prompts(seen)),
        ("finished", _counted(sum(status.finished_requests.values()), lately.finished if lately else None, seen)),
        ("failed", _failed(seen, lately.failed if lately else None)),
        ("refused", _counted(status.refused_requests, lately.refused if lately else None, seen, bad=True)),
        ("telemetry", Text(figures.export_state(exporting), GOOD if exporting else DIM)),
    ]


def essential(seen: History, now: datetime) -> list[Row]:
    """What comes first where there is no room for all."""
    drafted = [compared(seen, one) for one in speculation(seen) if one.name in ("accepted", "speed-up")]
    return [
        *drafted,
        *(row for row in (*serving(seen, now), *ranks(seen), *remote(seen), *machine(seen)) if row[0] in _ESSENTIAL),
    ]


def compared(seen: History, one: Compared) -> Row:
    """On one line."""
    return one.name, Text.assemble((one.minute, one.style), (f" in {period(seen)}, {one.whole} in all", DIM))


def transitions(seen: History, now: datetime, *, short: bool = False) -> list[Row]:
    """The latest first, by the time of day, or by their age where that is more than a day.

    Where they must be `short` the zone is left out, and the subject, except for the link: no variant is called as a
    level is.
    """
    today = "%H:%M" if short else "%H:%M:%S %Z"
    made = []
    for change in reversed(seen.status.transitions):
        at = change.at.ToDatetime(tzinfo=UTC).astimezone(now.tzinfo)
        what = Text.assemble(
            "" if short and change.subject != _LINK else f"{change.subject} ",
            "" if change.previous == change.current else f"{change.previous or NOTHING} → ",
            (change.current or NOTHING, "bold"),
            _why(change.cause),
        )
        age = now - at
        made.append((at.strftime(today) if age < _DAY else figures.span(int(age.total_seconds())), what))
    return made


def state(seen: History) -> Text:
    """What is served, and for how long."""
    status = seen.status
    name = str(enum_name(pb.DaemonState.DESCRIPTOR, status.state))
    model = status.model
    served = f"{model.model} + {model.draft_model}" if DRAFT_MODEL in model.drafters else model.model
    return Text.assemble(
        (f"draftd {status.version}", "bold"),
        f" at {seen.target}  ",
        (f"{name} for {figures.span(status.uptime.seconds)}", GOOD if name == "serving" else WARN),
        (f"  {served or status.progress}" if served or status.progress else "", DIM),
        (f"  {status.backend}" if status.backend else "", DIM),
    )


def lost(why: str, silent: float, retry: float | None) -> Text:
    """That the daemon is away: seconds since it last answered, and until it is asked again; None while it is asked."""
    trying = "asking again" if retry is None else f"next try in {max(0.0, retry):.0f} s"
    return Text(f"no answer for {figures.span(int(silent))}, {trying}: {why}", BAD)


def _why(text: str) -> tuple[str, str]:
    return (f" · {figures.in_local_time(text)}" if text else "", DIM)


def _prompts(seen: History) -> Text:
    """How fast prompts are computed, and how far the one is that has most to go."""
    now = None if seen.now is None else seen.now.prompt_tokens_per_second
    left = max(seen.status.prompts, key=lambda one: one.prompt_tokens - one.processed_tokens, default=None)
    far = "" if left is None else f", {left.processed_tokens:,} of {left.prompt_tokens:,}"
    more = len(seen.status.prompts) - 1
    return Text.assemble(f"{figures.rate(now)} tokens/s", far, (f", {more} more" if more > 0 else "", DIM))


def _counted(whole: int, lately: int | None, seen: History, *, bad: bool = False) -> Text:
    style = "" if not bad else BAD if lately else WARN if whole else ""
    return Text.assemble((str(whole), style), (f", {lately} in {period(seen)}" if lately else "", DIM))


def _failed(seen: History, lately: int | None) -> Text:
    status = seen.status
    shown = _counted(failures(status), lately, seen, bad=True)
    errors = (status.drafter_errors, "drafter"), (status.verifier_errors, "verifier")
    if told := ", ".join(f"{count} {what}" for count, what in errors if count):
        shown.append(f", errors: {told}", WARN)
    return shown


def _flag(status: pb.GetStatusResponse) -> Text:
    variant = status.flag_variant or NOTHING
    if status.flag.error:
        return Text.assemble(variant, (f" · {status.flag.error}", BAD))
    style = GOOD if variant == "on" else WARN
    return Text.assemble((variant, style), _why(status.flag.provider))


def _level(status: pb.GetStatusResponse) -> Text:
    state = status.fallback
    name = ladder.current(state) or status.level or NOTHING
    return Text.assemble(
        (name, GOOD if status.level == "full" else WARN),
        (f", {state.position} of {len(state.ladder) - 1} down" if state.position else "", DIM),
        _why(status.level_cause),
    )


def _ladder(state: pb.FallbackState, now: datetime) -> list[Row]:
    """What holds it, what asks for which level, and what comes next: each only where there is something to say."""
    made = []
    if held := ladder.held(state, now):
        made.append(("held", Text(held, WARN)))
    if state.demands:
        lowest = min(state.demands, key=lambda one: (not one.hard, ladder.rank(one.level)))  # what is obeyed first
        others = f", {len(state.demands) - 1} more" if len(state.demands) > 1 else ""
        asked = (f"{lowest.signal} → {lowest.level}", BAD if lowest.hard else WARN)
        made.append(("asked", Text.assemble(asked, others, _why(lowest.evidence))))
    if (then := ladder.what_next(state, now)) and not held:
        made.append(("next", Text(then)))
    return made


def ranks(seen: History) -> list[Row]:
    """The ranks that the target runs on; empty where it runs within the daemon."""
    return group.rows(seen.status, None if seen.minute is None else seen.minute.collective)


def remote(seen: History) -> list[Row]:
    """The link to another daemon, and the edges of this one; empty where it is alone."""
    hidden = None if seen.minute is None else seen.minute.hidden
    return two.rows(seen.status, "" if hidden is None else f" ({figures.percent(hidden)} in {period(seen)})")


def machine(seen: History) -> list[Row]:
    status, h = seen.status, seen.status.hardware
    held = f"{figures.size(status.weight_bytes)}, KV cache {figures.size(status.kv_cache_bytes)}"
    busy = h.gpu_utilization if h.HasField("gpu_utilization") else None
    gpu = f"{figures.percent(busy)} busy, {_size(h, 'gpu_memory_bytes')}"
    mlx = f"{_size(h, 'mlx_active_bytes')}, cache {_size(h, 'mlx_cache_bytes')}, peak {_size(h, 'mlx_peak_bytes')}"
    return [
        ("headroom", _headroom(h)),
        ("pressure", _pressure(h)),
        ("MLX", Text(mlx if h.HasField("mlx_active_bytes") else NOTHING)),
        ("weights", Text(held if status.model.model else NOTHING)),  # none: it is loading
        ("GPU", Text(gpu if h.HasField("gpu_utilization") or h.HasField("gpu_memory_bytes") else NOTHING)),
        ("thermal", _thermal(h)),
        ("power", _power(h)),
    ]


def _headroom(h: pb.Hardware) -> Text:
    room = h.memory_headroom_bytes
    if not h.HasField("memory_headroom_bytes"):
        return Text(NOTHING)
    limits = f", floor {_size(h, 'memory_floor_bytes')}", (f" of {_size(h, 'memory_limit_bytes')}", DIM)
    return Text.assemble((figures.size(room), GOOD if room >= 0 else BAD), *limits)


def _pressure(h: pb.Hardware) -> Text:
    known = h.HasField("memory_pressure")
    name = str(enum_name(pb.MemoryPressure.DESCRIPTOR, h.memory_pressure)) if known else NOTHING
    swapped = (_size(h, "swap_in_bytes"), WARN if h.swap_in_bytes else "")
    return Text.assemble((name, _PRESSURE_STYLES.get(h.memory_pressure, "")), ", swapped in ", swapped)


def _thermal(h: pb.Hardware) -> Text:
    name, style = NOTHING, ""
    if h.HasField("thermal_level"):
        name = str(enum_name(pb.ThermalLevel.DESCRIPTOR, h.thermal_level))
        warm = BAD if h.thermal_level >= pb.THERMAL_LEVEL_HEAVY else WARN
        style = GOOD if h.thermal_level == pb.THERMAL_LEVEL_NOMINAL else warm
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
