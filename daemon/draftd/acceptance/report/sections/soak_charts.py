"""The soak minute by minute: memory, acceptance, speed, latency, heat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from draftd.acceptance.report.blocks import Chart
from draftd.acceptance.report.charts.timeline import Series, timeline
from draftd.acceptance.report.numbers import count, figure, megabytes, share
from draftd.acceptance.samples import Sample
from draftd.acceptance.soak.result import Window
from draftd.acceptance.ticks import Tick

_GB = 1e9
_LEAST_ACCEPTED = 0.40  # below it drafts are mostly waste; the shipped spec's line
_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")


@dataclass(frozen=True, slots=True)
class _Reading:
    """`at`: seconds of soaking, what came between two sessions left out, as the windows count them."""

    at: float
    sample: Sample


def soak_charts(ticks: Sequence[Tick], samples: Sequence[Sample], windows: Sequence[Window]) -> tuple[Chart, ...]:
    """Of what could be read."""
    readings = list(_readings(ticks, samples))
    seconds = max((one.start + one.seconds for one in windows), default=None)
    made = (
        _memory(readings, seconds),
        _headroom(readings, seconds),
        _acceptance(windows, seconds),
        _throughput(windows, seconds),
        _latency(windows, seconds),
        _heat(readings, seconds),
    )
    return tuple(chart for chart in made if chart is not None)


def _readings(ticks: Sequence[Tick], samples: Sequence[Sample]) -> Iterator[_Reading]:
    """Those that were taken while requests were under way."""
    before = 0.0
    for session in sorted({tick.place.session for tick in ticks}):
        mine = [tick for tick in ticks if tick.place.session == session]
        began, ended = min(tick.elapsed for tick in mine), max(tick.elapsed + tick.ended for tick in mine)
        for one in samples:
            if one.session == session and began <= one.elapsed <= ended:
                yield _Reading(before + one.elapsed - began, one)
        before += ended - began


def _read(
    label: str, ink: str, readings: Sequence[_Reading], figure_: Callable[[Sample], float | None], scale: float = 1.0
) -> Series | None:
    known = [(one.at, value / scale) for one in readings if (value := figure_(one.sample)) is not None]
    return Series(label, ink, [at for at, _ in known], [value for _, value in known]) if len(known) > 1 else None


def _memory(readings: Sequence[_Reading], seconds: float | None) -> Chart | None:
    def mlx(one: Sample) -> float | None:
        return None if one.mlx_active is None else one.mlx_active + (one.mlx_cache or 0)

    found = (
        _read("the daemon’s process", "speculative", readings, lambda one: one.resident, _GB),
        _read("of MLX, in use and kept", "second", readings, mlx, _GB),
    )
    series = [one for one in found if one is not None]
    if not series:
        return None
    first, last = _ends(series[0].values)
    grew = f"{'grew' if last >= first else 'shrank'} by {megabytes(abs(last - first) * _GB)}"
    reading = f"From the first tenth of the soak to the last the memory {grew} ({series[0].label}, medians)."
    return timeline("memory", "Memory", series, reading, unit="GB", seconds=seconds)


def _headroom(readings: Sequence[_Reading], seconds: float | None) -> Chart | None:
    series = _read("free above the floor", "speculative", readings, lambda one: one.headroom, _GB)
    if series is None:
        return None
    least = min(series.values)
    floor = next((one.sample.floor for one in readings if one.sample.floor is not None), None)
    where = "" if floor is None else f"; the floor leaves {figure(floor / _GB)} GB to the rest of the machine"
    reading = f"At the least {figure(least)} GB were free above the floor{where}."
    if least <= 0:
        reading = f"Free memory fell below the floor, by {figure(-least)} GB at the worst{where}."
    title = "Free memory above the floor"
    return timeline("headroom", title, [series], reading, unit="GB", level=0.0, said="the floor", seconds=seconds)


def _acceptance(windows: Sequence[Window], seconds: float | None) -> Chart | None:
    enough = [one for one in windows if one.enough]
    shares = [(_middle(one), one.acceptance * 100) for one in enough if one.acceptance is not None]
    alphas = [(_middle(one), one.alpha * 100) for one in enough if one.alpha is not None]
    if not shares:
        return None
    series = [_line("accepted / drafted", "speculative", shares)]
    series += [_line("α, each given the last", "third", alphas)] if alphas else []
    lowest, highest = min(series[0].values), max(series[0].values)
    reading = f"By the window, between {share(lowest / 100)} and {share(highest / 100)} of what was drafted."
    if below := sum(value < _LEAST_ACCEPTED * 100 for value in series[0].values):
        reading += f" {count(below, 'window')} of {len(shares)} below {share(_LEAST_ACCEPTED)}."
    if len(windows) > len(enough):
        reading += f" {count(len(windows) - len(enough), 'window')} with too few drafts left out."
    return timeline(
        "soak-acceptance", "Acceptance", series, reading, unit="% of drafted tokens",
        level=_LEAST_ACCEPTED * 100, said=share(_LEAST_ACCEPTED), top=100, seconds=seconds,
    )  # fmt: skip


def _throughput(windows: Sequence[Window], seconds: float | None) -> Chart | None:
    points = [(_middle(one), one.tokens_per_second) for one in windows if one.tokens_per_second is not None]
    if not points:
        return None
    series = _line("all streams together", "speculative", points)
    reading = f"By the window, between {figure(min(series.values))} and {figure(max(series.values))} tokens/s."
    return timeline("soak-throughput", "Throughput", [series], reading, unit="tokens/s", seconds=seconds)


def _latency(windows: Sequence[Window], seconds: float | None) -> Chart | None:
    slow = [(_middle(one), one.inter_token_p95 * 1000) for one in windows if one.inter_token_p95 is not None]
    half = [(_middle(one), one.inter_token_p50 * 1000) for one in windows if one.inter_token_p50 is not None]
    if not slow:
        return None
    series = [_line("p95", "speculative", slow), _line("p50", "third", half)]
    lowest, highest = min(series[0].values), max(series[0].values)
    reading = f"By the window, the 95th percentile lies between {figure(lowest)} and {figure(highest)} ms."
    return timeline("soak-latency", "Time between tokens", series, reading, unit="ms", seconds=seconds)


def _heat(readings: Sequence[_Reading], seconds: float | None) -> Chart | None:
    series = _read("hottest sensor", "second", readings, lambda one: one.temperature)
    if series is None:
        return None
    levels = {one.sample.thermal for one in readings if one.sample.thermal in _LEVELS}
    worst = max(levels, key=lambda level: _LEVELS.index(str(level)), default=None)
    said = "" if worst is None else f" The system’s own word for it, at the worst: {worst}."
    reading = f"Up to {figure(max(series.values))} °C.{said}"
    return timeline("heat", "Temperature", [series], reading, unit="°C", bottom=30.0, top=100.0, seconds=seconds)


def _middle(window: Window) -> float:
    return window.start + window.seconds / 2


def _line(label: str, ink: str, points: Sequence[tuple[float, float]]) -> Series:
    return Series(label, ink, [at for at, _ in points], [value for _, value in points], "line")


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last tenth."""
    tenth = max(1, len(values) // 10)
    return median(values[:tenth]), median(values[-tenth:])
