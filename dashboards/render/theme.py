"""Grafana's dark theme: its colours by name, and the colour of a value or a series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

PAGE, PANEL, BORDER = "#111217", "#181b1f", "#2b2e35"
TEXT, FAINT, GRID = "#ccccdc", "#8e8e9c", "#2a2d33"

_SHADES = ("dark", "semi-dark", "", "light", "super-light")
_HUES = {
    "red": ("#C4162A", "#E02F44", "#F2495C", "#FF7383", "#FFA6B0"),
    "orange": ("#FA6400", "#FF780A", "#FF9830", "#FFB357", "#FFCB7D"),
    "yellow": ("#E0B400", "#F2CC0C", "#FADE2A", "#FFEE52", "#FFF899"),
    "green": ("#37872D", "#56A64B", "#73BF69", "#96D98D", "#C8F2C2"),
    "blue": ("#1F60C4", "#3274D9", "#5794F2", "#8AB8FF", "#C0D8FF"),
    "purple": ("#8F3BB8", "#A352CC", "#B877D9", "#CA95E5", "#DEB6F2"),
}
_NAMED = {
    f"{shade}-{hue}".removeprefix("-"): value
    for hue, values in _HUES.items()
    for shade, value in zip(_SHADES, values, strict=True)
} | {"text": FAINT}
_CLASSIC = (
    "green", "semi-dark-yellow", "light-blue", "semi-dark-orange", "red", "blue", "purple", "dark-green",
    "super-light-orange", "dark-blue", "super-light-green", "dark-red", "super-light-purple", "dark-yellow",
)  # fmt: skip


def color(name: str) -> str:
    """Returns a colour's hexadecimal code."""
    return _NAMED.get(name, name)


def of_series(index: int) -> str:
    """Returns a series' colour in the classic palette, by its number in the panel."""
    return color(_CLASSIC[index % len(_CLASSIC)])


def of_value(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    """Returns the colour of the last threshold that the value reaches."""
    reached = [step for step in steps if step["value"] is None or value >= step["value"]]
    return color(reached[-1]["color"]) if reached else TEXT


def mapped(value: float, mappings: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Returns the word and the colour that stand for a value, or None."""
    for mapping in mappings:
        if not math.isfinite(value) or value != round(value):
            continue
        found = mapping["options"].get(str(round(value)))
        if found is not None:
            return found["text"], color(found["color"])
    return None
