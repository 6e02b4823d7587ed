"""The report's sections about speed: every approach, its latency, for which prompts it pays, several at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from draftd.acceptance.cost import CostRates
from draftd.acceptance.report.charts import Line, lines, ranges
from draftd.acceptance.report.data import (
    NOTHING,
    Cell,
    Chart,
    Row,
    Section,
    Table,
    capitalised,
    count,
    figure,
    integer,
    measured,
    money,
    name,
    named,
    share,
)
from draftd.acceptance.statistics import Interval, quantile
from draftd.acceptance.summary import METRICS, against, measure, select
from draftd.acceptance.sweep.result import Sweep
from draftd.acceptance.ticks import Arm, inter_chunk, inter_token

# every approach


def approaches(sweep: Sweep, candidate: Arm | None, knee: int | None, rates: CostRates | None) -> Section:
    rows: list[Row] = []
    for arm in sweep.arms:
        figures, energy = sweep.summaries[arm].figures, figure(sweep.summaries[arm].joules_per_token)
        decode = figures["decode_tokens_per_second"]
        rows.append(
            {
                "Approach": named(arm, arm == candidate),
                "Decode | tokens/s": measured(decode),
                "Speed-up | ×": measured(sweep.gains.get(arm)) if arm.speculative else Cell("1", "the measure"),
                "First token | ms": measured(figures["time_to_first_token"], 1000),
                "Token p95 | ms": measured(figures["inter_token_p95"], 1000),
                "Accepted | %": measured(figures["acceptance"], 100),
                "Yield | tokens a draft": measured(figures["mean_accepted_length"]),
                "Same text | greedy": _same(sweep, arm),
                "Energy | J/token": NOTHING if rates else energy,
                "Cost | 1 000 tokens": Cell(
                    money(rates, decode), f"{energy} J/token" if rates and energy != NOTHING else ""
                ),
                "Notes": "; ".join(_remarks(sweep, arm, knee)),
            }
        )
    strong = [at for at, arm in enumerate(sweep.arms) if arm == candidate]
    caption = "Each approach on the same prompts: medians, and below them 95 % intervals"
    table = Table.of(caption, rows, words=("Notes",), strong=strong)
    resources = Table.of("Passes, memory and power of each approach", [_resources(sweep, arm) for arm in sweep.arms])
    lead = _speed(sweep, candidate)
    return Section("approaches", "Every approach", lead, tables=(table,), folded=(resources,))


def _resources(sweep: Sweep, arm: Arm) -> Row:
    one = sweep.summaries[arm]
    resident, mlx = (None if peak is None else peak / 1e9 for peak in (one.peak_resident, one.peak_mlx))
    return {
        "Approach": named(arm),
        "Target passes | a token": figure(one.target_forwards_per_token),
        "Draft passes | a token": figure(one.draft_forwards_per_token) if arm.speculative else "",
        "First of a block | % accepted": measured(one.figures["acceptance_at_position_0"], 100),
        "Peak memory | GB, the process": figure(resident),
        "Peak memory | GB, MLX in use": figure(mlx),
        "Power | W": figure(one.watts),
        "Answers": str(one.requests),
        "Tokens": integer(one.output_tokens),
    }


def _speed(sweep: Sweep, candidate: Arm | None) -> str:
    gain = None if candidate is None else sweep.gains.get(candidate)
    if candidate is None or gain is None:
        return "No approach that drafts was measured beside autoregressive decoding, so that no speed-up is known."
    ours, plain = (sweep.figure(arm, "decode_tokens_per_second") for arm in (candidate, candidate.baseline))
    assert ours is not None
    assert plain is not None
    verb = "decodes" if gain.low > 1 else "cannot be told from autoregressive decoding: it decodes"
    if gain.high < 1:
        verb = "is slower: it decodes"
    return (
        f"{name(candidate)} {verb} {figure(ours.estimate)} tokens/s, autoregressive decoding {figure(plain.estimate)}: "
        f"{gain.estimate:.2f} times as many, with 95 % confidence between {gain.low:.2f} and {gain.high:.2f}."
    )


def _same(sweep: Sweep, arm: Arm) -> Cell:
    """Greedy texts must be the autoregressive ones."""
    if not arm.speculative or arm.temperature:
        return Cell("", "sampled" if arm.speculative else "")
    said: dict[tuple[str, str], set[str]] = {}
    for tick in sweep.of(arm.baseline):
        said.setdefault(tick.place.key, set()).add(tick.digest)
    both = [tick for tick in sweep.of(arm) if tick.place.key in said]
    if not both:
        return Cell(NOTHING)
    same = sum(tick.digest in said[tick.place.key] for tick in both)
    return Cell(share(same / len(both)) if same < len(both) else "all", f"{same} of {len(both)}")


def _remarks(sweep: Sweep, arm: Arm, knee: int | None) -> Iterator[str]:
    summary, gain = sweep.summaries[arm], sweep.gains.get(arm)
    if arm in sweep.lengths and arm.speculative and arm.block_length == knee:
        yield "the knee"
    if gain is not None and gain.low <= 1:
        yield "slower than autoregressive" if gain.high < 1 else "no gain that could be told from none"
    slow, plain = summary.figures["inter_token_p95"], sweep.figure(arm.baseline, "inter_token_p95")
    if arm.speculative and slow is not None and plain is not None and slow.low > plain.high:
        yield "p95 above autoregressive"
    if arm.concurrency > 1 and summary.total_tokens_per_second is not None:
        yield f"{figure(summary.total_tokens_per_second.estimate)} tokens/s together"
    if lowered := Counter(tick.degraded for tick in sweep.of(arm) if tick.degraded):
        yield f"{count(lowered.total(), 'answer')} went on without drafts"
    if summary.errors:
        yield count(summary.errors, "error")
    yield count(summary.requests, "answer")


# latency

_TIMES = {
    "Time to first token": "time_to_first_token",
    "of which prefill, in the daemon": "prefill",
    "of which queue, in the daemon": "queue",
    "of which the network": "network",
    **{f"Between tokens, p{q}": f"inter_token_p{q}" for q in (50, 95, 99)},
    **{f"Between chunks, p{q}": f"inter_chunk_p{q}" for q in (50, 95, 99)},
    "Time per output token": "time_per_output_token",
    "Whole answer": "end_to_end",
}


def latency(sweep: Sweep, candidate: Arm) -> Section:
    """Of the candidate and its autoregressive arm, both of which there are."""
    charts = []
    for what, gaps in (("tokens", inter_token), ("chunks", inter_chunk)):
        arms = (candidate, candidate.baseline)
        times = {arm: list(chain.from_iterable(gaps(tick) for tick in sweep.of(arm))) for arm in arms}
        if all(times.values()):
            charts.append(_distribution(what, times, _percentile(sweep, candidate, what)))
    rows: list[Row] = []
    for label, metric in _TIMES.items():
        ours, theirs = (sweep.figure(arm, metric) for arm in (candidate, candidate.baseline))
        if ours is not None or theirs is not None:
            rows.append(
                {
                    "Time": label,
                    "Without drafts | ms": measured(theirs, 1000),
                    "With drafts | ms": measured(ours, 1000),
                    "Ratio | ×": measured(sweep.ratio(candidate, metric)),
                }
            )
    table = Table.of("Medians and percentiles over all answers, with 95 % intervals", rows)
    meanings = [{"Time": label, "Meaning": METRICS[metric].description} for label, metric in _TIMES.items()]
    said = Table.of_words("What each of these is", meanings)
    return Section("latency", "Latency", _sooner(sweep, candidate), charts=charts, tables=(table,), folded=(said,))


def _distribution(what: str, times: Mapping[Arm, Sequence[float]], reading: str) -> Chart:
    """Over all tokens: the whole distribution, since a median hides what a reader feels."""
    shares = np.linspace(0, 1, 300)
    series, told = [], []
    for arm, found in times.items():
        ink, marks = ("speculative", "plain") if arm.speculative else ("autoregressive", "broken")
        at = (np.quantile(found, shares) * 1000).tolist()
        series.append(Line(name(arm), ink, at, (shares * 100).tolist(), marks=marks))
        within = (f"{share(q)} within {figure(float(np.quantile(found, q)) * 1000)} ms" for q in (0.5, 0.95, 0.99))
        told.append(f"{name(arm)}: {', '.join(within)}")
    return lines(
        what,
        f"Time between {what}",
        series,
        reading,
        across="ms",
        up="% that take no longer",
        told="; ".join(told),
        yticks=(0, 25, 50, 75, 95),
        top=100,
        # What lies beyond is left to the table.
        xlim=(0, max(float(np.quantile(found, 0.995)) for found in times.values()) * 1030),
        level=(95, "95 %", "quiet"),
    )


def _percentile(sweep: Sweep, candidate: Arm, what: str) -> str:
    metric = f"inter_{what.removesuffix('s')}_p95"
    ours, theirs = (sweep.figure(arm, metric) for arm in (candidate, candidate.baseline))
    if ours is None or theirs is None:
        return ""
    text = (
        f"95 % of {what} come within {figure(ours.estimate * 1000)} ms with drafts, "
        f"within {figure(theirs.estimate * 1000)} ms without."
    )
    if what == "tokens":
        return text + " Tokens that come together share the time that they took."
    sizes = [chunk.tokens for tick in sweep.of(candidate) for chunk in tick.chunks[1:]]
    most = figure(quantile(sizes, 0.5), 2)
    return text + f" A chunk holds what one step yields, {most} tokens in the median: fewer, larger steps."


def _sooner(sweep: Sweep, candidate: Arm) -> str:
    said = []
    for label, metric in (
        ("first token", "time_to_first_token"),
        ("95th percentile between tokens", "inter_token_p95"),
    ):
        ratio = sweep.ratio(candidate, metric)
        if ratio is None:
            continue
        if ratio.low <= 1 <= ratio.high:
            said.append(f"the {label} cannot be told from the autoregressive one")
        else:
            how = "later" if ratio.estimate > 1 else "sooner"
            said.append(f"the {label} comes {share(abs(ratio.estimate - 1), 1)} {how}")
    return f"{capitalised(', and '.join(said))}." if said else "Neither side has times to compare."


# kinds of prompt, and several at a time


def prompts(sweep: Sweep, candidate: Arm) -> Section:
    ours, plain = name(candidate), name(candidate.baseline)
    gains: dict[str, Interval] = {}
    waits: dict[str, dict[str, Interval]] = {}
    for group in sorted({tick.place.group for tick in sweep.ticks if not tick.place.warm_up}):
        ticks, title = select(sweep.ticks, group=group), group.replace("_", " ")
        gain = against(ticks, candidate.id, candidate.baseline.id, "decode_tokens_per_second")
        if gain is not None:
            gains[title] = gain
        for label, arm in ((ours, candidate), (plain, candidate.baseline)):
            if (first := measure(select(ticks, arm=arm.id), "time_to_first_token")) is not None:
                waits.setdefault(title, {})[label] = first.scaled(1000)
    if not gains:
        return Section("prompts", "Kinds of prompt", "No prompt was answered both ways.")
    gains = dict(sorted(gains.items(), key=lambda one: -one[1].estimate))
    (best, most), *_, (worst, least) = [*gains.items()] * 2
    lead = f"Only {best} prompts were measured: {most.estimate:.2f} times."
    if len(gains) > 1:
        lead = (
            f"Beside autoregressive decoding it does best on {best} ({most.estimate:.2f} times as fast) "
            f"and worst on {worst} ({least.estimate:.2f} times)."
        )
    losing = [title for title, gain in gains.items() if gain.high < 1]
    unsure = [title for title, gain in gains.items() if gain.low <= 1 <= gain.high]
    reading = "Every interval lies above 1: it pays for each kind of prompt."
    if losing or unsure:
        said = [f"{_listed(losing)} {'is' if len(losing) == 1 else 'are'} slower with drafts"] if losing else []
        said += [f"of {_listed(unsure)} it cannot be said"] if unsure else []
        reading = f"It does not pay everywhere: {'; '.join(said)}."
    inks, level = {ours: "speculative", plain: "autoregressive"}, (1.0, "no gain")
    rows, title = {kind: {ours: gain} for kind, gain in gains.items()}, "Decode throughput by kind of prompt"
    throughput = ranges("gains", title, rows, {ours: inks[ours]}, reading, unit="× autoregressive", level=level)
    reading = "Medians with 95 % intervals. Longer prompts take longer to read, with drafts or without."
    wait = ranges("waits", "Time to first token by kind of prompt", waits, inks, reading, unit="ms")
    return Section("prompts", "Kinds of prompt", lead, charts=(throughput, wait))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def concurrency(sweep: Sweep) -> Section | None:
    """None where no more than one ran at a time."""
    total: dict[Arm, dict[int, Interval]] = {}
    first: dict[Arm, dict[int, Interval]] = {}
    greedy = [arm for arm in sweep.arms if not arm.temperature]
    several = {replace(arm, concurrency=1) for arm in greedy if arm.concurrency > 1}
    for arm in greedy:
        one, summary = replace(arm, concurrency=1), sweep.summaries[arm]
        if one in several and summary.total_tokens_per_second is not None:
            total.setdefault(one, {})[arm.concurrency] = summary.total_tokens_per_second
        if one in several and (wait := summary.figures["time_to_first_token"]) is not None:
            first.setdefault(one, {})[arm.concurrency] = wait
    if not total:
        return None
    most = max(c for curve in total.values() for c in curve)
    said = [
        f"{curve[most].estimate / curve[1].estimate:.2f} times ({name(arm)[:1].lower()}{name(arm)[1:]})"
        for arm, curve in total.items()
        if most in curve and 1 in curve
    ]
    lead = f"{most} requests at a time get, all together, {' and '.join(said)} the tokens a second that one alone gets."
    reading = "Medians with 95 % intervals: what each one waits, while others decode."
    charts = (
        _together("together", "Throughput of all requests together", total, _gained(total, most), "tokens/s", 1),
        _together("together-first", "Time to first token", first, reading, "ms", 1000),
    )
    return Section("concurrency", "Several at a time", lead, charts=charts)


def _together(
    id_: str, title: str, curves: Mapping[Arm, Mapping[int, Interval]], reading: str, unit: str, scale: float
) -> Chart:
    series = [
        Line.of(name(arm), "speculative" if arm.speculative else "autoregressive", curve, scale)
        for arm, curve in curves.items()
    ]
    ticks = sorted({c for curve in curves.values() for c in curve})
    return lines(id_, title, series, reading, across="requests at a time", up=unit, ticks=ticks)


def _gained(total: Mapping[Arm, Mapping[int, Interval]], most: int) -> str:
    plain, drafted = (
        next((curve[most] for arm, curve in total.items() if arm.speculative is way and most in curve), None)
        for way in (False, True)
    )
    if plain is None or drafted is None:
        return "Tokens of all answers over the time from the first request to the last end."
    gain = drafted.estimate / plain.estimate
    better = "still yields" if gain > 1 else "yields only"
    return (
        f"At {most} at a time drafting {better} {gain:.2f} times what autoregressive decoding does. Tokens of all "
        "answers, over the time from the first request to the last end: the wait for the first token is in it."
    )
