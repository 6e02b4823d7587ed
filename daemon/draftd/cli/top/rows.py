"""The screen's contents as rows of a name and a value. `app` lays them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from rich.text import Text

from draftd.cli import figures, ladder
from draftd.cli import ranks as group
from draftd.cli import remote as two
from draftd.cli.figures import NOTHING
from draftd.cli.output import BAD, DIM, GOOD, WARN, Row
from draftd.cli.top.rates import WINDOW_SECONDS, StatusHistory, failures
from draftd.model_info import name_drafts
from draftd.protocol import enum_name, plain
from draftd.v1 import control_pb2 as pb

_DAY = timedelta(days=1)
_ABOUT_A_MINUTE = 55.0
_LINK = "link"  # the subject of a transition
_ESSENTIAL = frozenset(
    (
        *("flag", "level", "held", "asked", "next", "ranks", "lost", "remote", "requests", "failed", "refused"),
        *("headroom", "pressure", "thermal"),
    )
)
_PRESSURE_STYLES = {"normal": GOOD, "warn": WARN, "critical": BAD}
_THERMAL_STYLES = {None: "", "unspecified": WARN, "nominal": GOOD, "moderate": WARN}  # BAD above these


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure of the last minute, and since the daemon started. `share`: the length of its bar, if it has one."""

    name: str
    minute: str
    whole: str
    share: float | None = None
    style: str = ""


def period(seen: StatusHistory) -> str:
    """Names the window's length: a minute, unless less was seen."""
    seconds = seen.minute.seconds if seen.minute is not None else WINDOW_SECONDS
    if seconds >= _ABOUT_A_MINUTE:
        return "a minute"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"


def speculation(seen: StatusHistory) -> list[FigureRow]:
    minute = seen.minute.drafting if seen.minute is not None else None
    lines = []
    for name, field, shown in (
        ("accepted", "acceptance", figures.percent),
        ("tokens per draft", "mean_length", figures.length),
        ("speed-up", "speedup", figures.times),
        (f"depth, of {seen.status.max_draft_tokens}", "depth", figures.tenths),
        ("steps drafted", "drafting", figures.percent),
        ("steps parked", "parked", figures.percent),
        ("tokens a forward", "tokens_per_forward", figures.length),
    ):
        recent, whole = getattr(minute, field, None), getattr(seen.whole, field)
        figure = next((value for value in (recent, whole) if value is not None), None)
        style = "" if field != "speedup" or figure is None else GOOD if figure >= 1 else BAD
        lines.append(FigureRow(name, shown(recent), shown(whole), style=style))
    return lines


def positions(seen: StatusHistory) -> list[FigureRow]:
    """Returns acceptance by position in the block. Its bar is of the last minute, if known, else of the whole run."""
    minute = seen.minute.drafting.per_position if seen.minute is not None else ()
    lines = []
    for place, (share, recent) in enumerate(zip_longest(seen.whole.per_position, minute), 1):
        drawn = recent if recent is not None else share
        lines.append(FigureRow(str(place), figures.percent(recent), figures.percent(share), drawn))
    return lines


def unavailable(seen: StatusHistory) -> Text | None:
    """Says why speculation is unavailable; None if it is available."""
    model = seen.status.model
    if model.speculation_available or not model.model:
        return None
    return Text(f"unavailable: {model.speculation_reason}", WARN)


def serving(seen: StatusHistory, now: datetime) -> list[Row]:
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
        ("finished", _count_text(sum(status.finished_requests.values()), lately.finished if lately else None, seen)),
        ("failed", _failure_text(seen, lately.failed if lately else None)),
        ("refused", _count_text(status.refused_requests, lately.refused if lately else None, seen, bad=True)),
        ("telemetry", Text(figures.export_state(exporting), GOOD if exporting else DIM)),
    ]


def essential(seen: StatusHistory, now: datetime) -> list[Row]:
    """Returns the rows to show when there is no room for all."""
    drafted = [comparison_row(seen, one) for one in speculation(seen) if one.name in ("accepted", "speed-up")]
    return [
        *drafted,
        *(row for row in (*serving(seen, now), *ranks(seen), *remote(seen), *machine(seen)) if row[0] in _ESSENTIAL),
    ]


def comparison_row(seen: StatusHistory, figure: FigureRow) -> Row:
    """Returns a figure's row, with both its values on one line."""
    return figure.name, Text.assemble(
        (figure.minute, figure.style), (f" in {period(seen)}, {figure.whole} in all", DIM)
    )


def transitions(seen: StatusHistory, now: datetime, *, short: bool = False) -> list[Row]:
    """Returns transitions, the latest first, with the time of day, or their age if that is more than a day.

    `short`: leaves out the time zone. It also leaves out the subject (level, flag) if that is not the link, because the
    names of levels and variants differ.
    """
    today = "%H:%M" if short else "%H:%M:%S %Z"
    lines = []
    for change in reversed(seen.status.transitions):
        at = change.at.ToDatetime(tzinfo=UTC).astimezone(now.tzinfo)
        what = Text.assemble(
            "" if short and change.subject != _LINK else f"{change.subject} ",
            "" if change.previous == change.current else f"{change.previous or NOTHING} → ",
            (change.current or NOTHING, "bold"),
            _why(change.cause),
        )
        age = now - at
        lines.append((at.strftime(today) if age < _DAY else figures.span(int(age.total_seconds())), what))
    return lines


def state(seen: StatusHistory) -> Text:
    """Says what is served, and for how long."""
    status = seen.status
    name = str(enum_name(pb.DaemonState.DESCRIPTOR, status.state))
    model = status.model
    served = " + ".join(filter(None, (model.model, name_drafts(model.draft_model, model.drafters))))
    return Text.assemble(
        (f"draftd {status.version}", "bold"),
        f" at {seen.target}  ",
        (f"{name} for {figures.span(status.uptime.seconds)}", GOOD if name == "serving" else WARN),
        (f"  {served or status.progress}" if served or status.progress else "", DIM),
        (f"  {status.backend}" if status.backend else "", DIM),
    )


def lost(why: str, silent: float, retry: float | None) -> Text:
    """Says that the daemon does not answer. `silent`: seconds since its last answer; `retry`: until the next try, None
    during it."""
    trying = "asking again" if retry is None else f"next try in {max(0.0, retry):.0f} s"
    return Text(f"no answer for {figures.span(int(silent))}, {trying}: {why}", BAD)


def _why(text: str) -> tuple[str, str]:
    return (f" · {figures.in_local_time(text)}" if text else "", DIM)


def _prompts(seen: StatusHistory) -> Text:
    """Says how fast prompts are computed, and how far the one with the most tokens left is."""
    now = None if seen.now is None else seen.now.prompt_tokens_per_second
    left = max(seen.status.prompts, key=lambda one: one.prompt_tokens - one.processed_tokens, default=None)
    far = "" if left is None else f", {left.processed_tokens:,} of {left.prompt_tokens:,}"
    more = len(seen.status.prompts) - 1
    return Text.assemble(f"{figures.rate(now)} tokens/s", far, (f", {more} more" if more > 0 else "", DIM))


def _count_text(whole: int, lately: int | None, seen: StatusHistory, *, bad: bool = False) -> Text:
    style = "" if not bad else BAD if lately else WARN if whole else ""
    return Text.assemble((str(whole), style), (f", {lately} in {period(seen)}" if lately else "", DIM))


def _failure_text(seen: StatusHistory, lately: int | None) -> Text:
    status = seen.status
    shown = _count_text(failures(status), lately, seen, bad=True)
    errors = (status.drafter_errors, "drafter"), (status.verifier_errors, "verifier")
    if text := ", ".join(f"{count} {what}" for count, what in errors if count):
        shown.append(f", errors: {text}", WARN)
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
    """Returns rows on the hold, on the strongest demand and on what comes next, if there are any."""
    lines = []
    if hold_text := ladder.hold_end(state, now):
        lines.append(("held", Text(hold_text, WARN)))
    if state.demands:
        lowest = min(state.demands, key=lambda one: (not one.hard, ladder.rank(one.level)))  # what is obeyed first
        others = f", {len(state.demands) - 1} more" if len(state.demands) > 1 else ""
        demand_text = (f"{lowest.signal} → {lowest.level}", BAD if lowest.hard else WARN)
        lines.append(("asked", Text.assemble(demand_text, others, _why(lowest.evidence))))
    if (then := ladder.what_next(state, now)) and not hold_text:
        lines.append(("next", Text(then)))
    return lines


def ranks(seen: StatusHistory) -> list[Row]:
    """Returns rows on the target's ranks; empty if it runs within the daemon."""
    return group.rows(seen.status, None if seen.minute is None else seen.minute.collective)


def remote(seen: StatusHistory) -> list[Row]:
    """Returns rows on the link to the remote and on this daemon's edges; empty if it has neither."""
    hidden = None if seen.minute is None else seen.minute.hidden
    return two.rows(seen.status, "" if hidden is None else f" ({figures.percent(hidden)} in {period(seen)})")


def machine(seen: StatusHistory) -> list[Row]:
    status, hardware = seen.status, plain(seen.status.hardware)
    sizes = {name: figures.size(value) for name, value in hardware.items() if name.endswith("_bytes")}
    mlx = "{mlx_active_bytes}, cache {mlx_cache_bytes}, peak {mlx_peak_bytes}".format_map(sizes)
    weights = f"{figures.size(status.weight_bytes)}, KV cache {figures.size(status.kv_cache_bytes)}"
    gpu = f"{figures.percent(hardware['gpu_utilization'])} busy, {sizes['gpu_memory_bytes']}"
    gpu_known = hardware["gpu_utilization"] is not None or hardware["gpu_memory_bytes"] is not None
    return [
        ("headroom", _headroom(hardware["memory_headroom_bytes"], sizes)),
        ("pressure", _pressure(hardware["memory_pressure"], hardware["swap_in_bytes"])),
        ("MLX", Text(mlx if hardware["mlx_active_bytes"] is not None else NOTHING)),
        ("weights", Text(weights if status.model.model else NOTHING)),  # none: it is loading
        ("GPU", Text(gpu if gpu_known else NOTHING)),
        ("thermal", _thermal(hardware)),
        ("power", _power(hardware)),
    ]


def _headroom(room: int | None, sizes: Mapping[str, str]) -> Text:
    if room is None:
        return Text(NOTHING)
    free, floor, limit = (sizes[f"memory_{name}_bytes"] for name in ("headroom", "floor", "limit"))
    return Text.assemble((free, GOOD if room >= 0 else BAD), f", floor {floor}", (f" of {limit}", DIM))


def _pressure(level: str | None, swapped: int | None) -> Text:
    shown = (str(level or NOTHING), _PRESSURE_STYLES.get(level or "", ""))
    return Text.assemble(shown, ", swapped in ", (figures.size(swapped), WARN if swapped else ""))


def _thermal(hardware: Mapping[str, Any]) -> Text:
    level = hardware["thermal_level"]
    shown = Text.assemble((str(level or NOTHING), _THERMAL_STYLES.get(level, BAD)))
    if (throttles := hardware["throttles"]) is not None:
        shown.append(f", {throttles} throttles", WARN if throttles else "")
    if temperatures := hardware["temperatures"]:
        shown.append(f", {max(temperatures.values()):.0f} °C")
    return shown


def _power(hardware: Mapping[str, Any]) -> Text:
    parts: list[tuple[str, str]] = []
    if (on_mains := hardware["on_mains"]) is not None:
        parts.append(("mains", "") if on_mains else ("battery", WARN))
    if (low_power := hardware["low_power"]) is not None:
        parts.append(("low-power mode", WARN) if low_power else ("normal mode", ""))
    if (watts := hardware["power"].get("system")) is not None:
        parts.append((f"{watts:.0f} W", ""))
    return Text(", ").join(Text(*part) for part in parts) if parts else Text(NOTHING)
