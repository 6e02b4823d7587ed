"""Draws the drift detector's operating curve."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

from benchmarks.simulate.curve import ALTERNATIVE, FALLS, HELD, LONG_WINDOW, NORM, SHORT_WINDOW, Curve, Point
from draftd.fallback.drift import CusumSettings

_COLOURS = {0.25: "#4c78a8", 0.5: "#d1495b", 0.75: "#54a24b"}
_LEAST = 0.008  # lowest rate of false alarms that so many simulated requests can show


def draw(curve: Curve, path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, both = plt.subplots(1, 2, figsize=(11, 5.6), layout="constrained", sharey=True)
        for number, (axes, fallen) in enumerate(zip(both, FALLS, strict=True)):
            _panel(axes, curve, number)
            axes.set_title(f"acceptance falls from {NORM:g} to {fallen:g}", fontsize=11)
            axes.set_xlabel("requests until it is found (median)")
        both[0].set_ylabel("false alarms in 10,000 requests")
        figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle("The drift detector: sooner, or fewer false alarms", fontsize=13)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=140)
        plt.close(figure)


def _panel(axes: Axes, curve: Curve, number: int) -> None:
    for slack, points in curve.cusum.items():
        xs, ys, shown = _line(points, number)
        axes.plot(xs, ys, color=_COLOURS[slack], label=f"CUSUM, slack k = {slack:g}", marker=".", markersize=4)
        for point in shown:
            if slack == curve.slack and point.setting in (4, 6, 10):
                delay = point.delays[number]
                assert delay is not None
                axes.annotate(f"h = {point.setting:g}", (delay, point.false_per_10k), xytext=(7, 3),
                              textcoords="offset points", fontsize=8, color=_COLOURS[slack])  # fmt: skip
    xs, ys, _ = _line(curve.windows, number)
    axes.plot(xs, ys, color="#8c8c8c", linestyle="--", marker=".", markersize=4,
              label=f"last {SHORT_WINDOW} against {LONG_WINDOW} before, {HELD} in a row")  # fmt: skip
    dark, light, learn = "#222222", _COLOURS[ALTERNATIVE[0]], CusumSettings().learn
    _mark(axes, curve.default, number, "*", 16, dark, f"the default: k = {curve.slack:g}, h = {curve.limit:g}")
    _mark(axes, curve.learnt, number, "D", 7, dark, f"the default, its baseline learnt from {learn} requests")
    _mark(axes, curve.alternative_learnt, number, "D", 7, light,
          f"k = {ALTERNATIVE[0]:g}, h = {ALTERNATIVE[1]:g}, its baseline learnt likewise")  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(_LEAST, 100)
    axes.set_xlim(0, (320, 36)[number])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, which="major", alpha=0.25)


def _line(points: list[Point], number: int) -> tuple[list[float], list[float], list[Point]]:
    shown = [point for point in points if point.false_per_10k >= _LEAST and point.delays[number] is not None]
    return [point.delays[number] or 0.0 for point in shown], [point.false_per_10k for point in shown], shown


def _mark(axes: Axes, point: Point, number: int, marker: str, size: int, colour: str, label: str) -> None:
    delay = point.delays[number]
    if delay is not None:
        axes.plot([delay], [point.false_per_10k], linestyle="none", marker=marker, markersize=size, color=colour,
                  markeredgecolor="white", label=label, zorder=5)  # fmt: skip
