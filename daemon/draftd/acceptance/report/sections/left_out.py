"""How it was measured, what was left out of it, and what went wrong: a report that is silent on these proves little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import Cell, Column, Note, Section, Table, Tone
from draftd.acceptance.report.numbers import count
from draftd.acceptance.ticks import Stage, Tick, usable


def left_out(ticks: Mapping[Stage, Sequence[Tick]], plans: Mapping[Stage, Mapping[str, Any]]) -> Section:
    """Of all stages. `plans` as they lie in the run's folder."""
    blocks: list[Note | Table] = [Note(_how(ticks, plans))]
    missing = [str(stage) for stage in Stage if not ticks[stage]]
    if missing:
        said = f"This run has no {' and no '.join(missing)}: {_adds(missing)}."
        blocks.append(Note(said, Tone.ABSENT))
    plan = plans.get(Stage.SWEEP, {})
    rows = [(Cell(name(str(one["arm"]))), Cell(str(one["reason"]))) for one in plan.get("left_out", ())]
    rows += [(Cell(str(one["prompt"])), Cell(str(one["reason"]))) for one in plan.get("left_out_prompts", ())]
    if rows:
        columns = (Column("Left out of the sweep"), Column("Why", figures=False))
        blocks.append(Table("Not measured, and why", columns, tuple(rows), stacked=True))
    errors = Counter((stage, tick.place.arm, tick.error) for stage in Stage for tick in ticks[stage] if tick.error)
    if errors:
        heads = Column("Stage"), Column("Approach", figures=False), Column("Times"), Column("Error", figures=False)
        shown = tuple(
            (Cell(str(stage)), Cell(name(arm)), Cell(str(times)), Cell(said))
            for (stage, arm, said), times in errors.most_common(12)
        )
        blocks.append(Table("Requests that failed, and are in no figure", heads, shown, stacked=True))
    everything = [tick for stage in Stage for tick in ticks[stage]]
    counted = sum(usable(tick) for tick in everything)
    lead = f"{count(len(everything), 'request')} were made; {counted:,} count.".replace(",", " ")
    if rows:
        lead += f" {count(len(rows), 'approach or prompt was', 'approaches or prompts were')} left out."
    return Section("left-out", "How it was measured, and what was left out", lead, tuple(blocks))


def _how(ticks: Mapping[Stage, Sequence[Tick]], plans: Mapping[Stage, Mapping[str, Any]]) -> str:
    said = []
    if swept := ticks[Stage.SWEEP]:
        warm = sum(tick.place.warm_up for tick in swept)
        prompts = len({(tick.place.group, tick.place.prompt) for tick in swept if not tick.place.warm_up})
        repetitions = len({tick.place.repetition for tick in swept if not tick.place.warm_up})
        said.append(
            f"{count(prompts, 'prompt')}, {count(repetitions, 'repetition')}: each prompt is asked by every approach "
            "in turn, in an order drawn anew. "
            f"{count(warm, 'request')} to warm up {'is' if warm == 1 else 'are'} kept and not counted."
        )
    said.append(
        "Intervals are 95 %, from the percentile bootstrap over prompts: a prompt’s repetitions are alike and drawn "
        "together. Ratios pair the same prompts. Every figure is derived from the raw ticks in the run’s folder."
    )
    return " ".join(said)


def _adds(missing: Sequence[str]) -> str:
    return ", ".join(f"draftd {stage} adds it" if len(missing) == 1 else f"draftd {stage}" for stage in missing) + (
        "" if len(missing) == 1 else " add them"
    )
