"""A page to draw on, measured in pixels from its top left corner, in Grafana's colours."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

from dashboards.render import theme

WIDTH = 1640
_DPI = 100


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle on the page in pixels, from the top left."""

    x: float
    y: float
    width: float
    height: float


class Page:
    """A matplotlib figure measured in pixels from its top left corner."""

    def __init__(self, height: int) -> None:
        self.height = height
        self.figure = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI, facecolor=theme.PAGE)
        self._canvas = FigureCanvasAgg(self.figure)
        self.back = self.figure.add_axes((0, 0, 1, 1))
        self.back.set(xlim=(0, WIDTH), ylim=(height, 0))
        self.back.axis("off")

    def axes_at(self, x: float, y: float, width: float, height: float) -> Axes:
        return self.figure.add_axes((x / WIDTH, 1 - (y + height) / self.height, width / WIDTH, height / self.height))

    def fill(self, x: float, y: float, width: float, height: float, color: str) -> None:
        self.back.add_patch(Rectangle((x, y), width, height, facecolor=color, linewidth=0))

    def text(self, x: float, y: float, text: str, size: float, color: str = theme.TEXT, **more: str) -> None:
        self.back.text(x, y, text, fontsize=size * 72 / _DPI, color=color, va="center", **more)  # type: ignore[arg-type]

    def frame(self, box: Box) -> None:
        shape = FancyBboxPatch(
            (box.x, box.y), box.width, box.height, boxstyle="round,pad=0,rounding_size=3", linewidth=0.8,
            facecolor=theme.PANEL, edgecolor=theme.BORDER,
        )  # fmt: skip
        self.back.add_patch(shape)

    def png(self) -> bytes:
        """Returns the page as a PNG with a palette of 192 colours: a dashboard has few."""
        self._canvas.draw()  # type: ignore[no-untyped-call]
        pixels = self._canvas.buffer_rgba()  # type: ignore[no-untyped-call]
        picture = Image.fromarray(np.asarray(pixels)).convert("RGB")
        out = io.BytesIO()
        picture.quantize(192, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        return out.getvalue()
