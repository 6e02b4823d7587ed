"""The report's charts: matplotlib's SVG, in the page's own type and colours, for a light page and a dark one."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from draftd_acceptance.report.figures import capitalise, figure
from draftd_acceptance.statistics import Interval

PALETTE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {  # on a light page, on a dark one
        "paper": ("#fbfaf7", "#15171b"),
        "card": ("#ffffff", "#1c1f25"),
        "raised": ("#f3f1ec", "#252932"),
        "ink": ("#1d2127", "#e9e7e2"),
        "quiet": ("#5c636d", "#a4abb6"),
        "line": ("#e2dfd8", "#333842"),
        "grid": ("#eae8e2", "#2b3039"),
        "accent": ("#1f5faf", "#82b4f7"),
        # the tone of a value
        "good": ("#1a7048", "#62c995"),
        "bad": ("#b3261e", "#ff8d82"),
        "unproven": ("#8a5a00", "#e8b455"),
        "absent": ("#5c636e", "#a4abb6"),
        "good-wash": ("#e8f3ed", "#19302a"),
        "bad-wash": ("#fbebe9", "#321f22"),
        "unproven-wash": ("#fbf1dd", "#352b18"),
        "absent-wash": ("#f0efec", "#272b32"),
        # series: told apart without red and green, and by shape and dash as well
        "autoregressive": ("#6f7680", "#a3abb7"),
        "speculative": ("#1f5fae", "#6fa8f5"),
        "second": ("#b4540a", "#f2a35e"),
        "third": ("#0b7a75", "#4ecdc0"),
        "fourth": ("#8a3f97", "#d79be6"),
        "fifth": ("#8a6d00", "#d9c04f"),
    }
)
SERIES = ("autoregressive", "speculative", "second", "third", "fourth", "fifth")
_MARKERS = dict(zip(SERIES, "so^DvP", strict=True))
_WIDTH, _HEIGHT = 430, 300  # pixels, as drawn; on the page as wide as there is room
_POINTS = 400  # of a curve: more than a screen can show
_STYLE: dict[Any, Any] = {
    "text.color": PALETTE["ink"][0],
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), PALETTE["quiet"][0]),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), PALETTE["line"][0]),
    "grid.color": PALETTE["grid"][0],
    "text.parse_math": False,  # a dollar is a dollar
    "svg.fonttype": "none",  # text stays text: it is read aloud, found and set in the page's own type
    "font.size": 12.5,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, and is wider than what the page is set in
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "ytick.major.size": 0.0,
    "lines.linewidth": 2.2,
    "lines.markersize": 7,
    "lines.markeredgewidth": 0,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
}
_DASHES: Mapping[str, Any] = {"dashed": (0, (4, 3)), "broken": (0, (5, 2))}


@dataclass(frozen=True, slots=True)
class Chart:
    """`drawing` is the content of an SVG element with this `viewbox`; `words` describes it for readers who cannot see
    it. A `single` chart would show one point or row; it is not drawn, because a sentence says as much."""

    id: str
    words: str
    viewbox: str
    drawing: str
    series: Sequence[Series] = ()
    single: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One series. `marks`: line has a point for each value; plain, dashed and broken have none; dot and ring have only
    points."""

    label: str
    ink: str
    xs: Sequence[float]
    ys: Sequence[float]
    intervals: Sequence[Interval] = ()
    marks: str = "line"

    @classmethod
    def through(
        cls, label: str, ink: str, points: Iterable[tuple[float, float | None]], scale: float = 1.0, marks: str = "line"
    ) -> Series:
        """Returns the series of the points with a value."""
        readings = [(x, y * scale) for x, y in points if y is not None]
        return cls(label, ink, [x for x, _ in readings], [y for _, y in readings], marks=marks)

    @classmethod
    def of(cls, label: str, ink: str, curve: Mapping[int, Interval], scale: float = 1.0) -> Series:
        """Returns the series of a curve's estimates, with their intervals."""
        at = sorted(curve)
        scaled = [curve[x].scale_by(scale) for x in at]
        return cls(label, ink, at, [one.estimate for one in scaled], scaled)


def lines(
    id_: str,
    series: Sequence[Series],
    *,
    across: str,
    up: str,
    text: str = "",
    bottom: float = 0.0,
    top: float | None = None,
    level: tuple[float, str, str] | None = None,
    band: Interval | None = None,
    **axis: Any,
) -> Chart:
    """Draws curves over numbers. `level` is a reference value with its label and ink; `band` an interval behind the
    curves. `text` replaces the default description of the series. `axis` holds arguments of `Axes.set`."""

    def paint(axes: Axes) -> None:
        if band is not None:
            axes.axhspan(band.low, band.high, color=_ink("autoregressive"), alpha=0.18, linewidth=0)
        if level is not None:
            axes.axhline(level[0], color=_ink(level[2]), lw=1.2, ls=_DASHES["dashed"], zorder=1.5, label=level[1])
        for line in series:
            _line(axes, line)
        axes.set(**axis)
        low, high = axes.get_ylim()
        low, high = min(low, bottom), max(high, top or high)
        axes.set_ylim(low, high + (high - low) * 0.04)

    words = text or "; ".join(_series_words(line) for line in series if len(line.ys))
    single = all(len(set(line.xs)) < 2 for line in series)
    return _draw_chart(id_, words, paint, across=across, up=up, series=series, single=single)


def ranges(
    id_: str,
    rows: Mapping[str, Mapping[str, Interval]],
    inks: Mapping[str, str],
    *,
    unit: str,
    level: tuple[float, str] | None = None,
) -> Chart:
    """Draws estimates with their intervals, one below the other: `rows` has each series' interval by the row's name.
    `level` is a reference value and its label."""

    def paint(axes: Axes) -> None:
        apart = 0.32 if len(inks) > 1 else 0.0
        for nth, (series, ink) in enumerate(inks.items()):
            intervals = {row: interval[series] for row, interval in enumerate(rows.values()) if series in interval}
            at = [row + (nth - (len(inks) - 1) / 2) * apart for row in intervals]
            low, middle, high = (
                [getattr(interval, end) for interval in intervals.values()] for end in ("low", "estimate", "high")
            )
            axes.hlines(at, low, high, color=_ink(ink), lw=2.4, alpha=0.6)
            axes.plot(middle, at, _MARKERS[ink], color=_ink(ink), zorder=3, label=series)
        if level is not None:
            axes.axvline(level[0], color=_ink("quiet"), lw=1.2, ls=_DASHES["dashed"], zorder=1.5, label=level[1])
        _rows(axes, rows)
        axes.margins(x=0.06)
        left, right = axes.get_xlim()
        left = left if level is not None else 0.0
        axes.set_xlim(left, max(right, left + (axes.dataLim.x1 - left) * 1.06))

    words = {
        name: {
            series: f"{figure(interval.estimate)} ({figure(interval.low)} to {figure(interval.high)})"
            for series, interval in all_.items()
        }
        for name, all_ in rows.items()
    }
    return _draw_chart(id_, _row_words(words), paint, across=unit, height=116 + 30 * len(rows), single=len(rows) == 1)


def parts(id_: str, rows: Mapping[str, Mapping[str, float]], inks: Mapping[str, str]) -> Chart:
    """Draws each row's parts in seconds, end to end."""

    def paint(axes: Axes) -> None:
        longest = max(sum(values.values()) for values in rows.values())
        left = np.zeros(len(rows))
        for part, ink in inks.items():
            seconds = np.array([values.get(part, 0.0) for values in rows.values()])
            axes.barh(range(len(rows)), seconds, 0.56, left, color=_ink(ink), edgecolor=_ink("card"), label=part)
            left += seconds
        for row, total in enumerate(left):
            axes.text(total + longest * 0.015, row, f"{figure(float(total))} s", va="center")
        _rows(axes, rows)
        axes.set_xlim(0, longest * 1.26)  # the total stands behind its bar

    words = {name: {part: f"{figure(value)} s" for part, value in values.items()} for name, values in rows.items()}
    return _draw_chart(
        id_, _row_words(words), paint, across="seconds", height=108 + 44 * len(rows), single=len(rows) == 1
    )


def _line(axes: Axes, line: Series) -> None:
    xs, ys, ink = np.asarray(line.xs, float), np.asarray(line.ys, float), _ink(line.ink)
    if len(xs) > _POINTS:
        kept = np.unique(np.linspace(0, len(xs) - 1, _POINTS).astype(int))
        xs, ys = xs[kept], ys[kept]
    if line.intervals:
        low, high = ([getattr(interval, end) for interval in line.intervals] for end in ("low", "high"))
        axes.vlines(xs, low, high, color=ink, lw=1.6, alpha=0.85, zorder=2)
    if line.marks == "ring":
        axes.plot(xs, ys, "o", ms=15, mfc="none", mec=ink, mew=2.2, zorder=4, label=line.label)
        return
    marker = _MARKERS.get(line.ink, "o") if line.marks in ("line", "dot") else ""
    style = "none" if line.marks == "dot" else _DASHES.get(line.marks, "solid")
    thin = line.marks in ("plain", "dashed")
    axes.plot(xs, ys, color=ink, marker=marker, linestyle=style, linewidth=1.6 if thin else 2.2, label=line.label)


def _series_words(line: Series) -> str:
    if line.marks == "ring":
        return line.label
    if len(line.ys) > 12:
        first, last, least, most = map(figure, (line.ys[0], line.ys[-1], min(line.ys), max(line.ys)))
        return f"{line.label}: from {first} to {last}, at least {least}, at most {most}"
    return f"{line.label}: " + ", ".join(f"{figure(y)} at {x:.3g}" for x, y in zip(line.xs, line.ys, strict=True))


def _row_words(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the rows in words; names the series only if there are several."""
    if all(len(row) == 1 for row in rows.values()):
        return "; ".join(f"{name}: {value}" for name, row in rows.items() for value in row.values())
    return ". ".join(
        f"{capitalise(name)} – " + "; ".join(f"{key}: {value}" for key, value in row.items())
        for name, row in rows.items()
    )


def _rows(axes: Axes, names: Collection[str]) -> None:
    axes.set_yticks(range(len(names)), names, color=_ink("ink"))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")


def _ink(name: str) -> str:
    """Returns the colour on a light page; `_fit` replaces it by a CSS variable."""
    return PALETTE[name][0]


def _draw_chart(
    id_: str,
    words: str,
    paint: Callable[[Axes], None],
    *,
    across: str,
    up: str = "",
    height: int = _HEIGHT,
    series: Sequence[Series] = (),
    single: bool = False,
) -> Chart:
    words = (f"Vertical axis: {up}. " if up else "") + f"Horizontal axis: {across}. {capitalise(words)}"
    if single:
        return Chart(id_, words, "", "", series, single)
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": id_}), io.StringIO() as out:
        layout = ConstrainedLayoutEngine(w_pad=6 / 72, h_pad=5 / 72)
        drawing = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72, layout=layout)
        axes = drawing.add_subplot()
        axes.set_xlabel(across, labelpad=6)
        axes.set_title(up, loc="left", fontsize=12.5, color=_ink("quiet"), pad=8, x=0.0)
        paint(axes)
        drawing.legend(loc="outside upper left", ncols=2, borderpad=0, columnspacing=1.2)
        drawing.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return Chart(id_, words, f"0 0 {_WIDTH} {height}", _fit(out.getvalue()), series)


def _fit(svg: str) -> str:
    """Returns the SVG's content for use inside a page, with the page's type and colours."""
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    referred = set(re.findall(r'(?:url\(|href=")#([\w.-]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in referred else "", svg)
    svg = svg.replace("'DejaVu Sans'", "var(--type)")
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), svg)  # of a pixel; never of text
    names = {pair[0]: name for name, pair in PALETTE.items()}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var(--{names[found[0]]})" if found[0] in names else found[0], svg)
    return re.sub(r"\n\s*", "\n", svg).strip()
