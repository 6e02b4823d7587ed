"""What the report's template is given: sections of notes, charts and tables, and how figures are written in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from draftd.acceptance.cost import CostRates, per_thousand_tokens
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import ArmSummary, against, measure, select, summarise
from draftd.acceptance.ticks import AUTOREGRESSIVE, Arm, Stage, Tick
from draftd.core import DRAFT_MODEL

NOTHING = "–"
_OF_ALL = (
    *("decode_tokens_per_second", "time_to_first_token", "inter_token_p95"),
    *("acceptance", "acceptance_at_position_0", "mean_accepted_length"),
)
"""What is shown of every arm; the other metrics only of some."""

Tone = Literal["plain", "good", "bad", "unproven", "absent", "excused"]
"""How a value is to be taken: told by a word and a sign everywhere, by colour only in addition."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`detail` is printed small below: an interval, a reason."""

    text: str
    detail: str = ""
    tone: Tone = "plain"


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

    def trimmed(self) -> Table:
        """Without the columns in which no row has a value."""

        def known(cell: Cell) -> bool:
            return cell.text not in ("", NOTHING) or bool(cell.detail)

        kept = [at for at in range(len(self.columns)) if not at or any(known(row[at]) for row in self.rows)]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)


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
class Note:
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Section:
    """`lead` is what the section comes to, in a sentence or two. `facts` are names with values. `folded` is what most
    readers pass over: opened by a click, always open in print."""

    id: str
    title: str
    lead: str
    notes: Sequence[Note] = ()
    charts: Sequence[Chart] = ()
    facts: Sequence[tuple[str, Cell]] = ()
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


def gigabytes(count: float | None) -> str:
    return NOTHING if count is None else f"{figure(count / 1e9)} GB"


def memory(count: float | None) -> str:
    """As machines are sold: in powers of two."""
    return NOTHING if count is None else f"{figure(count / 2**30).removesuffix('.0')} GiB"


def megabytes(count: float | None) -> str:
    return NOTHING if count is None else f"{figure(count / 1e6)} MB"


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


# arms, as a reader wants them named and in the order in which a reader wants them


def parse(id_: str) -> Arm | None:
    """The arm of that id; None for one that no version of draftd gave."""
    try:
        return Arm.parse(id_)
    except ValueError:
        return None


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


def present(ticks: Iterable[Tick]) -> tuple[Arm, ...]:
    """Those that were measured: the greedy ones of one request by block length, then what differs from them."""
    found = {parse(tick.place.arm) for tick in ticks if not tick.place.warm_up}
    return tuple(sorted((arm for arm in found if arm is not None), key=_order))


def _order(arm: Arm) -> tuple[object, ...]:
    odd = arm.drafter not in (None, DRAFT_MODEL)
    return arm.concurrency, arm.temperature, odd, str(arm.drafter) if odd else "", arm.automatic, arm.block_length


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep as it is shown. `gains` are decode throughput over the autoregressive arm of the same temperature and
    concurrency."""

    ticks: Sequence[Tick]
    plan: Mapping[str, Any]
    arms: tuple[Arm, ...]
    summaries: Mapping[Arm, ArmSummary]
    gains: Mapping[Arm, Interval | None]

    @classmethod
    def read(cls, folder: RunFolder) -> Sweep | None:
        """None where the run has none."""
        ticks, samples = folder.ticks(Stage.SWEEP), folder.samples(Stage.SWEEP)
        arms = present(select(ticks))
        if not arms:
            return None
        gains = {
            arm: against(ticks, arm.id, arm.baseline.id, "decode_tokens_per_second")
            for arm in arms
            if arm.speculative and arm.baseline in arms
        }
        summaries = {arm: summarise(ticks, samples, arm.id, _OF_ALL) for arm in arms}
        return cls(ticks, folder.plan(Stage.SWEEP) or {}, arms, summaries, gains)

    @property
    def lengths(self) -> tuple[Arm, ...]:
        """The arms that differ in nothing but the block length, from 0; of the draft model where there is one."""
        fixed_ = [arm for arm in self.arms if arm.speculative and not arm.automatic]
        alone = [arm for arm in fixed_ if not arm.temperature and arm.concurrency == 1]
        drafters = [arm.drafter for arm in alone]
        first = DRAFT_MODEL if DRAFT_MODEL in drafters else next(iter(drafters), None)
        plain = [AUTOREGRESSIVE] if AUTOREGRESSIVE in self.arms else []
        return (*plain, *(arm for arm in alone if arm.drafter == first))

    def figure(self, arm: Arm, metric: str) -> Interval | None:
        """One of summary.METRICS; None where the arm was not measured."""
        if arm not in self.summaries:
            return None
        figures = self.summaries[arm].figures
        return figures[metric] if metric in figures else measure(self.of(arm), metric)

    def curve(self, metric: str) -> dict[int, Interval]:
        """By block length."""
        found = {arm.block_length: self.figure(arm, metric) for arm in self.lengths}
        return {k: one for k, one in found.items() if one is not None}

    def ratio(self, arm: Arm, metric: str) -> Interval | None:
        """Over its autoregressive arm."""
        return against(self.ticks, arm.id, arm.baseline.id, metric)

    def of(self, arm: Arm) -> list[Tick]:
        return select(self.ticks, arm=arm.id)
