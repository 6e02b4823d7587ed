"""Draws one panel into its box, in the style of its kind, from the series that its queries returned."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from dashboards.render import theme
from dashboards.render.asking import Series, Shown
from dashboards.render.canvas import Box, Page
from dashboards.render.reading import Panel, Target
from dashboards.render.units import written

Found = Sequence[tuple[Target, Sequence[Series]]]
_TITLE = 28  # height of a panel's title, in pixels


@dataclass(frozen=True, slots=True)
class Moment:
    """A time at which something changed: drawn as a line across every panel with a time axis."""

    at: float
    color: str


@dataclass(frozen=True, slots=True)
class Line:
    """A series with the colour, style and mappings that palette and overrides give it."""

    name: str
    ref: str
    points: Sequence[tuple[float, float]]
    color: str
    dashed: bool
    fill: float
    mappings: Sequence[Any]


def draw(page: Page, box: Box, panel: Panel, found: Found, shown: Shown, moments: Sequence[Moment]) -> None:
    """Draws the panel's series, or the text for missing data."""
    lines = _lines(panel, found)
    if not any(math.isfinite(value) for line in lines for _, value in line.points):
        said = panel.defaults.get("noValue", "No data")
        page.text(box.x + box.width / 2, box.y + box.height / 2 + 8, said, 15, theme.FAINT, ha="center")
        return
    kinds = {"stat": _stat, "bargauge": _bars}
    if panel.kind in kinds:
        kinds[panel.kind](page, box, panel, lines)
    elif panel.kind == "timeseries":
        _timeseries(page, box, panel, lines, shown, moments)
    elif panel.kind == "state-timeline":
        _states(page, box, lines, shown, moments)
    elif panel.kind == "heatmap":
        _heatmap(page, box, panel, lines, shown)
    else:
        raise NotImplementedError(panel.kind)


def _lines(panel: Panel, found: Found) -> list[Line]:
    made: list[Line] = []
    for target, series in found:
        for one in sorted(series, key=lambda one: target.named(one.labels)):
            name = target.named(one.labels)
            own = panel.overridden(name, target.ref)
            chosen = own.get("color", {}).get("fixedColor")
            made.append(
                Line(
                    name,
                    target.ref,
                    one.points,
                    theme.color(chosen) if chosen else theme.of_series(len(made)),
                    "custom.lineStyle" in own,
                    own.get("custom.fillOpacity", panel.custom.get("fillOpacity", 0)) / 100,
                    own.get("mappings", panel.defaults.get("mappings", ())),
                )
            )
    return made


def _stat(page: Page, box: Box, panel: Panel, lines: Sequence[Line]) -> None:
    unit, decimals = panel.defaults["unit"], panel.defaults.get("decimals")
    steps = panel.defaults["thresholds"]["steps"]
    solid = panel.options["colorMode"] == "background_solid"
    part = (box.width - 16) / len(lines)
    for index, line in enumerate(lines):
        value = line.points[-1][1]
        words = theme.mapped(value, line.mappings)
        text, color = words or (written(value, unit, decimals), theme.of_value(value, steps))
        x, top, height = box.x + 8 + index * part, box.y + _TITLE, box.height - _TITLE - 8
        if solid:
            page.fill(x, top, part - (4 if index + 1 < len(lines) else 0), height, color)
        named = panel.options["textMode"] == "value_and_name"
        size = min(40 if not named else 28, (part - 14) / (0.62 * max(len(text), 1)))
        shade = "#ffffff" if solid else color
        page.text(x + part / 2, top + height / 2 + (9 if named else 0), text, size, shade, ha="center", weight="bold")
        if named:
            small = min(12.5, (part - 8) / (0.56 * max(len(line.name), 1)))
            page.text(x + part / 2, top + 14, line.name, small, shade if solid else theme.TEXT, ha="center")


def _bars(page: Page, box: Box, panel: Panel, lines: Sequence[Line]) -> None:
    unit, decimals = panel.defaults["unit"], panel.defaults.get("decimals")
    steps = panel.defaults["thresholds"]["steps"]
    values = [line.points[-1][1] for line in lines]
    low, high = panel.defaults.get("min", min(0.0, *values)), panel.defaults.get("max", max(values))
    names = min(max(len(line.name) for line in lines) * 7.4 + 12, box.width * 0.6)
    room, top = box.width - names - 86, box.y + _TITLE + 6
    height = min((box.height - _TITLE - 14) / len(lines), 44.0)
    for index, (line, value) in enumerate(zip(lines, values, strict=True)):
        y, color = top + index * height, theme.of_value(value, steps)
        share = (value - low) / ((high - low) or 1)
        page.text(box.x + names, y + height / 2, line.name, 12, ha="right")
        page.fill(box.x + names + 8, y + 4, room, height - 8, "#22252b")
        page.fill(box.x + names + 8, y + 4, max(room * min(share, 1), 2), height - 8, color)
        page.text(box.x + names + 16 + room, y + height / 2, written(value, unit, decimals), 14, color, weight="bold")


def _timeseries(
    page: Page, box: Box, panel: Panel, lines: Sequence[Line], shown: Shown, moments: Sequence[Moment]
) -> None:
    unit = panel.defaults["unit"]
    legend = _legend(page, box, lines)
    axes = _time_axes(page, box, shown, legend)
    grid = np.arange(shown.start // shown.step * shown.step, shown.end + shown.step / 2, shown.step)
    stacking = panel.custom.get("stacking", {}).get("mode", "none")
    values = [_on(grid, line.points) for line in lines]
    if stacking == "none":
        for line, heights in zip(lines, values, strict=True):
            _line(axes, grid, heights, line, None)
    else:
        if stacking == "percent":
            total = np.nansum(values, axis=0)
            values = [heights / np.where(total > 0, total, np.nan) for heights in values]
        below = np.zeros_like(grid)
        for line, heights in zip(lines, values, strict=True):
            above = below + np.nan_to_num(heights)
            _line(axes, grid, np.where(np.isnan(heights), np.nan, above), line, below)
            below = above
    if panel.custom.get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("symlog", linthresh=1)
    for moment in moments:
        axes.axvline(moment.at, color=moment.color, linewidth=1, linestyle=(0, (2, 3)), alpha=0.9)
    _heights(axes, panel, unit, stacking)
    if "thresholdsStyle" in panel.custom:
        _thresholds(axes, panel.defaults["thresholds"]["steps"])


def _thresholds(axes: Axes, steps: Sequence[Mapping[str, Any]]) -> None:
    """Draws a dashed line at the start of each threshold, and its colour over the range of its values."""
    low, high = axes.get_ylim()
    ends = [*(step["value"] for step in steps[1:]), high]
    for step, end in zip(steps, ends, strict=True):
        start, color = low if step["value"] is None else step["value"], theme.color(step["color"])
        if start > low:
            axes.axhline(start, color=color, linewidth=1.1, linestyle=(0, (6, 4)))
        axes.axhspan(start, max(start, min(end, high)), color=color, alpha=0.07, linewidth=0)
    axes.set_ylim(low, high)


def _line(axes: Axes, grid: Any, heights: Any, line: Line, below: Any) -> None:
    style = (0, (5, 4)) if line.dashed else "solid"
    axes.plot(grid, heights, color=line.color, linewidth=1.4, linestyle=style)
    if line.fill:
        floor = 0 if below is None else below
        axes.fill_between(grid, floor, heights, color=line.color, alpha=line.fill, linewidth=0)
    # A value between two gaps is drawn as a point.
    there = ~np.isnan(heights)
    alone = there & ~np.roll(there, 1) & ~np.roll(there, -1)
    axes.plot(grid[alone], heights[alone], ".", color=line.color, markersize=4)


def _heights(axes: Axes, panel: Panel, unit: str, stacking: str) -> None:
    low, high = axes.get_ylim()
    low, high = panel.defaults.get("min", low), panel.defaults.get("max", high)
    if "max" not in panel.defaults:
        high = max(high, panel.custom.get("axisSoftMax", high))
    if "min" not in panel.defaults:
        low = min(low, panel.custom.get("axisSoftMin", low))
    if low == high:
        low, high = low - 1, high + 1
    axes.set_ylim(low, high + (0 if "max" in panel.defaults else (high - low) * 0.04))
    shown_unit = "percentunit" if stacking == "percent" else unit
    if axes.get_yscale() == "linear" and unit in ("bytes", "Bps"):
        axes.yaxis.set_major_locator(FixedLocator(_powers_of_two(low, high)))
    elif axes.get_yscale() == "linear":
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=unit == "short" and high >= 4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, shown_unit)))


def _powers_of_two(low: float, high: float) -> list[float]:
    """Returns about five ticks, at multiples of a power of two of bytes."""
    step = 2.0 ** math.ceil(math.log2(max((high - low) / 6, 1e-9)))
    return [float(tick) for tick in np.arange(math.ceil(low / step) * step, high, step)]


def _states(page: Page, box: Box, lines: Sequence[Line], shown: Shown, moments: Sequence[Moment]) -> None:
    names = max(max(len(line.name) for line in lines) * 7.0 + 12, 48)
    axes = _time_axes(page, box, shown, 0, names)
    axes.set_ylim(len(lines), 0)
    axes.set_yticks([index + 0.5 for index in range(len(lines))], [line.name for line in lines])
    axes.grid(False)
    axes.tick_params(axis="y", length=0)
    room = (box.width - names - 20) / shown.seconds
    for index, line in enumerate(lines):
        for start, end, value in _runs(line.points, shown.step):
            text, color = theme.mapped(value, line.mappings) or (written(value, "none"), theme.TEXT)
            axes.barh(index + 0.5, end - start, left=start, height=0.85, color=color, alpha=0.85)
            if (end - start) * room > len(text) * 7:
                axes.text((start + end) / 2, index + 0.5, text, color="#111217", fontsize=8.6, ha="center", va="center")
    for moment in moments:
        axes.axvline(moment.at, color=moment.color, linewidth=1, linestyle=(0, (2, 3)), alpha=0.9)


def _runs(points: Sequence[tuple[float, float]], step: float) -> list[tuple[float, float, float]]:
    """Joins neighbouring points with the same value. Returns (start, end, value) for each."""
    runs: list[tuple[float, float, float]] = []
    for at, value in points:
        if runs and at - runs[-1][1] <= 1.5 * step:
            start, _, before = runs[-1]
            runs[-1] = (start, at, before)
            if value == before:
                continue
        runs.append((at, at, value))
    return runs


def _heatmap(page: Page, box: Box, panel: Panel, lines: Sequence[Line], shown: Shown) -> None:
    axes = _time_axes(page, box, shown, 0)
    grid = np.arange(shown.start // shown.step * shown.step, shown.end + shown.step / 2, shown.step)
    bounds = sorted(lines, key=lambda line: float(line.name.replace("+Inf", "inf")))
    rising = np.nan_to_num(np.array([_on(grid, line.points) for line in bounds]))
    cells = np.diff(rising, axis=0, prepend=0)
    used = np.flatnonzero(cells.sum(axis=1) > 0)
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, len(bounds) - 1)
    cells, names = cells[first : last + 1], [line.name for line in bounds[first : last + 1]]
    painted = np.where(cells > 1e-9, np.sqrt(np.clip(cells, 0, None)), np.nan)
    axes.pcolormesh(
        np.append(grid, grid[-1] + shown.step), np.arange(len(names) + 1), painted, cmap="Oranges_r", vmin=-0.3,
        edgecolors=theme.PANEL, linewidth=0.3,
    )  # fmt: skip
    unit = panel.defaults["unit"]
    every = max(1, len(names) // 8)
    axes.yaxis.set_major_locator(FixedLocator([float(index + 1) for index in range(0, len(names), every)]))
    labels = ["∞" if name == "+Inf" else written(float(name), unit) for name in names[::every]]
    axes.set_yticklabels(labels)
    axes.set_ylim(0, len(names))


def _on(grid: Any, points: Sequence[tuple[float, float]]) -> Any:
    """Returns the values on the grid; NaN where the series has none."""
    values = np.full(len(grid), np.nan)
    step = grid[1] - grid[0] if len(grid) > 1 else 1
    for at, value in points:
        index = round((at - grid[0]) / step)
        if 0 <= index < len(grid) and math.isfinite(value):
            values[index] = value
    return values


def _time_axes(page: Page, box: Box, shown: Shown, below: float, left: float = 62) -> Axes:
    """Returns axes below the title and above the legend, with the time at the bottom."""
    axes = page.axes_at(box.x + left, box.y + _TITLE + 6, box.width - left - 14, box.height - _TITLE - 6 - 26 - below)
    axes.set_facecolor(theme.PANEL)
    axes.set_xlim(shown.start, shown.end)
    axes.grid(True, color=theme.GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.FAINT, labelsize=8, length=0, pad=4)
    for side in axes.spines.values():
        side.set_visible(False)
    wide = max(2, int(box.width / 110))
    every = next(step for step in (15, 30, 60, 120, 300, 600, 1800, 3600, 86400) if shown.seconds / step <= wide)
    first = math.ceil(shown.start / every) * every
    axes.xaxis.set_major_locator(FixedLocator([float(at) for at in np.arange(first, shown.end, every)]))
    fmt = "%H:%M" if every >= 60 else "%H:%M:%S"
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: time.strftime(fmt, time.gmtime(at))))
    return axes


def _legend(page: Page, box: Box, lines: Sequence[Line]) -> float:
    """Draws the legend at the bottom of the box, in at most four lines. Returns its height in pixels."""
    widths = [30 + 6.6 * len(line.name) for line in lines]
    placed: list[list[tuple[Line, float]]] = [[]]
    x = 0.0
    for line, width in zip(lines, widths, strict=True):
        if placed[-1] and x + width > box.width - 20:
            placed.append([])
            x = 0.0
        placed[-1].append((line, x))
        x += width
    rows = placed[:4]
    for number, row in enumerate(rows):
        y = box.y + box.height - 13 - (len(rows) - 1 - number) * 18
        for line, at in row:
            page.fill(box.x + 12 + at, y - 1.5, 14, 3, line.color)
            room = int((box.width - at - 44) / 6.4)
            name = line.name if len(line.name) <= room else line.name[: max(room - 1, 1)] + "…"
            page.text(box.x + 31 + at, y, re.sub(r"\s+", " ", name), 11.5, theme.TEXT)
    return 18.0 * len(rows) + 4
