"""How the report writes figures: numbers, intervals, amounts, ways of decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftd.core import DRAFT_MODEL
from draftd_acceptance.cost import CostRates, per_answer
from draftd_acceptance.statistics import Interval, MemoryGrowth
from draftd_acceptance.ticks import Arm

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """A value. `detail` is printed small below it: an interval, a reason. `tone` is plain, good, bad, unproven, absent
    or excused; a word and a sign show it everywhere, colour only in addition."""

    text: str
    detail: str = ""
    tone: str = "plain"


def columns(rows: Sequence[Mapping[str, Cell | str]]) -> list[tuple[str, str, str]]:
    """Returns key, title and unit of each column of a table; the key "Decode | tokens/s" has the unit after the bar.
    Leaves out each column without a value, except the first."""

    def has_value(value: Cell | str) -> bool:
        return value not in ("", NOTHING) if isinstance(value, str) else has_value(value.text) or bool(value.detail)

    first, *others = rows[0]
    kept = [first, *(key for key in others if any(has_value(row[key]) for row in rows))]
    return [(key, *key.partition(" | ")[::2]) for key in kept]


def figure(value: float | None, digits: int = 3) -> str:
    """Formats a value with `digits` significant digits and no exponent: 1 234, 48.2, 0.0312."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    return to_places(value, min(8, max(0, digits - 1 - math.floor(math.log10(abs(value))))))


def to_places(value: float, places: int) -> str:
    return f"{value:,.{places}f}".replace(",", " ").replace("-", "−")


def spread(interval: Interval, scale: float = 1.0, places: int = 2) -> str:
    """Returns the interval's ends, with equal decimal places."""
    low, high = (to_places(end * scale, places) for end in (interval.low, interval.high))
    return f"{low}–{high}" if not low.startswith("−") and not high.startswith("−") else f"{low} to {high}"


def interval(estimate: Interval, scale: float = 1.0, places: int = 2) -> str:
    """Returns the interval for brackets in a sentence: 95 % interval 1.62 to 1.96."""
    if estimate.samples == 1:
        return "from one answer"
    low, high = (to_places(end * scale, places) for end in (estimate.low, estimate.high))
    return f"95 % interval {low} to {high}"


def measured_cell(interval: Interval | None, scale: float = 1.0, unit: str = "") -> Cell:
    """Returns an estimate with its interval below."""
    if interval is None:
        return Cell(NOTHING, tone="absent")
    size = abs(interval.estimate * scale)
    places = 1 if size == 0 else min(6, max(0, 2 - math.floor(math.log10(size))))
    return Cell(to_places(interval.estimate * scale, places) + unit, spread(interval, scale, places))


def share(value: float | None, places: int = 0) -> str:
    return NOTHING if value is None else f"{value * 100:.{places}f}\N{NO-BREAK SPACE}%".replace("-", "−")


def money(rates: CostRates | None, decode: Interval | None) -> str:
    """Returns the cost of a thousand tokens."""
    amount = None if rates is None or decode is None else per_answer(rates, 1000 / decode.estimate)
    return NOTHING if amount is None or rates is None else f"{rates.currency}{figure(amount)}"


def size(count: float) -> str:
    """Returns bytes in the most readable unit."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= unit:
            return f"{figure(count / unit)}\N{NO-BREAK SPACE}{name}"
    return f"{figure(count)}\N{NO-BREAK SPACE}B"


def memory(count: float) -> str:
    """Returns bytes in GiB, as machines are sold."""
    return f"{figure(count / 2**30).removesuffix('.0')} GiB"


def span(seconds: float | None) -> str:
    """Returns a length of time for people: 41.2 s, 10 min, 2 h 5 min."""
    if seconds is None:
        return NOTHING
    if seconds < 120:
        return f"{figure(seconds)}\N{NO-BREAK SPACE}s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")


def count(number: int, singular: str, many: str = "") -> str:
    """Returns a number and its noun, which stay on one line."""
    return f"{number:,}\N{NO-BREAK SPACE}{singular if number == 1 else many or singular + 's'}".replace(
        ",", "\N{NO-BREAK SPACE}"
    )


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def name(arm: Arm | str) -> str:
    """Returns an arm's name: Autoregressive; Speculative, 4 a step; Automatic, up to 6 a step; Prompt lookup, 4 a step;
    … temperature 0.8; … 2 at a time."""
    parsed = Arm.parse(arm) if isinstance(arm, str) else arm
    if parsed is None:
        return str(arm)
    parts = ["Autoregressive"]
    if parsed.automatic:
        parts = ["Automatic", f"up to {parsed.block_length} a step"]
    elif parsed.drafter is not None:
        way = "Speculative" if parsed.drafter == DRAFT_MODEL else capitalise(parsed.drafter.replace("_", " "))
        parts = [way, f"{parsed.block_length} a step"]
    if parsed.temperature:
        parts.append(f"temperature {parsed.temperature:g}")
    if parsed.concurrency > 1:
        parts.append(f"{parsed.concurrency} at a time")
    return ", ".join(parts)


def spoken(arm: Arm | str) -> str:
    """Returns an arm's name for a sentence: autoregressive decoding; speculative decoding in blocks of 4; … at
    temperature 0.8."""
    parsed = Arm.parse(arm) if isinstance(arm, str) else arm
    if parsed is None:
        return str(arm)
    said = "autoregressive decoding"
    if parsed.drafter is not None:
        drafter = "" if parsed.drafter == DRAFT_MODEL else f" with {parsed.drafter.replace('_', ' ')}"
        depth = "at automatic depth up to" if parsed.automatic else "in blocks of"
        said = f"speculative decoding{drafter} {depth} {parsed.block_length}"
    said += f" at temperature {parsed.temperature:g}" if parsed.temperature else ""
    return said + (f" with {parsed.concurrency} requests at a time" if parsed.concurrency > 1 else "")


def arm_cell(arm: Arm, candidate: bool = False) -> Cell:
    """Returns how the arm decodes, with its other parameters below."""
    way, *rest = name(arm).split(", ")
    return Cell(way, ", ".join([*rest, *(["the candidate"] if candidate else [])]))


def join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def with_sign(value: float, places: int) -> str:
    return "0" if abs(value) < 0.005 else f"{value:+.{places}f}".replace("-", "−")


def days(number: float) -> str:
    if math.isinf(number):
        return "without end"
    return f"{figure(number)} days" if number >= 2 else span(number * 86400)


def growth_cell(growth: MemoryGrowth) -> Cell:
    """Returns the growth in megabytes an hour."""
    slope = growth.slope.scale_by(3600 / 1e6)
    shown = "growth is certain" if growth.certain else "no growth is certain"
    return Cell(f"{figure(slope.estimate)} MB an hour", f"{figure(slope.low)} to {figure(slope.high)}; {shown}")
