"""What the report's template is given: sections of notes, charts and tables, and how figures are written in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from draftd.acceptance.cost import CostRates, per_thousand_tokens
from draftd.acceptance.statistics import Interval
from draftd.acceptance.sweep.result import parse
from draftd.acceptance.ticks import Arm
from draftd.core import DRAFT_MODEL

NOTHING = "–"
Tone = Literal["plain", "good", "bad", "unproven", "absent", "excused"]
"""How a value is to be taken: told by a word and a sign everywhere, by colour only in addition."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, or a note. `detail` is printed small below: an interval, a reason."""

    text: str
    detail: str = ""
    tone: Tone = "plain"


Row = Mapping[str, Cell | str]
"""Cells by column: "Decode | tokens/s", where a unit is shown below the title."""


@dataclass(frozen=True, slots=True)
class Column:
    """`figures` are set flush right, digit below digit."""

    title: str
    unit: str = ""
    figures: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it. `stacked`: on a narrow page each row is a card of its own; without, a table
    that is too wide is scrolled. `strong` are the numbers of the rows that are highlighted."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    stacked: bool = False
    strong: frozenset[int] = frozenset()

    @classmethod
    def of(cls, caption: str, rows: Iterable[Row], *, words: Iterable[str] = (), strong: Iterable[int] = ()) -> Table:
        """Of figures, but for the columns that are `words`. A column in which no row has a value is left out."""
        filled = [{key: _cell(value) for key, value in row.items()} for row in rows]
        keys = list(filled[0]) if filled else []
        names = [*keys[:1], *(key for key in keys[1:] if any(_known(row[key]) for row in filled))]
        columns = [(*key.partition(" | ")[::2], key not in words) for key in names]
        cells = tuple(tuple(row[key] for key in names) for row in filled)
        return cls(caption, tuple(Column(*one) for one in columns), cells, strong=frozenset(strong))

    @classmethod
    def of_words(cls, caption: str, rows: Sequence[Row]) -> Table:
        """Of text, in all columns."""
        return replace(cls.of(caption, rows, words=rows[0] if rows else ()), stacked=True)


def _cell(value: Cell | str) -> Cell:
    return Cell(value) if isinstance(value, str) else value


def _known(cell: Cell) -> bool:
    return cell.text not in ("", NOTHING) or bool(cell.detail)


@dataclass(frozen=True, slots=True)
class Chart:
    """`title` says what is shown, `reading` what to conclude from it, `description` both, for a reader who cannot see
    it."""

    id: str
    title: str
    reading: str
    description: str
    svg: str


@dataclass(frozen=True, slots=True)
class Section:
    """`lead` is what the section comes to, in a sentence or two. `facts` are names with values. `folded` is what most
    readers pass over: opened by a click, always open in print."""

    id: str
    title: str
    lead: str
    notes: Sequence[Cell] = ()
    charts: Sequence[Chart] = ()
    facts: Mapping[str, Cell | str] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


# figures, as text


def figure(value: float | None, digits: int = 3) -> str:
    """`digits` that count, and no exponent: 1 234, 48.2, 0.0312."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    return fixed(value, min(8, max(0, digits - 1 - math.floor(math.log10(abs(value))))))


def fixed(value: float, places: int) -> str:
    return f"{value:,.{places}f}".replace(",", " ").replace("-", "−")


def integer(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def spread(interval: Interval, scale: float = 1.0, places: int = 2) -> str:
    """The interval's ends, alike in their digits."""
    low, high = (fixed(end * scale, places) for end in (interval.low, interval.high))
    return f"{low}–{high}" if not low.startswith("−") and not high.startswith("−") else f"{low} to {high}"


def measured(interval: Interval | None, scale: float = 1.0, unit: str = "") -> Cell:
    """An estimate, its interval below."""
    if interval is None:
        return Cell(NOTHING, tone="absent")
    size = abs(interval.estimate * scale)
    places = 1 if size == 0 else min(6, max(0, 2 - math.floor(math.log10(size))))
    return Cell(fixed(interval.estimate * scale, places) + unit, spread(interval, scale, places))


def share(value: float | None, places: int = 0) -> str:
    return NOTHING if value is None else f"{value * 100:.{places}f}\N{NO-BREAK SPACE}%".replace("-", "−")


def money(rates: CostRates | None, decode: Interval | None) -> str:
    """Of a thousand tokens, at this rate."""
    amount = None if rates is None or decode is None else per_thousand_tokens(rates, decode.estimate)
    return NOTHING if amount is None or rates is None else f"{rates.currency}{figure(amount)}"


def size(count: float) -> str:
    """Bytes, in the unit that reads best."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= unit:
            return f"{figure(count / unit)} {name}"
    return f"{figure(count)} B"


def memory(count: float) -> str:
    """As machines are sold: in powers of two."""
    return f"{figure(count / 2**30).removesuffix('.0')} GiB"


def span(seconds: float | None) -> str:
    """A length of time for people: 41.2 s, 10 min, 2 h 5 min."""
    if seconds is None:
        return NOTHING
    if seconds < 120:
        return f"{figure(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")


def count(number: int, one: str, many: str = "") -> str:
    """The two stay on one line."""
    return f"{number:,}\N{NO-BREAK SPACE}{one if number == 1 else many or one + 's'}".replace(",", "\N{NO-BREAK SPACE}")


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def name(arm: Arm | str) -> str:
    """Autoregressive; Speculative, 4 a step; Automatic, up to 6 a step; Prompt lookup, 4 a step; … temperature 0.8;
    … 2 at a time."""
    known = parse(arm) if isinstance(arm, str) else arm
    if known is None:
        return str(arm)
    parts = ["Autoregressive"]
    if known.automatic:
        parts = ["Automatic", f"up to {known.block_length} a step"]
    elif known.drafter is not None:
        way = "Speculative" if known.drafter == DRAFT_MODEL else capitalised(known.drafter.replace("_", " "))
        parts = [way, f"{known.block_length} a step"]
    if known.temperature:
        parts.append(f"temperature {known.temperature:g}")
    if known.concurrency > 1:
        parts.append(f"{known.concurrency} at a time")
    return ", ".join(parts)


def named(arm: Arm, candidate: bool = False) -> Cell:
    """How it decodes; below, in what it differs."""
    way, *rest = name(arm).split(", ")
    return Cell(way, ", ".join([*rest, *(["the candidate"] if candidate else [])]))
