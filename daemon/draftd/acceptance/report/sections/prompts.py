"""For which prompts it pays: the speed-up and the time to the first token, group by group."""

from __future__ import annotations

from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import Charts, Section
from draftd.acceptance.report.charts.ranges import ranges
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import against, measure, select
from draftd.acceptance.ticks import Arm


def prompts(sweep: Sweep, candidate: Arm) -> Section:
    groups = list(dict.fromkeys(tick.place.group for tick in sweep.ticks if not tick.place.warm_up))
    gains: list[tuple[str, dict[str, Interval]]] = []
    waits: list[tuple[str, dict[str, Interval]]] = []
    ours, plain = name(candidate), name(candidate.baseline)
    for group in sorted(groups):
        ticks = select(sweep.ticks, group=group)
        title = group.replace("_", " ")
        gain = against(ticks, candidate.id, candidate.baseline.id, "decode_tokens_per_second")
        if gain is not None:
            gains.append((title, {ours: gain}))
        found = {
            label: measure(select(ticks, arm=arm.id), "time_to_first_token")
            for label, arm in ((ours, candidate), (plain, candidate.baseline))
        }
        if known := {label: one for label, one in found.items() if one is not None}:
            waits.append((title, known))
    if not gains:
        return Section("prompts", "Kinds of prompt", "No prompt was answered both ways.")
    gains.sort(key=lambda row: -row[1][ours].estimate)
    best, worst = gains[0], gains[-1]
    lead = (
        f"Beside autoregressive decoding it does best on {best[0]} ({best[1][ours].estimate:.2f} times as fast) "
        f"and worst on {worst[0]} ({worst[1][ours].estimate:.2f} times)."
        if len(gains) > 1
        else f"Only {best[0]} prompts were measured: {best[1][ours].estimate:.2f} times."
    )
    losing = [title for title, row in gains if row[ours].high < 1]
    unsure = [title for title, row in gains if row[ours].low <= 1 <= row[ours].high]
    reading = "Every interval lies above 1: it pays for each kind of prompt."
    if losing or unsure:
        parts = [f"{_listed(losing)} {_is(losing)} slower with drafts" if losing else ""]
        parts.append(f"of {_listed(unsure)} it cannot be said" if unsure else "")
        reading = "It does not pay everywhere: " + "; ".join(part for part in parts if part) + "."
    inks = {ours: "speculative"}
    charts = [
        ranges(
            "gains", "Decode throughput by kind of prompt", gains, inks, reading,
            unit="× autoregressive", level=1.0, said="no gain",
        ),
        ranges(
            "waits", "Time to first token by kind of prompt", waits, {ours: "speculative", plain: "autoregressive"},
            "Medians with 95 % intervals. Longer prompts take longer to read, with drafts or without.",
            unit="ms", scale=1000,
        ),
    ]  # fmt: skip
    return Section("prompts", "Kinds of prompt", lead, (Charts(tuple(charts)),))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
