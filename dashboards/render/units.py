"""Formats values as Grafana does, in the units that the dashboards use."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_SECONDS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_THOUSANDS = ((1e9, "Bil"), (1e6, "Mil"), (1e3, "K"))
_PLAIN = {"celsius": " °C", "rotrpm": " rpm", "watt": " W", "none": ""}


def written(value: float, unit: str, decimals: int | None = None) -> str:
    """Returns a value with its unit. With `decimals` None it has as many decimals as are useful."""
    if not math.isfinite(value):
        return "NaN"
    if unit.startswith("suffix:"):
        return _number(value, decimals) + unit.removeprefix("suffix:")
    if unit == "percentunit":
        return _number(value * 100, decimals) + "%"
    if unit in ("bytes", "Bps"):
        return _scaled(value, _BINARY, " B", decimals) + ("/s" if unit == "Bps" else "")
    if unit == "s":
        return _scaled(value, _SECONDS, " s", decimals)
    if unit == "short":
        return _scaled(value, _THOUSANDS, "", decimals)
    return _number(value, decimals) + _PLAIN[unit]


def _scaled(value: float, scales: Sequence[tuple[float, str]], small: str, decimals: int | None) -> str:
    for size, name in scales:
        if abs(value) >= size * 0.9995:
            return f"{_number(value / size, decimals)} {name}"
    return _number(value, decimals) + small


def _number(value: float, decimals: int | None) -> str:
    if decimals is None:
        size = abs(value)
        decimals = 0 if size >= 100 or value == round(value) else 1 if size >= 10 else 2 if size >= 0.01 else 4
        return f"{value:.{decimals}f}".rstrip("0").rstrip(".") if decimals else f"{value:.0f}"
    return f"{value:.{decimals}f}"
