"""The report's section about the soak: what it came to, and minute by minute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from draftd.acceptance.report.charts import Line, lines
from draftd.acceptance.report.data import (
    NOTHING,
    Cell,
    Chart,
    Section,
    capitalised,
    count,
    figure,
    integer,
    share,
    size,
    span,
)
from draftd.acceptance.samples import Sample
from draftd.acceptance.soak import SoakResult, Window, soak_parts
from draftd.acceptance.statistics import Growth
from draftd.acceptance.ticks import Tick

_LEAST_ACCEPTED = 0.40  # below it drafts are mostly waste; the shipped spec's line
_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")
_UNREAD = Cell(NOTHING, "not readable on this machine", "absent")
_Pairs = list[tuple[float, float]]


def soak(result: SoakResult | None, ticks: Sequence[Tick], samples: Sequence[Sample]) -> Section:
    if result is None:
        return Section("soak", "Soak", "Not measured: this run has no soak. draftd soak adds one.")
    notes = [Cell(f"{capitalised(one)}.", tone="bad") for one in result.complaints]
    if not result.complete and result.wanted_seconds is not None:
        said = f"It is not complete: {result.seconds:.0f} of {result.wanted_seconds:.0f} s. draftd soak resumes it."
        notes.append(Cell(said, tone="unproven"))
    failed = "none failed" if not result.errors else f"{result.errors} failed"
    lead = f"{span(result.seconds)} of decoding without a break: {count(result.requests, 'request')}, {failed}."
    if result.days_to_exhaustion is None:
        lead += " Memory could not be read."
    elif math.isinf(result.days_to_exhaustion):
        lead += " No growth of memory that could be told from none."
    else:
        lead += f" At the slowest growth that the readings allow, memory lasts {_days(result.days_to_exhaustion)}."
    charts = soak_charts(ticks, samples, result.windows)
    return Section("soak", "Soak", lead, notes=notes, charts=charts, facts=_soak_facts(result, samples))


def _soak_facts(result: SoakResult, samples: Sequence[Sample]) -> Mapping[str, Cell | str]:
    lowest = result.sustained_acceptance()
    held = Cell(NOTHING, "too few windows", "unproven") if lowest is None else f"never below {share(lowest)}"
    thermal = sorted({one.thermal for one in samples if one.thermal})

    def known(value: float | None, said: Callable[[float], str]) -> Cell | str:
        return _UNREAD if value is None else said(value)

    return {
        "Time": Cell(span(result.seconds), count(result.sessions, "session")),
        "Requests": Cell(integer(result.requests), f"{result.errors} failed"),
        "Throughput": known(result.tokens_per_second, lambda rate: f"{figure(rate)} tokens/s"),
        "Peak resident memory": known(result.peak_resident, size),
        "Growth, resident": _grew(result.resident),
        "Growth, MLX": _grew(result.mlx),
        "Memory lasts": known(result.days_to_exhaustion, _days),
        "Least free above the floor": known(result.least_headroom, size),
        "The floor": known(result.floor, size),
        "Swapped in": known(result.swap_in, size),
        "Longest critical pressure": known(result.longest_critical, span),
        "Throttle events": known(result.throttles, lambda number: str(int(number))),
        "Thermal levels": ", ".join(thermal) if thermal else _UNREAD,
        "Acceptance, two windows in a row": held,
    }


def _grew(growth: Growth | None) -> Cell:
    if growth is None:
        return Cell(NOTHING, "too few readings", "unproven")
    slope = growth.slope
    low, middle, high = (figure(rate * 3600 / 1e6) for rate in (slope.low, slope.estimate, slope.high))
    return Cell(f"{middle} MB an hour", f"{low} to {high}; " + ("certain" if growth.certain else "none is certain"))


def _days(days: float) -> str:
    if math.isinf(days):
        return "without end"
    return f"{figure(days)} days" if days >= 2 else span(days * 86400)


def soak_charts(ticks: Sequence[Tick], samples: Sequence[Sample], windows: Sequence[Window]) -> tuple[Chart, ...]:
    """Minute by minute, of what could be read. What came between two sessions is left out, as the windows leave it."""
    readings = _readings(ticks, samples)
    minutes = max(((one.start + one.seconds) / 60 for one in windows), default=None)

    def read(what: Callable[[Sample], float | None], scale: float = 1.0) -> _Pairs:
        known = [(at, value / scale) for at, one in readings if (value := what(one)) is not None]
        return known if len(known) > 1 else []

    def window(what: Callable[[Window], float | None], scale: float = 1.0) -> _Pairs:
        found = [((one.start + one.seconds / 2) / 60, what(one)) for one in windows]
        return [(at, value * scale) for at, value in found if value is not None]

    def line(label: str, ink: str, points: _Pairs, marks: str = "line") -> list[Line]:
        return [Line(label, ink, [at for at, _ in points], [v for _, v in points], marks=marks)] if points else []

    def chart(id_: str, title: str, series: Sequence[Line], reading: str, unit: str, **more: Any) -> Chart:
        across = "minutes of the soak"
        return lines(id_, title, series, reading, across=across, up=unit, xlim=(0, minutes), **more)

    charts: list[Chart] = []
    used = line("the daemon’s process", "speculative", read(lambda one: one.resident, 1e9), "plain")
    used += line("of MLX, in use and kept", "second", read(lambda one: one.mlx, 1e9), "plain")
    if used:
        first, last = _ends(used[0].ys)
        grew = f"{'grew' if last >= first else 'shrank'} by {size(abs(last - first) * 1e9)}"
        reading = f"From the first tenth of the soak to the last the memory {grew} ({used[0].label}, medians)."
        charts.append(chart("memory", "Memory", used, reading, "GB"))
    if free := line("free above the floor", "speculative", read(lambda one: one.headroom, 1e9), "plain"):
        least, floor = min(free[0].ys), next((one.floor for _, one in readings if one.floor is not None), None)
        where = "" if floor is None else f"; the floor leaves {figure(floor / 1e9)} GB to the rest of the machine"
        reading = f"At the least {figure(least)} GB were free above the floor{where}."
        if least <= 0:
            reading = f"Free memory fell below the floor, by {figure(-least)} GB at the worst{where}."
        level = (0.0, "the floor", "bad")
        charts.append(chart("headroom", "Free memory above the floor", free, reading, "GB", level=level))
    if shares := window(lambda one: one.acceptance if one.enough else None, 100):
        accepted = line("accepted / drafted", "speculative", shares)
        accepted += line("α, each given the last", "third", window(lambda one: one.alpha if one.enough else None, 100))
        charts.append(
            chart(
                "soak-acceptance",
                "Acceptance",
                accepted,
                _held([value / 100 for _, value in shares], sum(not one.enough for one in windows)),
                "% of drafted tokens",
                level=(_LEAST_ACCEPTED * 100, share(_LEAST_ACCEPTED), "bad"),
                top=100,
            )
        )
    if rate := line("all streams together", "speculative", window(lambda one: one.tokens_per_second)):
        reading = f"By the window, between {figure(min(rate[0].ys))} and {figure(max(rate[0].ys))} tokens/s."
        charts.append(chart("soak-throughput", "Throughput", rate, reading, "tokens/s"))
    if slow := line("p95", "speculative", window(lambda one: one.inter_token_p95, 1000)):
        lowest, highest = figure(min(slow[0].ys)), figure(max(slow[0].ys))
        slow += line("p50", "third", window(lambda one: one.inter_token_p50, 1000))
        reading = f"By the window, the 95th percentile lies between {lowest} and {highest} ms."
        charts.append(chart("soak-latency", "Time between tokens", slow, reading, "ms"))
    if heat := line("hottest sensor", "second", read(lambda one: one.temperature), "plain"):
        worst = max((_LEVELS.index(one.thermal) for _, one in readings if one.thermal in _LEVELS), default=None)
        said = "" if worst is None else f" The worst thermal level that the system reported: {_LEVELS[worst]}."
        reading = f"Up to {figure(max(heat[0].ys))} °C.{said}"
        charts.append(chart("heat", "Temperature", heat, reading, "°C", bottom=30.0, top=100.0))
    return tuple(charts)


def _readings(ticks: Sequence[Tick], samples: Sequence[Sample]) -> list[tuple[float, Sample]]:
    """Those that were taken while requests were under way, with the minute of the soak."""
    found, before = [], 0.0
    for part in soak_parts(ticks, samples):
        there = [one for one in part.samples if part.began <= one.elapsed <= part.ended]
        found += [((before + one.elapsed - part.began) / 60, one) for one in there]
        before += part.seconds
    return found


def _held(shares: Sequence[float], left_out: int) -> str:
    reading = f"By the window, between {share(min(shares))} and {share(max(shares))} of what was drafted."
    if below := sum(value < _LEAST_ACCEPTED for value in shares):
        reading += f" {count(below, 'window')} of {len(shares)} below {share(_LEAST_ACCEPTED)}."
    return reading + (f" {count(left_out, 'window')} with too few drafts left out." if left_out else "")


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last tenth."""
    tenth = max(1, len(values) // 10)
    return median(values[:tenth]), median(values[-tenth:])
