"""What the soak's minutes were like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from draftd.acceptance.report.blocks import Chart, Key
from draftd.acceptance.report.canvas import draw, reference
from draftd.acceptance.report.palette import MARKERS, stand_in

_MOST = 400  # points of a curve: more than a screen can show


@dataclass(frozen=True, slots=True)
class Series:
    """`times` in seconds of the soak. `mark`: plain for what is read all the time, line for windows, dashed."""

    label: str
    ink: str
    times: Sequence[float]
    values: Sequence[float]
    mark: str = "plain"


def timeline(
    id_: str,
    title: str,
    series: Sequence[Series],
    reading: str,
    *,
    unit: str,
    level: float | None = None,
    said: str = "",
    top: float | None = None,
    bottom: float | None = 0.0,
    seconds: float | None = None,
) -> Chart:
    """`level` is what the curves are read against, and `said` what that means. `seconds`: how long it all took."""

    def paint(axes: Axes) -> None:
        for one in series:
            minutes, values = np.asarray(one.times) / 60, np.asarray(one.values)
            if len(values) > _MOST:
                kept = np.unique(np.linspace(0, len(values) - 1, _MOST).astype(int))
                minutes, values = minutes[kept], values[kept]
            axes.plot(
                minutes,
                values,
                color=stand_in(one.ink),
                linestyle=(0, (4, 3)) if one.mark == "dashed" else "solid",
                marker=MARKERS[one.ink] if one.mark == "line" else "",
                markersize=6,
                markeredgewidth=0,
                linewidth=1.6 if one.mark == "plain" else 2.2,
            )
        if level is not None:
            reference(axes, level, ink="bad")
        low, high = axes.get_ylim()
        low, high = (min(low, bottom) if bottom is not None else low), max(high, top or high)
        axes.set_ylim(low, high + (high - low) * 0.04)
        axes.set_xlim(0, None if seconds is None else seconds / 60)

    told = "; ".join(
        f"{one.label}: from {one.values[0]:.3g} to {one.values[-1]:.3g}, "
        f"at least {min(one.values):.3g}, at most {max(one.values):.3g}"
        for one in series
        if len(one.values)
    )
    description = f"{told} {unit}. {reading}"
    svg = draw(id_, title, description, paint, across="minutes of the soak", up=unit)
    keys = [Key(one.label, one.ink, one.mark) for one in series]
    if level is not None:
        keys.append(Key(said, "bad", "dashed"))
    return Chart(id_, title, reading, description, svg, tuple(keys))
