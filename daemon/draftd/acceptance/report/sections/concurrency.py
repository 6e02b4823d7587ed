"""Several requests at a time."""

from __future__ import annotations

from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import Charts, Section
from draftd.acceptance.report.charts.together import together
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.statistics import Interval
from draftd.acceptance.ticks import Arm


def concurrency(sweep: Sweep) -> Section | None:
    """None where no more than one ran at a time."""
    lines = _lines(sweep)
    total: dict[str, dict[int, Interval]] = {}
    first: dict[str, dict[int, Interval]] = {}
    inks: dict[str, str] = {}
    for arms in lines:
        label = name(arms[0])
        inks[label] = "speculative" if arms[0].speculative else "autoregressive"
        for arm in arms:
            summary = sweep.summaries[arm]
            if summary.total_tokens_per_second is not None:
                total.setdefault(label, {})[arm.concurrency] = summary.total_tokens_per_second
            wait = summary.figures["time_to_first_token"]
            if wait is not None:
                first.setdefault(label, {})[arm.concurrency] = wait
    if not total:
        return None
    most = max(c for curve in total.values() for c in curve)
    said = [
        f"{curve[most].estimate / curve[1].estimate:.2f} times ({label[:1].lower()}{label[1:]})"
        for label, curve in total.items()
        if most in curve and 1 in curve
    ]
    lead = f"{most} requests at a time get, all together, {' and '.join(said)} the tokens a second that one alone gets."
    charts = (
        together("together", "Throughput of all requests together", total, inks, _gain(total, most), unit="tokens/s"),
        together(
            "together-first", "Time to first token", first, inks,
            "Medians with 95 % intervals: what each one waits, while others decode.", unit="ms", scale=1000,
        ),
    )  # fmt: skip
    return Section("concurrency", "Several at a time", lead, (Charts(charts),))


def _lines(sweep: Sweep) -> list[list[Arm]]:
    """Arms that differ in nothing but how many run at a time, where there is more than one."""
    found: dict[tuple[object, ...], list[Arm]] = {}
    for arm in sweep.arms:
        if not arm.temperature:
            found.setdefault((arm.block_length, arm.drafter, arm.automatic), []).append(arm)
    return [sorted(arms, key=lambda arm: arm.concurrency) for arms in found.values() if len(arms) > 1]


def _gain(total: dict[str, dict[int, Interval]], most: int) -> str:
    plain = next((curve for label, curve in total.items() if label.startswith("Autoregressive")), {})
    drafted = next((curve for label, curve in total.items() if not label.startswith("Autoregressive")), {})
    if most not in plain or most not in drafted:
        return "Tokens of all answers over the time from the first asking to the last end."
    gain = drafted[most].estimate / plain[most].estimate
    better = "still yields" if gain > 1 else "yields only"
    return (
        f"At {most} at a time drafting {better} {gain:.2f} times what autoregressive decoding does. Tokens of all "
        "answers, over the time from the first asking to the last end: the wait for the first token is in it."
    )
