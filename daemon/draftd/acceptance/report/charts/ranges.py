"""Estimates with their intervals, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from draftd.acceptance.report.blocks import Chart, Key
from draftd.acceptance.report.canvas import draw, reference
from draftd.acceptance.report.palette import MARKERS, stand_in
from draftd.acceptance.statistics import Interval

_ROW, _FRAME = 30, 92  # pixels


def ranges(
    id_: str,
    title: str,
    rows: Sequence[tuple[str, Mapping[str, Interval]]],
    inks: Mapping[str, str],
    reading: str,
    *,
    unit: str,
    scale: float = 1.0,
    level: float | None = None,
    said: str = "",
) -> Chart:
    """`rows` are a name and the intervals of each series in it. `level` is what they are read against, and `said` what
    that means."""
    names = [name for name, _ in rows]

    def paint(axes: Axes) -> None:
        apart = 0.16 if len(inks) > 1 else 0.0
        for row, (_, intervals) in enumerate(rows):
            for nth, (series, ink) in enumerate(inks.items()):
                if series not in intervals:
                    continue
                one, at = intervals[series], row + (nth - (len(inks) - 1) / 2) * 2 * apart
                axes.plot([one.low * scale, one.high * scale], [at, at], color=stand_in(ink), lw=2.4, alpha=0.6)
                axes.plot(one.estimate * scale, at, MARKERS[ink], ms=7.5, color=stand_in(ink), mew=0, zorder=3)
        if level is not None:
            reference(axes, level * scale, upright=True)
        axes.set_yticks(range(len(rows)), names, color=stand_in("ink"))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.06)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, high) if level is not None else 0, high)

    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{series} {one.estimate * scale:.3g} ({one.low * scale:.3g} to {one.high * scale:.3g})"
            for series, one in intervals.items()
        )
        for name, intervals in rows
    )
    description = f"{told}. {reading}"
    svg = draw(id_, title, description, paint, across=unit, up="", height=_FRAME + _ROW * len(rows))
    keys = [Key(series, ink, "dot") for series, ink in inks.items()]
    if level is not None:
        keys.append(Key(said, "quiet", "dashed"))
    return Chart(id_, title, reading, description, svg, tuple(keys))
