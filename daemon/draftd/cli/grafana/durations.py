"""Prometheus durations ("1h30m"), which rules and policies are written in."""

from __future__ import annotations

import re

_UNITS = {"y": 31_536_000.0, "w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+)(ms|[ywdhms])")


def seconds(text: str) -> float:
    """ValueError where it is none. A bare 0 is allowed, as Prometheus allows it."""
    if text in ("", "0"):
        return 0.0
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"not a duration: {text!r}")
    return sum(int(number) * _UNITS[unit] for number, unit in parts)
