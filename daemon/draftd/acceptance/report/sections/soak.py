"""Does it hold? What the soak came to, and its minutes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from draftd.acceptance.report.blocks import NOTHING, Block, Cell, Charts, Facts, Note, Section, Tone
from draftd.acceptance.report.numbers import count, figure, gigabytes, megabytes, share, span
from draftd.acceptance.report.sections.soak_charts import soak_charts
from draftd.acceptance.samples import Sample
from draftd.acceptance.soak.growth import Growth
from draftd.acceptance.soak.result import SoakResult
from draftd.acceptance.ticks import Tick

_UNREAD = Cell(NOTHING, "not readable on this machine", Tone.ABSENT)


def soak(result: SoakResult | None, ticks: Sequence[Tick], samples: Sequence[Sample]) -> Section:
    title = "Soak"
    if result is None:
        return Section("soak", title, "Not measured: this run has no soak. draftd soak adds one.")
    blocks: list[Block] = [Note(f"{one[:1].upper()}{one[1:]}.", Tone.BAD) for one in result.complaints]
    if not result.complete and result.wanted_seconds is not None:
        said = (
            f"It is not complete: {result.seconds:.0f} of {result.wanted_seconds:.0f} s. draftd soak goes on with it."
        )
        blocks.append(Note(said, Tone.UNPROVEN))
    if charts := soak_charts(ticks, samples, result.windows):
        blocks.append(Charts(charts))
    blocks.append(_facts(result, samples))
    return Section("soak", title, _lead(result), tuple(blocks))


def _lead(result: SoakResult) -> str:
    failed = "none failed" if not result.errors else f"{result.errors} failed"
    text = f"{span(result.seconds)} of decoding without a break: {count(result.requests, 'request')}, {failed}."
    if result.days_to_exhaustion is None:
        return f"{text} Memory could not be read."
    if math.isinf(result.days_to_exhaustion):
        return f"{text} No growth of memory that could be told from none."
    return f"{text} At the slowest growth that the readings allow, memory lasts {_days(result.days_to_exhaustion)}."


def _facts(result: SoakResult, samples: Sequence[Sample]) -> Facts:
    lowest = result.sustained_acceptance()
    thermal = sorted({one.thermal for one in samples if one.thermal})
    asked = count(result.sessions, "session")
    return Facts(
        (
            ("Time", Cell(span(result.seconds), asked)),
            ("Requests", Cell(f"{result.requests:,}".replace(",", " "), f"{result.errors} failed")),
            ("Throughput", _or(result.tokens_per_second, lambda rate: f"{figure(rate)} tokens/s")),
            ("Peak resident memory", _or(result.peak_resident, gigabytes)),
            ("Growth, resident", _growth(result.resident)),
            ("Growth, MLX", _growth(result.mlx)),
            ("Memory lasts", _or(result.days_to_exhaustion, _days)),
            ("Least free above the floor", _or(result.least_headroom, gigabytes)),
            ("The floor", _or(result.floor, gigabytes)),
            ("Swapped in", _or(result.swap_in, megabytes)),
            ("Longest critical pressure", _or(result.longest_critical, span)),
            ("Throttle events", _or(result.throttles, lambda number: str(int(number)))),
            ("Thermal levels", Cell(", ".join(thermal)) if thermal else _UNREAD),
            (
                "Acceptance, two windows on end",
                Cell(NOTHING, "too few windows", Tone.UNPROVEN)
                if lowest is None
                else Cell(f"never below {share(lowest)}"),
            ),
        )
    )


def _growth(growth: Growth | None) -> Cell:
    if growth is None:
        return Cell(NOTHING, "too few readings", Tone.UNPROVEN)
    low, middle, high = (
        figure(rate * 3600 / 1e6) for rate in (growth.slope.low, growth.slope.estimate, growth.slope.high)
    )
    return Cell(f"{middle} MB an hour", f"{low} to {high}; " + ("certain" if growth.certain else "none is certain"))


def _days(days: float) -> str:
    if math.isinf(days):
        return "without end"
    return f"{figure(days)} days" if days >= 2 else span(days * 86400)


def _or(value: float | None, said: Callable[[float], str]) -> Cell:
    return _UNREAD if value is None else Cell(said(value))
