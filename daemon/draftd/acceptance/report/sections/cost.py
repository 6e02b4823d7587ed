"""What it costs, in waiting and in money: beside throughput, never instead of it."""

from __future__ import annotations

from collections.abc import Mapping

from draftd.acceptance.cost import CostRates, per_answer, time_to_useful_answer
from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import NOTHING, Cell, Charts, Column, Facts, Section, Table
from draftd.acceptance.report.charts.parts import parts
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.report.numbers import figure, share, span
from draftd.acceptance.report.sections.approaches import money, named
from draftd.acceptance.statistics import quantile
from draftd.acceptance.ticks import Arm

_INKS = {"queue": "fourth", "prefill": "third", "decode": "speculative", "network": "second"}


def cost(sweep: Sweep, candidate: Arm, rates: CostRates | None, load: float | None) -> Section:
    """`load` is how many seconds the models took to load."""
    arms = [arm for arm in (candidate.baseline, candidate) if arm in sweep.arms]
    tokens = quantile([tick.output_tokens for arm in arms for tick in sweep.of(arm)], 0.5) or 0.0
    waits = [(arm, found) for arm in arms if (found := _parts(sweep, arm, tokens)) is not None]
    rows = tuple(_row(sweep, arm, found, tokens, rates, load) for arm, found in waits)
    columns = (
        Column("Approach"),
        Column("Queue", "ms"),
        Column("Prefill", "ms"),
        Column("Decode", "s"),
        Column("Network", "ms"),
        Column("Useful answer", "s"),
        Column("The very first", "s, with loading"),
        Column("Energy", "J/token"),
        Column("Cost", "per answer"),
        Column("Cost", "per 1 000 tokens"),
    )
    caption = f"Medians, for an answer of {tokens:.0f} tokens"
    title = "Cost and time to a useful answer"
    if not waits:
        return Section("cost", title, "No answer was timed in all its parts.")
    totals = {arm: sum(found.values()) for arm, found in waits}
    reading = (
        "Load + queue + prefill + tokens ÷ rate + network. "
        "Loading, which only the very first answer waits for, is not drawn."
    )
    chart = parts("answer", "Time to a useful answer", [(name(arm), found) for arm, found in waits], _INKS, reading)
    blocks = Charts((chart,), _facts(tokens, rates, load)), Table(caption, columns, rows).trimmed()
    return Section("cost", title, _lead(totals, candidate), blocks)


def _parts(sweep: Sweep, arm: Arm, tokens: float) -> Mapping[str, float] | None:
    rate = sweep.figure(arm, "decode_tokens_per_second")
    found = {metric: sweep.figure(arm, metric) for metric in ("queue", "prefill", "network")}
    if rate is None or found["prefill"] is None:
        return None
    seconds = {metric: 0.0 if one is None else max(0.0, one.estimate) for metric, one in found.items()}
    return {"queue": seconds["queue"], "prefill": seconds["prefill"], "decode": tokens / rate.estimate} | {
        "network": seconds["network"]
    }


def _row(
    sweep: Sweep, arm: Arm, found: Mapping[str, float], tokens: float, rates: CostRates | None, load: float | None
) -> tuple[Cell, ...]:
    rate = sweep.figure(arm, "decode_tokens_per_second")
    assert rate is not None
    fixed = (found["queue"], found["prefill"], tokens, rate.estimate, found["network"])
    warm = time_to_useful_answer(0.0, *fixed)
    answer = None if rates is None else per_answer(rates, warm)
    return (
        named(arm),
        Cell(figure(found["queue"] * 1000)),
        Cell(figure(found["prefill"] * 1000)),
        Cell(figure(found["decode"])),
        Cell(figure(found["network"] * 1000)),
        Cell(figure(warm)),
        Cell(NOTHING if load is None else figure(time_to_useful_answer(load, *fixed))),
        Cell(figure(sweep.summaries[arm].joules_per_token)),
        Cell(NOTHING if answer is None or rates is None else f"{rates.currency}{figure(answer)}"),
        Cell(money(rates, rate)),
    )


def _facts(tokens: float, rates: CostRates | None, load: float | None) -> Facts:
    pairs = [("The answer", Cell(f"{tokens:.0f} tokens", "the median of those measured"))]
    if load is not None:
        pairs.append(("Loading the models", Cell(span(load), "once, before the very first answer")))
    if rates is None:
        said = "cost.per_hour, or cost.watts and cost.tariff, in the daemon’s settings would set one"
        pairs.append(("Price", Cell("not set", said)))
        return Facts(tuple(pairs))
    if rates.per_hour is not None:
        pairs.append(("The machine", Cell(f"{rates.currency}{figure(rates.per_hour)} an hour")))
    if rates.watts is not None and rates.tariff is not None:
        pairs.append(("Power", Cell(f"{figure(rates.watts)} W at {rates.currency}{figure(rates.tariff)} a kWh")))
    if rates.hourly is not None:
        said = "of a machine that does nothing else, one answer after the other"
        pairs.append(("Together", Cell(f"{rates.currency}{figure(rates.hourly)} an hour", said)))
    return Facts(tuple(pairs))


def _lead(totals: Mapping[Arm, float], candidate: Arm) -> str:
    if len(totals) < 2:
        return "Only one of the two ways was timed in all its parts."
    ours, plain = totals[candidate], totals[candidate.baseline]
    change = f"{share(abs(1 - ours / plain))} {'sooner' if ours < plain else 'later'}"
    return f"A useful answer is there after {span(ours)} with drafts and after {span(plain)} without: {change}."
