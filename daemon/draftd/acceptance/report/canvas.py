"""One chart, drawn: the library's SVG, made fit to stand within a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from draftd.acceptance.report.palette import MARKERS, as_variables, stand_in
from draftd.acceptance.statistics import Interval

WIDTH, HEIGHT = 430, 276  # pixels, as drawn; on the page as wide as there is room

_STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar is a dollar
    "svg.fonttype": "none",  # text stays text: it is read aloud, found and set in the page's own type
    "font.size": 12.5,
    "font.family": ["DejaVu Sans"],  # comes with the library, and is wider than what the page is set in
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.linewidth": 1.0,
    "xtick.major.size": 4.0,
    "ytick.major.size": 0.0,
    "xtick.major.pad": 5.0,
    "ytick.major.pad": 6.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
    "axes.unicode_minus": True,
}


def draw(
    id_: str,
    title: str,
    description: str,
    paint: Callable[[Axes], None],
    *,
    across: str,
    up: str,
    height: int = HEIGHT,
) -> str:
    """`across` and `up` name the axes, with their units. Its ids begin with `id_`: no two charts share one."""
    colours = {
        "text.color": "ink",
        "axes.labelcolor": "quiet",
        "axes.edgecolor": "line",
        "xtick.color": "line",
        "ytick.color": "line",
        "xtick.labelcolor": "quiet",
        "ytick.labelcolor": "quiet",
        "grid.color": "grid",
    }
    style: dict[Any, Any] = {**_STYLE, **{name: stand_in(ink) for name, ink in colours.items()}, "svg.hashsalt": id_}
    with matplotlib.rc_context(style), io.StringIO() as out:
        layout = ConstrainedLayoutEngine(w_pad=6 / 72, h_pad=5 / 72)
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout=layout)
        axes = figure.add_subplot()
        axes.set_xlabel(across, labelpad=6)
        axes.set_title(up, loc="left", fontsize=12.5, color=stand_in("quiet"), pad=10, x=0.0)
        paint(axes)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return _fit(out.getvalue(), id_, title, description)


def line(axes: Axes, xs: Sequence[float], ys: Sequence[float], ink: str, *, marked: bool = True) -> None:
    """One series: colour and shape go together, everywhere."""
    axes.plot(
        xs, ys, color=stand_in(ink), marker=MARKERS[ink] if marked else "", markersize=7, markeredgewidth=0, zorder=3
    )


def whisker(
    axes: Axes, at: Sequence[float], intervals: Sequence[Interval], ink: str, *, level: bool = False, scale: float = 1.0
) -> None:
    """Intervals, standing at `at`, or lying with `level`."""
    for place, one in zip(at, intervals, strict=True):
        ends = [one.low * scale, one.high * scale]
        across, up = (ends, [place, place]) if level else ([place, place], ends)
        axes.plot(across, up, color=stand_in(ink), linewidth=1.6, alpha=0.85, zorder=2, solid_capstyle="butt")


def reference(axes: Axes, at: float, *, upright: bool = False, ink: str = "quiet") -> None:
    """A thin dashed line that others are read against."""
    draw_ = axes.axvline if upright else axes.axhline
    draw_(at, color=stand_in(ink), linewidth=1.2, linestyle=(0, (4, 3)), zorder=1.5)


def _fit(svg: str, id_: str, title: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    svg = svg.replace(' xmlns="http://www.w3.org/2000/svg"', "").replace(' version="1.1"', "")
    referred = set(re.findall(r"#([A-Za-z_][\w.-]*)", re.sub(r"#[0-9a-f]{6}\b", "", svg)))
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{id_}-{found[1]}"' if found[1] in referred else "", svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{id_}-", svg)
    svg = re.sub(r"font: ((?:bold |italic |\d+ )*)([\d.]+)px [^;\"]*", r"font: \g<1>\2px var(--type)", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--type)", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), svg)  # of a pixel; never of text
    head = (
        f'<svg role="img" aria-labelledby="{id_}-title {id_}-desc" class="chart" '
        + re.search(r'viewBox="[^"]*"', svg)[0]  # type: ignore[index]
        + f'><title id="{id_}-title">{escape(title)}</title><desc id="{id_}-desc">{escape(description)}</desc>'
    )
    body = as_variables(svg[svg.index(">") + 1 :])
    return re.sub(r"\n\s*", "\n", head + body).strip()
