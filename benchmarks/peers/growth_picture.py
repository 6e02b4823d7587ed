"""Draws the results of part `growth`: speed and memory by context and by batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

from benchmarks.peers.bandwidth import Reading
from benchmarks.peers.growth import BATCH_CONTEXT, Point
from benchmarks.peers.ways import AUTOMATIC, AUTOREGRESSIVE

_COLOURS = {AUTOREGRESSIVE.name: "#6f7680", AUTOMATIC.name: "#1f5fae"}
_NAMES = {AUTOREGRESSIVE.name: "autoregressive", AUTOMATIC.name: "automatic depth"}
_MARKERS = {AUTOREGRESSIVE.name: "s", AUTOMATIC.name: "o"}
_MEMORY = (
    ("the process", "#b4540a", "D", lambda point: point.resident_bytes),
    ("MLX: weights, caches and work", "#0b7a75", "^", lambda point: point.active_bytes),
    ("keys and values", "#8a3f97", "v", lambda point: point.kv_bytes),
)


def draw(points: Sequence[Point], bandwidth: float, reading: Reading, path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    alone = [point for point in points if not point.place.of_batches]
    together = [point for point in points if point.place.of_batches]
    columns: tuple[tuple[list[Point], Callable[[Point], int], str], ...] = (
        (alone, lambda point: point.place.context, "tokens of context (one request)"),
        (together, lambda point: point.place.batch, f"requests at one time ({BATCH_CONTEXT} tokens of context each)"),
    )
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained", sharex="col", sharey="row")
        for (some, along, label), (above, below) in zip(columns, axes.T, strict=True):
            _speed(above, some, along, bandwidth, reading)
            _memory(below, some, along)
            _scaled(below, sorted({along(point) for point in some}), label)
        axes[0][0].set_ylabel("tokens per second, all requests")
        axes[1][0].set_ylabel("megabytes")
        for row in axes:
            row[0].legend(frameon=False, fontsize=8.5, loc="best")
        figure.suptitle(
            f"How cost grows, and what memory allows at {bandwidth / 1e9:.0f} GB/s "
            f"({reading.weight_bytes / 1e6:.0f} MB of weights, {reading.kv_bytes_a_token / 1e3:.0f} kB for each token)",
            fontsize=12,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=140)
        plt.close(figure)


def _speed(
    axes: Axes, points: Sequence[Point], along: Callable[[Point], int], bandwidth: float, reading: Reading
) -> None:
    for way, colour in _COLOURS.items():
        mine = [point for point in points if point.way == way]
        xs = [along(point) for point in mine]
        axes.plot(xs, [p.rate for p in mine], color=colour, marker=_MARKERS[way], markersize=5, label=_NAMES[way])
        bound = [reading.tokens_per_second(bandwidth, p.place.middle, p.place.batch, p.tokens_a_step) for p in mine]
        axes.plot(xs, bound, color=colour, linestyle="--", linewidth=1.2, label=f"memory bandwidth: {_NAMES[way]}")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, which="major", alpha=0.25)


def _memory(axes: Axes, points: Sequence[Point], along: Callable[[Point], int]) -> None:
    """Plots the memory under automatic depth, which includes the draft model's."""
    mine = [point for point in points if point.way == AUTOMATIC.name]
    for label, colour, marker, bytes_of in _MEMORY:
        ys = [bytes_of(point) / 1e6 for point in mine]  # type: ignore[no-untyped-call]
        axes.plot([along(point) for point in mine], ys, color=colour, marker=marker, markersize=5, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, which="major", alpha=0.25)


def _scaled(axes: Axes, ticks: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
