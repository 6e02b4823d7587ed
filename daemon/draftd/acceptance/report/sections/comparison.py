"""This run beside another: what changed in the figures, and what in what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftd.acceptance.manifest import Difference, Manifest, differences
from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import Cell, Charts, Column, Note, Section, Table, Tone
from draftd.acceptance.report.charts.ranges import ranges
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.report.numbers import count, measured
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import METRICS, against
from draftd.acceptance.ticks import Arm, Tick

_SHOWN = (
    ("Decode throughput", "decode_tokens_per_second"),
    ("Time to first token", "time_to_first_token"),
    ("Between tokens, p95", "inter_token_p95"),
    ("Accepted of drafted", "acceptance"),
    ("Whole answer", "end_to_end"),
)
_THIS, _OTHER = "this run", "the other"


def comparison(
    ours: Sweep | None, theirs: Sweep | None, left: Manifest | None, right: Manifest | None, other: str
) -> Section:
    """`theirs` and `left` are of the other run, whose name is `other`; the rest is of this one."""
    blocks: list[Note | Charts | Table] = []
    changes = differences(left, right) if left is not None and right is not None else ()
    matters = [one for one in changes if one.matters]
    if left is None or right is None:
        said = "One of the two runs holds no manifest: whether the same was measured cannot be told."
        blocks.append(Note(said, Tone.UNPROVEN))
    elif matters:
        said = f"What was measured differs in what matters ({_fields(matters)}): the ratios are of two unlike things."
        blocks.append(Note(said, Tone.UNPROVEN))
    else:
        blocks.append(Note("What was measured is the same in all that matters.", Tone.GOOD))
    lead = f"Ratios to {other}, on the prompts that both runs asked."
    if ours is not None and theirs is not None and (found := _ratios(ours, theirs)):
        rows = tuple(
            (Cell(name(arm)), *(measured(ratios.get(metric)) for _, metric in _SHOWN)) for arm, ratios in found.items()
        )
        columns = (Column("Approach"), *(Column(label, "×") for label, _ in _SHOWN))
        charts = []
        for title, metric in _SHOWN[:2]:
            drawn = [(name(arm), {_THIS: one}) for arm, ratios in found.items() if (one := ratios.get(metric))]
            if drawn:
                charts.append(
                    ranges(
                        f"against-{metric}", f"{title} over {other}", drawn, {_THIS: "speculative"},
                        f"{METRICS[metric].description} {_reading(drawn)}",
                        unit=f"× {other}", level=1.0, said="no change",
                    )
                )  # fmt: skip
        blocks.append(Charts(tuple(charts)))
        blocks.append(Table(f"This run over {other}: above 1 is more", columns, rows))
        lead = _lead([one for ratios in found.values() if (one := ratios.get(_SHOWN[0][1]))], other)
    else:
        blocks.append(Note("The two runs have no approach and prompt in common.", Tone.ABSENT))
    if changes:
        columns = (Column("Field"), Column(other, figures=False), Column("This run", figures=False), Column("Matters"))
        shown = tuple(
            (Cell(one.field), Cell(one.left), Cell(one.right), Cell("yes" if one.matters else "no")) for one in changes
        )
        blocks.append(Table(f"The manifests differ in {count(len(shown), 'field')}", columns, shown, stacked=True))
    return Section("comparison", f"Beside {other}", lead, tuple(blocks))


def _ratios(ours: Sweep, theirs: Sweep) -> Mapping[Arm, Mapping[str, Interval]]:
    """Paired by prompt."""
    found: dict[Arm, dict[str, Interval]] = {}
    for arm in ours.arms:
        if arm not in theirs.arms:
            continue
        ticks = [*_as(ours.of(arm), _THIS), *_as(theirs.of(arm), _OTHER)]
        ratios = {metric: against(ticks, _THIS, _OTHER, metric) for _, metric in _SHOWN}
        if known := {metric: one for metric, one in ratios.items() if one is not None}:
            found[arm] = known
    return found


def _as(ticks: Sequence[Tick], side: str) -> list[Tick]:
    return [replace(tick, place=replace(tick.place, arm=side)) for tick in ticks]


def _lead(ratios: Sequence[Interval], other: str) -> str:
    faster, slower = sum(one.low > 1 for one in ratios), sum(one.high < 1 for one in ratios)
    same = len(ratios) - faster - slower
    return (
        f"Against {other}, {count(faster, 'approach decodes', 'approaches decode')} faster, "
        f"{slower} slower, and {same} cannot be told apart."
    )


def _reading(drawn: Sequence[tuple[str, Mapping[str, Interval]]]) -> str:
    apart = sum(not row[_THIS].low <= 1 <= row[_THIS].high for _, row in drawn)
    if not apart:
        return "Every interval holds 1: no change that could be told from chance."
    lie = "lies" if apart == 1 else "lie"
    return f"Of {count(len(drawn), 'interval')} {apart} {lie} clear of 1, which is a change."


def _fields(matters: Sequence[Difference]) -> str:
    named = [one.field for one in matters[:3]]
    return ", ".join(named) + (f" and {len(matters) - 3} more" if len(matters) > 3 else "")
