"""Leviathan's formula with this machine's costs: what each acceptance would gain, and where the run lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from draftd.acceptance.cost import speedup
from draftd.acceptance.report.blocks import Chart, Key
from draftd.acceptance.report.canvas import draw, reference
from draftd.acceptance.report.numbers import share
from draftd.acceptance.report.palette import MARKERS, stand_in


@dataclass(frozen=True, slots=True)
class Point:
    """Where an arm lies: its acceptance, and its measured gain."""

    alpha: float
    gain: float


def expected(
    points: Mapping[int, Point], draft_cost: float, verify: Mapping[int, float], inks: Mapping[int, str], reading: str
) -> Chart:
    """By block length, of those that were measured."""
    alphas = np.linspace(0, 1, 81)
    lengths = sorted(inks)

    def paint(axes: Axes) -> None:
        reference(axes, 1.0)
        for k in lengths:
            gains = [speedup(float(alpha), k, draft_cost, verify) for alpha in alphas]
            axes.plot(alphas * 100, gains, color=stand_in(inks[k]), linewidth=1.7, zorder=2)
            if k in points:
                at = points[k]
                axes.plot(
                    at.alpha * 100,
                    at.gain,
                    MARKERS[inks[k]],
                    ms=9,
                    color=stand_in(inks[k]),
                    zorder=4,
                    mec=stand_in("card"),
                    mew=1.5,
                )
        axes.set_xlim(0, 100)
        axes.set_ylim(bottom=0)

    told = "; ".join(
        f"blocks of {k}: accepted {share(points[k].alpha)}, measured {points[k].gain:.2f} times autoregressive, "
        f"expected {speedup(points[k].alpha, k, draft_cost, verify):.2f}"
        for k in lengths
        if k in points
    )
    title = "Expected speed-up by acceptance, and this run"
    description = f"{told}. {reading}"
    svg = draw(
        "expected",
        title,
        description,
        paint,
        across="% accepted, each token given those before it",
        up="× autoregressive",
    )
    keys = (*(Key(f"blocks of {k}", inks[k]) for k in lengths), Key("no gain", "quiet", "dashed"))
    return Chart("expected", title, reading, description, svg, keys)
