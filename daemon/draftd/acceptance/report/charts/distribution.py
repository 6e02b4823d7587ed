"""How long it takes, over all tokens: the whole distribution, since a median hides what a reader feels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from draftd.acceptance.report.blocks import Chart, Key
from draftd.acceptance.report.canvas import draw
from draftd.acceptance.report.numbers import figure, share
from draftd.acceptance.report.palette import stand_in

_POINTS = 300  # of a curve: more than a screen can show
_UNSEEN = 0.995  # what lies beyond this quantile is left to the table


def cumulative(
    id_: str, title: str, series: Mapping[str, Sequence[float]], inks: Mapping[str, str], reading: str
) -> Chart:
    """`series` are seconds, by name."""
    shares = np.linspace(0, 1, _POINTS)
    curves = {name: np.quantile(np.asarray(values), shares) * 1000 for name, values in series.items()}
    end = max(float(np.quantile(np.asarray(values), _UNSEEN)) * 1000 for values in series.values())

    def paint(axes: Axes) -> None:
        axes.axhline(95, color=stand_in("quiet"), linewidth=1.4, linestyle=(0, (1, 2.5)), zorder=1.5)
        for name, values in curves.items():
            dash = "solid" if inks[name] != "autoregressive" else (0, (5, 2))
            axes.plot(values, shares * 100, color=stand_in(inks[name]), linestyle=dash)
        axes.set_xlim(0, end * 1.03)
        axes.set_ylim(0, 102)
        axes.set_yticks([0, 25, 50, 75, 95])

    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{share(q)} within {figure(float(np.quantile(np.asarray(v), q)) * 1000)} ms" for q in (0.5, 0.95, 0.99)
        )
        for name, v in series.items()
    )
    description = f"Cumulative distribution. {told}. {reading}"
    svg = draw(id_, title, description, paint, across="ms", up="% that take no longer")
    keys = tuple(Key(name, inks[name], "broken" if inks[name] == "autoregressive" else "plain") for name in series)
    return Chart(id_, title, reading, description, svg, (*keys, Key("95 %", "quiet", "dotted")))
