"""Figures as a page sets them: the digits that are worth reading, the interval beside, a dash for what is not known."""

from __future__ import annotations

import math

from draftd.acceptance.report.blocks import NOTHING, Cell, Tone
from draftd.acceptance.statistics import Interval


def figure(value: float | None, digits: int = 3) -> str:
    """`digits` that count, and no exponent: 1 234, 48.2, 0.0312."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 8)}f}".replace(",", " ").replace("-", "−")


def spread(interval: Interval, scale: float = 1.0, places: int = 2) -> str:
    """The interval's ends, alike in their digits."""
    low, high = (_fixed(end * scale, places) for end in (interval.low, interval.high))
    return f"{low}–{high}" if not low.startswith("−") and not high.startswith("−") else f"{low} to {high}"


def measured(interval: Interval | None, scale: float = 1.0, digits: int = 3, unit: str = "") -> Cell:
    """An estimate, its interval below."""
    if interval is None:
        return Cell(NOTHING, tone=Tone.ABSENT)
    places = _places(interval, scale, digits)
    return Cell(_fixed(interval.estimate * scale, places) + unit, spread(interval, scale, places))


def percent(interval: Interval | None) -> Cell:
    if interval is None:
        return Cell(NOTHING, tone=Tone.ABSENT)
    return Cell(share(interval.estimate, 1), f"{interval.low * 100:.1f}–{interval.high * 100:.1f}")


def share(value: float | None, places: int = 0) -> str:
    return NOTHING if value is None else f"{value * 100:.{places}f} %".replace("-", "−")


def times(interval: Interval | None) -> Cell:
    cell = measured(interval, digits=3)
    return cell if interval is None else Cell(cell.text + "×", cell.detail, cell.tone)


def gigabytes(count: float | None) -> str:
    return NOTHING if count is None else f"{figure(count / 1e9, 3)} GB"


def memory(count: float | None) -> str:
    """As machines are sold: in powers of two."""
    return NOTHING if count is None else f"{figure(count / 2**30, 3).removesuffix('.0')} GiB"


def megabytes(count: float | None) -> str:
    return NOTHING if count is None else f"{figure(count / 1e6, 3)} MB"


def span(seconds: float | None) -> str:
    """A length of time for people: 41.2 s, 10 min, 2 h 5 min."""
    if seconds is None:
        return NOTHING
    if seconds < 120:
        return f"{figure(seconds, 3)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")


def count(number: int, one: str, many: str = "") -> str:
    """The two stay on one line."""
    return f"{number:,}\N{NO-BREAK SPACE}{one if number == 1 else many or one + 's'}".replace(",", "\N{NO-BREAK SPACE}")


def _places(interval: Interval, scale: float, digits: int) -> int:
    size = abs(interval.estimate * scale)
    return 1 if size == 0 else min(6, max(0, digits - 1 - math.floor(math.log10(size))))


def _fixed(value: float, places: int) -> str:
    return f"{value:,.{places}f}".replace(",", " ").replace("-", "−")
