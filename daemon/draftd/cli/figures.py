"""Figures as people read and write them. None, for no measurement, is a dash."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

NOTHING = "–"
_IN_UTC = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")
UNKNOWN = "not known yet"  # while the models are loaded


def _figure(pattern: str) -> Callable[[float | None], str]:
    return lambda value: NOTHING if value is None else pattern.format(value)


rate = _figure("{:.0f}")  # tokens per second
percent = _figure("{:.0%}")
times = _figure("{:.2f}×")
length = _figure("{:.2f}")  # tokens
tenths = _figure("{:.1f}")
precise_seconds = _figure("{:.3f}")


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    ms = seconds * 1000
    return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"


def both(slow: float | None, fast: float | None, factor: float = 1.0) -> str:
    """Formats two rates as autoregressive → speculative."""
    return " → ".join(rate(None if value is None else value * factor) for value in (slow, fast))


def export_state(exporting: bool) -> str:
    """Says whether spans, metrics and logs are exported."""
    return "on (an OTEL endpoint is set)" if exporting else "off (no OTEL endpoint)"


def in_local_time(text: str, zone: tzinfo | None = None) -> str:
    """Converts the UTC times in a text of the daemon's to a zone, by default this machine's."""

    def local(match: re.Match[str]) -> str:
        at = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).astimezone(zone)
        return f"{at:%Y-%m-%d %H:%M:%S %Z}"

    return _IN_UTC.sub(local, text)


def size(count: int | None) -> str:
    if count is None:
        return NOTHING
    value = abs(float(count))
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{'−' if count < 0 else ''}{value:.{1 if unit == 'GB' else 0}f} {unit}"


def span(seconds: int) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


_UNITS = {"y": 31_536_000.0, "w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+)(ms|[ywdhms])")


def seconds_of(text: str) -> float:
    """Parses a duration as Prometheus writes it ("1h30m", or 0). Raises ValueError."""
    if text in ("", "0"):
        return 0.0
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"not a duration: {text!r}")
    return sum(int(number) * _UNITS[unit] for number, unit in parts)
