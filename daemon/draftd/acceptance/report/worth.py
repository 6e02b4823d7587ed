"""The report's sections about worth: how long a block should be, what speculation gains here, what answers cost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from draftd.acceptance.cost import (
    CostRates,
    Costs,
    alpha_of,
    break_even,
    expected_tokens,
    measured_costs,
    per_answer,
    speedup,
)
from draftd.acceptance.report.charts import SERIES, Line, lines, parts
from draftd.acceptance.report.data import (
    NOTHING,
    Cell,
    Chart,
    Row,
    Section,
    Table,
    figure,
    measured,
    money,
    name,
    named,
    share,
    span,
)
from draftd.acceptance.statistics import Interval, quantile
from draftd.acceptance.sweep.result import Knee, Sweep
from draftd.acceptance.ticks import Arm

_INTERVAL = "median, with 95 % interval"
_STEP = "tokens drafted a step"


# block length


def lengths(sweep: Sweep, knee: Knee | None) -> Section:
    accepted = sweep.curve("acceptance")
    title = "Block length"
    if not accepted:
        return Section("lengths", title, "No block length was measured: this run has autoregressive decoding only.")
    charts = (_throughput(sweep, knee), _acceptance(sweep, accepted), _yielded(sweep), _positions(sweep))
    lead = knee.sentence if knee is not None else "Too few block lengths were measured to say which is enough."
    return Section("lengths", title, lead, charts=charts)


def inks(sweep: Sweep) -> dict[int, str]:
    """A block length has one colour and shape on the whole page; the fifth and later ones have none."""
    return dict(zip((arm.block_length for arm in sweep.lengths if arm.speculative), SERIES[1:], strict=False))


def _throughput(sweep: Sweep, knee: Knee | None) -> Chart:
    curve = sweep.curve("decode_tokens_per_second")
    plain, series = curve.get(0), [Line.of(_INTERVAL, "speculative", curve)]
    if knee is not None and (at := curve.get(knee.block_length)) is not None:
        label = f"the knee: {knee.block_length}"
        series.append(Line(label, "second", [knee.block_length], [at.estimate], marks="ring"))
    return lines(
        "throughput",
        "Decode throughput by block length",
        series,
        _fastest(sweep, curve),
        across=_STEP,
        up="tokens/s",
        ticks=sorted(curve),
        top=max(one.high for one in curve.values()) * 1.08,
        level=None if plain is None else (plain.estimate, "autoregressive", "autoregressive"),
        band=plain,
    )


def _fastest(sweep: Sweep, curve: Mapping[int, Interval]) -> str:
    best = max(curve, key=lambda k: curve[k].estimate)
    if 0 not in curve:
        return f"Blocks of {best} have the highest median; autoregressive decoding was not measured."
    if best == 0:
        return "No block length has a higher median than autoregressive decoding."
    gain = sweep.gains.get(_arm(sweep, best))
    if gain is None:
        return f"Blocks of {best} have the highest median."
    sure = "" if gain.low > 1 else ", which could be chance"
    return (
        f"Blocks of {best} have the highest median: prompt by prompt {gain.estimate:.2f} times as fast as "
        f"autoregressive decoding ({gain.low:.2f} to {gain.high:.2f}){sure}."
    )


def _acceptance(sweep: Sweep, accepted: Mapping[int, Interval]) -> Chart:
    first = sweep.curve("acceptance_at_position_0")
    shortest, longest = min(accepted), max(accepted)
    reading = (
        f"From blocks of {shortest} to blocks of {longest} the accepted share goes from "
        f"{share(accepted[shortest].estimate)} to {share(accepted[longest].estimate)}: "
        "what is drafted past a rejection is lost."
    )
    if shortest in first and longest in first and shortest != longest:
        moved = first[longest].low > first[shortest].high or first[longest].high < first[shortest].low
        steady = "moves, though it should not" if moved else "does not depend on what is drafted after it"
        reading += f" The first token of a block {steady}."
    series = [
        Line.of("accepted / drafted", "speculative", accepted, 100),
        Line.of("the first of a block", "third", first, 100),
    ]
    title, ticks = "Acceptance by block length", sorted(accepted)
    return lines("acceptance", title, series, reading, across=_STEP, up="% of drafted tokens", ticks=ticks, top=100)


def _yielded(sweep: Sweep) -> Chart:
    curve = sweep.curve("mean_accepted_length")
    best, at = max(curve, key=lambda k: curve[k].estimate), sorted(curve)
    all_accepted = Line("all accepted", "quiet", at, [k + 1 for k in at], marks="dashed")
    series = [Line.of(_INTERVAL, "speculative", curve), all_accepted]
    reading = (
        f"Blocks of {best} yield {figure(curve[best].estimate)} of at most {best + 1} tokens for each pass of the "
        "target: each one beyond the first is a pass saved."
    )
    return lines("yielded", "Tokens a draft yields", series, reading, across=_STEP, up="tokens", ticks=at)


def _positions(sweep: Sweep) -> Chart:
    shares = {arm.block_length: sweep.summaries[arm].acceptance_per_position for arm in sweep.lengths}
    colours, series = inks(sweep), []
    for k, ink in colours.items():
        known = [(at, value * 100) for at, value in enumerate(shares[k], 1) if value is not None]
        series.append(Line(f"blocks of {k}", ink, [at for at, _ in known], [value for _, value in known]))
    longest = max(colours)
    drawn = [value for value in shares[longest] if value is not None]
    reading = "A token counts as accepted where all before it were."
    if len(drawn) > 1:
        reading = (
            f"A token is accepted only where all before it are: of blocks of {longest} the first is accepted "
            f"in {share(drawn[0])} of cases, the last in {share(drawn[-1])}."
        )
    title, across = "Acceptance by position in the block", "position in the block"
    ticks = range(1, max(len(shares[k]) for k in colours) + 1)
    return lines("positions", title, series, reading, across=across, up="% of drafted tokens", ticks=ticks, top=100)


def _arm(sweep: Sweep, block_length: int) -> Arm:
    return next(arm for arm in sweep.lengths if arm.block_length == block_length)


# what speculation is worth


def calculator(sweep: Sweep, candidate: Arm | None) -> Section | None:
    """None where no draft model's steps were measured beside autoregressive ones."""
    costs = measured_costs(sweep.ticks)
    if costs is None:
        return None
    c = costs.draft_cost
    arms = {arm.block_length: arm for arm in sweep.lengths if arm.block_length in costs.verify_seconds}
    alphas = {k: _alpha(sweep, arm) for k, arm in arms.items()}
    rows: list[Row] = []
    for k, alpha in alphas.items():
        cost = costs.step_cost(k)
        even = break_even(k, cost)
        spare = None if alpha is None or even is None else alpha - even
        rows.append(
            {
                "Block": str(k),
                "Verifying | ms": figure(costs.verify_seconds[k] * 1000),
                "v(k) | steps": figure(costs.verify_cost(k)),
                "Accepted | α": share(alpha),
                "Tokens a step | expected": NOTHING if alpha is None else f"{expected_tokens(alpha, k):.2f}",
                "Speed-up | expected": NOTHING if alpha is None else f"{speedup(alpha, k, cost):.2f}×",
                "Speed-up | measured": measured(sweep.gains.get(arms[k]), unit="×"),
                "Pays from | α": "never" if even is None else share(even),
                "To spare": NOTHING if spare is None else f"{spare * 100:+.0f} points".replace("-", "−"),
            }
        )
    strong = [at for at, arm in enumerate(arms.values()) if arm == candidate]
    table = Table.of("Costs as measured in this run, and what follows from them", rows, strong=strong)
    low, high = (figure(one(costs.verify_seconds.values()) * 1000) for one in (min, max))
    verifying = f"{low} ms" if low == high else f"{low} to {high} ms"
    meaning = "how often a drafted token is accepted, where those before it were"
    facts: dict[str, Cell | str] = {
        "One autoregressive step": f"{figure(costs.autoregressive_seconds * 1000)} ms",
        "One drafted token": Cell(f"{figure(costs.draft_seconds * 1000)} ms", f"c = {figure(c)} steps"),
        "One verification": Cell(verifying, "longer blocks are more to verify: v(k) steps"),
        "Expected speed-up": Cell("(1 − αᵏ⁺¹) ÷ ((1 − α) · (k·c + v(k)))", "Leviathan et al. 2023, v(k) as measured"),
        "α": Cell("accepted ÷ (accepted + rollbacks)", meaning),
    }
    lead, chart = _pays(costs, alphas, candidate), _expected(sweep, costs, alphas)
    title = "What speculation is worth here"
    return Section("calculator", title, lead, charts=(chart,), facts=facts, tables=(table,))


def _alpha(sweep: Sweep, arm: Arm) -> float | None:
    counts = [tick.counts for tick in sweep.of(arm)]
    return alpha_of(sum(one.accepted for one in counts), sum(one.rollbacks for one in counts))


def _expected(sweep: Sweep, costs: Costs, alphas: Mapping[int, float | None]) -> Chart:
    """Leviathan's formula with this machine's costs, and where the run lies."""
    grid = np.linspace(0, 1, 81).tolist()
    series, told, apart = [], [], []
    for k, ink in inks(sweep).items():
        if k not in alphas:
            continue
        cost = costs.step_cost(k)
        label = f"blocks of {k}"
        series.append(Line(label, ink, [a * 100 for a in grid], [speedup(a, k, cost) for a in grid], marks="plain"))
        alpha, gain = alphas.get(k), sweep.gains.get(_arm(sweep, k))
        if alpha is None or gain is None:
            continue
        formula = speedup(alpha, k, cost)
        series.append(Line(f"_measured {k}", ink, [alpha * 100], [gain.estimate], marks="dot"))
        apart.append(abs(gain.estimate / formula - 1))
        told.append(
            f"{label}: accepted {share(alpha)}, measured {gain.estimate:.2f} times autoregressive, "
            f"expected {formula:.2f}"
        )
    reading = "Curves by the measured costs; this run has no point on them."
    if apart:
        reading = (
            f"Every point lies within {share(max(apart))} of its curve. What parts them is what the formula leaves "
            "out: acceptance that varies between prompts, and time outside the steps."
        )
    return lines(
        "expected",
        "Expected speed-up by acceptance, and this run",
        series,
        reading,
        across="% accepted, each token given those before it",
        up="× autoregressive",
        told="; ".join(told),
        xlim=(0, 100),
        level=(1.0, "no gain", "quiet"),
    )


def _pays(costs: Costs, alphas: Mapping[int, float | None], candidate: Arm | None) -> str:
    k = candidate.block_length if candidate is not None and candidate.block_length in alphas else max(alphas)
    even, alpha = break_even(k, costs.step_cost(k)), alphas[k]
    if even is None:
        return f"On this machine blocks of {k} never pay: a step costs more than it could ever yield."
    text = f"On this machine blocks of {k} pay from an acceptance of {share(even)} on"
    if alpha is None:
        return text + "."
    room = "so there is room for worse" if alpha > even else "so they do not"
    return f"{text}; this run’s was {share(alpha)}, {room}."


# cost

_PARTS = {"queue": "fourth", "prefill": "third", "decode": "speculative", "network": "second"}


def cost(sweep: Sweep, candidate: Arm, rates: CostRates | None, load: float | None) -> Section:
    """In waiting and in money. `load` is how many seconds the models took to load."""
    arms = [arm for arm in (candidate.baseline, candidate) if arm in sweep.arms]
    tokens = quantile([tick.output_tokens for arm in arms for tick in sweep.of(arm)], 0.5) or 0.0
    waits = {arm: found for arm in arms if (found := _parts(sweep, arm, tokens)) is not None}
    title = "Cost and time to a useful answer"
    if not waits:
        return Section("cost", title, "No answer was timed in all its parts.")
    rows: list[Row] = []
    for arm, found in waits.items():
        rate = sweep.figure(arm, "decode_tokens_per_second")
        warm = sum(found.values())
        answer = None if rates is None else per_answer(rates, warm)
        price = NOTHING if answer is None or rates is None else f"{rates.currency}{figure(answer)}"
        rows.append(
            {
                "Approach": named(arm),
                "Queue | ms": figure(found["queue"] * 1000),
                "Prefill | ms": figure(found["prefill"] * 1000),
                "Decode | s": figure(found["decode"]),
                "Network | ms": figure(found["network"] * 1000),
                "Useful answer | s": figure(warm),
                "The very first | s, with loading": NOTHING if load is None else figure(load + warm),
                "Energy | J/token": figure(sweep.summaries[arm].joules_per_token),
                "Cost | per answer": price,
                "Cost | per 1 000 tokens": money(rates, rate),
            }
        )
    reading = (
        "Load + queue + prefill + tokens ÷ rate + network. "
        "Loading, which only the very first answer waits for, is not drawn."
    )
    drawn = {name(arm): found for arm, found in waits.items()}
    chart = parts("answer", "Time to a useful answer", drawn, _PARTS, reading)
    lead = "Only one of the two ways was timed in all its parts."
    if len(waits) > 1:
        ours, plain = (sum(waits[arm].values()) for arm in (candidate, candidate.baseline))
        change = f"{share(abs(1 - ours / plain))} {'sooner' if ours < plain else 'later'}"
        lead = f"A useful answer is there after {span(ours)} with drafts and after {span(plain)} without: {change}."
    table = Table.of(f"Medians, for an answer of {tokens:.0f} tokens", rows)
    return Section("cost", title, lead, charts=(chart,), facts=_prices(tokens, rates, load), tables=(table,))


def _parts(sweep: Sweep, arm: Arm, tokens: float) -> Mapping[str, float] | None:
    rate = sweep.figure(arm, "decode_tokens_per_second")
    queue, prefill, network = (sweep.figure(arm, metric) for metric in ("queue", "prefill", "network"))
    if rate is None or prefill is None:
        return None

    def seconds(found: Interval | None) -> float:
        return 0.0 if found is None else max(0.0, found.estimate)

    decode = tokens / rate.estimate
    return {"queue": seconds(queue), "prefill": seconds(prefill), "decode": decode, "network": seconds(network)}


def _prices(tokens: float, rates: CostRates | None, load: float | None) -> Mapping[str, Cell | str]:
    facts: dict[str, Cell | str] = {"The answer": Cell(f"{tokens:.0f} tokens", "the median of those measured")}
    if load is not None:
        facts["Loading the models"] = Cell(span(load), "once, before the very first answer")
    if rates is None:
        said = "cost.per_hour, or cost.watts and cost.tariff, in the daemon’s settings would set one"
        return {**facts, "Price": Cell("not set", said)}
    if rates.per_hour is not None:
        facts["The machine"] = f"{rates.currency}{figure(rates.per_hour)} an hour"
    if rates.watts is not None and rates.tariff is not None:
        facts["Power"] = f"{figure(rates.watts)} W at {rates.currency}{figure(rates.tariff)} a kWh"
    if rates.hourly is not None:
        said = "of a machine that does nothing else, one answer after the other"
        facts["Together"] = Cell(f"{rates.currency}{figure(rates.hourly)} an hour", said)
    return facts
