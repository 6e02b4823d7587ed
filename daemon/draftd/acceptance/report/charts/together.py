"""What requests at a time bring, and cost."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from draftd.acceptance.report.blocks import Chart, Key
from draftd.acceptance.report.canvas import draw, line, whisker
from draftd.acceptance.statistics import Interval


def together(
    id_: str,
    title: str,
    series: Mapping[str, Mapping[int, Interval]],
    inks: Mapping[str, str],
    reading: str,
    *,
    unit: str,
    scale: float = 1.0,
) -> Chart:
    """By name, and by how many requests run at a time."""

    def paint(axes: Axes) -> None:
        for name, curve in series.items():
            at = sorted(curve)
            whisker(axes, at, [curve[c] for c in at], inks[name], scale=scale)
            line(axes, at, [curve[c].estimate * scale for c in at], inks[name])
        axes.set_xticks(sorted({c for curve in series.values() for c in curve}))
        axes.set_ylim(0, max(one.high * scale for curve in series.values() for one in curve.values()) * 1.12)

    told = "; ".join(
        f"{name}: " + ", ".join(f"{curve[c].estimate * scale:.3g} at {c}" for c in sorted(curve))
        for name, curve in series.items()
    )
    description = f"{unit} by requests at a time. {told}. {reading}"
    svg = draw(id_, title, description, paint, across="requests at a time", up=unit)
    return Chart(id_, title, reading, description, svg, tuple(Key(name, inks[name]) for name in series))
