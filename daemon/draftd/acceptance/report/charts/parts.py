"""What the wait for a useful answer is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from draftd.acceptance.report.blocks import Chart, Key
from draftd.acceptance.report.canvas import draw
from draftd.acceptance.report.numbers import figure
from draftd.acceptance.report.palette import stand_in

_ROW, _FRAME = 44, 84  # pixels


def parts(
    id_: str, title: str, rows: Sequence[tuple[str, Mapping[str, float]]], inks: Mapping[str, str], reading: str
) -> Chart:
    """`rows` are a name and its parts in seconds, laid end to end."""

    def paint(axes: Axes) -> None:
        longest = max(sum(values.values()) for _, values in rows)
        for row, (_, values) in enumerate(rows):
            left = 0.0
            for part, ink in inks.items():
                seconds = values.get(part, 0.0)
                axes.barh(row, seconds, left=left, height=0.56, color=stand_in(ink), ec=stand_in("card"), lw=1)
                left += seconds
            axes.text(left + longest * 0.015, row, f"{figure(left)} s", va="center", color=stand_in("ink"))
        axes.set_yticks(range(len(rows)), [name for name, _ in rows], color=stand_in("ink"))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, longest * 1.2)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")

    told = "; ".join(
        f"{name}: " + ", ".join(f"{part} {seconds:.3g} s" for part, seconds in values.items()) for name, values in rows
    )
    description = f"{told}. {reading}"
    svg = draw(id_, title, description, paint, across="seconds", up="", height=_FRAME + _ROW * len(rows))
    return Chart(id_, title, reading, description, svg, tuple(Key(part, ink, "bar") for part, ink in inks.items()))
