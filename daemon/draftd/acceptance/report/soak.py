"""The report's charts of a soak, minute by minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from draftd.acceptance.report.charts import Chart, Line, lines
from draftd.acceptance.report.figures import share
from draftd.acceptance.samples import Sample
from draftd.acceptance.soak import Window, soak_parts
from draftd.acceptance.ticks import Tick

LEAST_ACCEPTED = 0.40
"""Below it drafts are mostly waste; the shipped spec's line."""


def soak_charts(ticks: Sequence[Tick], samples: Sequence[Sample], windows: Sequence[Window]) -> Iterator[Chart]:
    """Of what could be read. What came between two sessions is left out, as the windows leave it."""
    readings = _readings(ticks, samples)
    minutes = max(((one.start + one.seconds) / 60 for one in windows), default=None)

    def read(label: str, ink: str, what: Callable[[Sample], float | None], scale: float = 1.0) -> list[Line]:
        known = [(at, value / scale) for at, one in readings if (value := what(one)) is not None]
        return line(label, ink, known, "plain")

    def window(label: str, ink: str, what: Callable[[Window], float | None], scale: float = 1.0) -> list[Line]:
        found = [((one.start + one.seconds / 2) / 60, what(one)) for one in windows]
        return line(label, ink, [(at, value * scale) for at, value in found if value is not None])

    def line(label: str, ink: str, points: Sequence[tuple[float, float]], marks: str = "line") -> list[Line]:
        return [Line(label, ink, [at for at, _ in points], [v for _, v in points], marks=marks)] if points else []

    def chart(id_: str, series: Sequence[Line], unit: str, **more: Any) -> Iterator[Chart]:
        if series:
            yield lines(id_, series, across="minutes of the soak", up=unit, xlim=(0, minutes), **more)

    used = read("the daemon’s process", "speculative", lambda one: one.resident, 1e9)
    yield from chart("memory", used + read("MLX with its cache", "second", lambda one: one.mlx, 1e9), "GB")
    free = read("free above the floor", "speculative", lambda one: one.headroom, 1e9)
    yield from chart("headroom", free, "GB", level=(0.0, "the floor", "bad"))
    if accepted := window("accepted / drafted", "speculative", lambda one: one.acceptance if one.enough else None, 100):
        accepted += window("α, accepted / reached", "third", lambda one: one.alpha if one.enough else None, 100)
    level = LEAST_ACCEPTED * 100, share(LEAST_ACCEPTED), "bad"
    yield from chart("soak-acceptance", accepted, "% of drafted tokens", level=level, top=100)
    rate = window("all streams together", "speculative", lambda one: one.tokens_per_second)
    yield from chart("soak-throughput", rate, "tokens/s")
    if slow := window("p95", "speculative", lambda one: one.inter_token_p95, 1000):
        slow += window("p50", "third", lambda one: one.inter_token_p50, 1000)
    yield from chart("soak-latency", slow, "ms")
    heat = read("hottest sensor", "second", lambda one: one.temperature)
    yield from chart("heat", heat, "°C", bottom=30.0, top=100.0)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last tenth."""
    tenth = max(1, len(values) // 10)
    return median(values[:tenth]), median(values[-tenth:])


def _readings(ticks: Sequence[Tick], samples: Sequence[Sample]) -> list[tuple[float, Sample]]:
    """Those that were taken while requests were under way, with the minute of the soak."""
    found, before = [], 0.0
    for part in soak_parts(ticks, samples):
        there = [one for one in part.samples if part.began <= one.elapsed <= part.ended]
        found += [((before + one.elapsed - part.began) / 60, one) for one in there]
        before += part.seconds
    return found
