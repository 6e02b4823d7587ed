"""The report's charts of a sweep and of a soak, and figures that only the report needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

from draftd.client.timing import inter_chunk, inter_token, quantile
from draftd_acceptance.cost import Costs, alpha_of, measured_costs, speedup
from draftd_acceptance.report.charts import SERIES, Chart, Series, lines, ranges
from draftd_acceptance.report.figures import figure, name, share
from draftd_acceptance.soak import SoakWindow, soak_parts
from draftd_acceptance.statistics import Interval
from draftd_acceptance.summary import against, measure, select, total_counts
from draftd_acceptance.sweep.result import Knee, Sweep
from draftd_acceptance.ticks import Arm, MachineSample, Tick

Curves = Mapping[Arm, Mapping[int, Interval]]

_INTERVAL = "median, with 95 % interval"
_STEP = "tokens drafted a step"
_COMPARED = ("decode_tokens_per_second", "time_to_first_token", "inter_token_p95", "acceptance", "end_to_end")
LEAST_ACCEPTED = 0.40
"""Below this acceptance drafts are mostly waste; the shipped spec has the same threshold."""
PARTS = {"queue": "fourth", "prefill": "third", "decode": "speculative", "network": "second"}


# block length


def length_charts(sweep: Sweep, knee: Knee | None) -> Iterator[Chart]:
    """Yields the charts over block length; none if no block length was measured."""
    accepted = sweep.curve("acceptance")
    if not accepted:
        return
    curve = sweep.curve("decode_tokens_per_second")
    plain, series = curve.get(0), [Series.of(_INTERVAL, "speculative", curve)]
    if knee is not None and (at := curve.get(knee.block_length)) is not None:
        label = f"the knee: {knee.block_length}"
        series.append(Series(label, "second", [knee.block_length], [at.estimate], marks="ring"))
    level = None if plain is None else (plain.estimate, "autoregressive", "autoregressive")
    step: dict[str, Any] = {"across": _STEP, "xticks": sorted(curve)}
    top = max(one.high for one in curve.values()) * 1.08
    yield lines("throughput", series, up="tokens/s", top=top, level=level, band=plain, **step)
    first = Series.of("the first of a block", "third", sweep.curve("acceptance_at_position_0"), 100)
    series, step["xticks"] = [Series.of("accepted / drafted", "speculative", accepted, 100), first], sorted(accepted)
    yield lines("acceptance", series, up="% of drafted tokens", top=100, **step)
    curve = sweep.curve("mean_accepted_length")
    lengths = step["xticks"] = sorted(curve)
    all_accepted = Series("all accepted", "quiet", lengths, [k + 1 for k in lengths], marks="dashed")
    yield lines("yielded", [Series.of(_INTERVAL, "speculative", curve), all_accepted], up="tokens", **step)
    shares = {k: sweep.summaries[sweep.by_length[k]].acceptance_per_position for k in _inks(sweep)}
    series = [Series.through(f"blocks of {k}", ink, enumerate(shares[k], 1), 100) for k, ink in _inks(sweep).items()]
    ticks = range(1, max(map(len, shares.values())) + 1)
    yield lines("positions", series, across="position in the block", up="% of drafted tokens", xticks=ticks, top=100)


def _inks(sweep: Sweep) -> dict[int, str]:
    """Returns each block length's colour, the same on the whole page; the sixth and later ones have none."""
    return dict(zip((k for k in sweep.by_length if k), SERIES[1:], strict=False))


# what speculation is worth


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """Figures by block length. `alphas`: the arm's acceptance α; None if no drafted token was tried. `points`: α again,
    the measured speed-up, and the speed-up that the formula expects for this α; only where a speed-up was measured."""

    costs: Costs
    arms: Mapping[int, Arm]
    alphas: Mapping[int, float | None]
    points: Mapping[int, tuple[float, float, float]]

    @property
    def apart(self) -> float:
        """The largest relative deviation of a measured speed-up from the formula."""
        return max(abs(gain / formula - 1) for _, gain, formula in self.points.values())


def worth(sweep: Sweep) -> LengthFigures | None:
    """Returns the figures; None unless steps of a draft model and autoregressive steps were measured."""
    costs = measured_costs(sweep.ticks)
    if costs is None:
        return None
    arms = {k: arm for k, arm in sweep.by_length.items() if k in costs.verify_seconds}
    alphas, points = {}, {}
    for k, arm in arms.items():
        counts, gain = total_counts(sweep.of(arm)), sweep.gains.get(arm)
        alpha = alphas[k] = alpha_of(counts.accepted, counts.rollbacks)
        if alpha is not None and gain is not None:
            points[k] = alpha, gain.estimate, speedup(alpha, k, costs.step_cost(k))
    return LengthFigures(costs, arms, alphas, points)


def worth_chart(sweep: Sweep, figures: LengthFigures) -> Chart:
    """Draws Leviathan's formula with this machine's costs, and the run's measured points."""
    grid = np.linspace(0, 1, 81).tolist()
    series, sentences = [], []
    for k, ink in _inks(sweep).items():
        if k not in figures.arms:
            continue
        cost, label = figures.costs.step_cost(k), f"blocks of {k}"
        series.append(Series(label, ink, [a * 100 for a in grid], [speedup(a, k, cost) for a in grid], marks="plain"))
        if k in figures.points:
            alpha, gain, formula = figures.points[k]
            series.append(Series(f"_measured {k}", ink, [alpha * 100], [gain], marks="dot"))
            sentences.append(f"{label}: {share(alpha)} accepted, {gain:.2f} measured, {formula:.2f} expected")
    return lines(
        "expected",
        series,
        across="% accepted of the tokens that the target reached",
        up="× autoregressive",
        text="; ".join(sentences),
        xlim=(0, 100),
        level=(1.0, "no gain", "quiet"),
    )


def waits(sweep: Sweep, candidate: Arm) -> tuple[float, Mapping[Arm, Mapping[str, float]]]:
    """Returns the tokens of a median answer, and the seconds of each part of it, for the candidate and its
    autoregressive arm as far as their parts were timed."""
    arms = [arm for arm in (candidate.baseline, candidate) if arm in sweep.arms]
    tokens = quantile([tick.output_tokens for arm in arms for tick in sweep.of(arm)], 0.5) or 0.0
    seconds_by_arm: dict[Arm, dict[str, float]] = {}
    for arm in arms:
        rate = sweep.figure(arm, "decode_tokens_per_second")
        timed = {part: sweep.figure(arm, part) for part in ("queue", "prefill", "network")}
        if rate is not None and timed["prefill"] is not None:
            seconds = {part: max(0.0, one.estimate) if one is not None else 0.0 for part, one in timed.items()}
            seconds_by_arm[arm] = {part: seconds.get(part, tokens / rate.estimate) for part in PARTS}
    return tokens, seconds_by_arm


# every approach


def same_texts(sweep: Sweep, arm: Arm) -> tuple[int, int]:
    """Returns how many of the arm's texts equal its autoregressive arm's, and how many can be compared."""
    said: dict[tuple[str, str], set[str]] = {}
    for tick in sweep.of(arm.baseline):
        said.setdefault(tick.place.key, set()).add(tick.digest)
    both = [tick for tick in sweep.of(arm) if tick.place.key in said]
    return sum(tick.digest in said[tick.place.key] for tick in both), len(both)


# latency


def latency_charts(sweep: Sweep, candidate: Arm) -> Iterator[Chart]:
    """Yields the distribution of the times between tokens, and between chunks: a median would hide the long ones."""
    shares = np.linspace(0, 1, 300)
    for what, gaps in (("tokens", inter_token), ("chunks", inter_chunk)):
        arms = (candidate, candidate.baseline)
        times = {arm: list(chain.from_iterable(gaps(tick) for tick in sweep.of(arm))) for arm in arms}
        if not all(times.values()):
            continue
        series, sentences = [], []
        for arm, seconds in times.items():
            ink, marks = ("speculative", "plain") if arm.speculative else ("autoregressive", "broken")
            at = (np.quantile(seconds, shares) * 1000).tolist()
            series.append(Series(name(arm), ink, at, (shares * 100).tolist(), marks=marks))
            within = (
                f"{share(q)} within {figure(float(np.quantile(seconds, q)) * 1000)} ms" for q in (0.5, 0.95, 0.99)
            )
            sentences.append(f"{name(arm)}: {', '.join(within)}")
        # The table has the rest.
        longest = max(float(np.quantile(seconds, 0.995)) for seconds in times.values()) * 1030
        axis: dict[str, Any] = {"yticks": (0, 25, 50, 75, 95), "xlim": (0, longest), "level": (95, "95 %", "quiet")}
        yield lines(what, series, across="ms, or less", up=f"% of {what}", text="; ".join(sentences), top=100, **axis)


def median_chunk(ticks: Sequence[Tick]) -> float | None:
    """Returns the median tokens of a chunk after the first."""
    return quantile([chunk.tokens for tick in ticks for chunk in tick.chunks[1:]], 0.5)


# kinds of prompt, and several at a time


def kinds(sweep: Sweep, candidate: Arm) -> tuple[Mapping[str, Interval], Mapping[str, Mapping[Arm, Interval]]]:
    """Returns, by kind of prompt, decode throughput over autoregressive, the highest first, and each arm's time to the
    first token."""
    gains: dict[str, Interval] = {}
    first: dict[str, dict[Arm, Interval]] = {}
    for group in sorted({tick.place.group for tick in sweep.ticks if not tick.place.warm_up}):
        ticks, title = select(sweep.ticks, group=group), group.replace("_", " ")
        gain = against(ticks, candidate.id, candidate.baseline.id, "decode_tokens_per_second")
        if gain is not None:
            gains[title] = gain
        for arm in (candidate, candidate.baseline):
            if (wait := measure(select(ticks, arm=arm.id), "time_to_first_token")) is not None:
                first.setdefault(title, {})[arm] = wait
    return dict(sorted(gains.items(), key=lambda one: -one[1].estimate)), first


def kind_charts(
    gains: Mapping[str, Interval], first: Mapping[str, Mapping[Arm, Interval]], candidate: Arm
) -> Iterator[Chart]:
    if not gains:
        return
    ours, plain = name(candidate), name(candidate.baseline)
    rows = {kind: {ours: gain} for kind, gain in gains.items()}
    yield ranges("gains", rows, {ours: "speculative"}, unit="× autoregressive", level=(1.0, "no gain"))
    rows = {kind: {name(arm): one.scale_by(1000) for arm, one in by.items()} for kind, by in first.items()}
    yield ranges("waits", rows, {ours: "speculative", plain: "autoregressive"}, unit="ms")


def together(sweep: Sweep) -> tuple[Curves, Curves]:
    """Returns, for arms that ran several requests at a time, the total tokens a second and the time to the first token,
    by number of requests."""
    total: dict[Arm, dict[int, Interval]] = {}
    first: dict[Arm, dict[int, Interval]] = {}
    greedy = [arm for arm in sweep.arms if not arm.temperature]
    several = {replace(arm, concurrency=1) for arm in greedy if arm.concurrency > 1}
    for arm in greedy:
        single, summary = replace(arm, concurrency=1), sweep.summaries[arm]
        if single in several and summary.total_tokens_per_second is not None:
            total.setdefault(single, {})[arm.concurrency] = summary.total_tokens_per_second
        if single in several and (wait := summary.figures["time_to_first_token"]) is not None:
            first.setdefault(single, {})[arm.concurrency] = wait
    return total, first


def together_chart(id_: str, curves: Curves, unit: str, scale: float = 1.0) -> Chart:
    series = [
        Series.of(name(arm), "speculative" if arm.speculative else "autoregressive", curve, scale)
        for arm, curve in curves.items()
    ]
    ticks = sorted({c for curve in curves.values() for c in curve})
    return lines(id_, series, across="requests at a time", up=unit, xticks=ticks)


# beside another run


def ratios(ours: Sweep, theirs: Sweep) -> Mapping[Arm, Mapping[str, Interval]]:
    """Returns each shared arm's ratios of ours to theirs, paired by prompt."""
    compared: dict[Arm, dict[str, Interval]] = {}
    for arm in ours.arms:
        if arm in theirs.arms:
            mine, other = ours.of(arm), theirs.of(arm)
            intervals = {metric: against(mine, arm.id, arm.id, metric, other) for metric in _COMPARED}
            if kept := {metric: interval for metric, interval in intervals.items() if interval is not None}:
                compared[arm] = kept
    return compared


def change_charts(compared: Mapping[Arm, Mapping[str, Interval]], other: str) -> Iterator[Chart]:
    for metric in _COMPARED[:2]:
        rows = {
            name(arm): {"this run": intervals[metric]} for arm, intervals in compared.items() if metric in intervals
        }
        if rows:
            unit, level = f"× {other}", (1.0, "no change")
            yield ranges(f"against-{metric}", rows, {"this run": "speculative"}, unit=unit, level=level)


# a soak, minute by minute


def soak_charts(
    ticks: Sequence[Tick], samples: Sequence[MachineSample], windows: Sequence[SoakWindow]
) -> Iterator[Chart]:
    """Yields the charts of what could be read. Time between two sessions is left out, as in the windows."""
    readings = [
        ((part.before + item.elapsed - part.began) / 60, item)
        for part in soak_parts(ticks, samples)
        for item in part.samples
        if part.began <= item.elapsed <= part.ended
    ]
    minutes = max(((item.start + item.seconds) / 60 for item in windows), default=None)

    def read(label: str, ink: str, what: Callable[[MachineSample], float | None], scale: float = 1.0) -> Series:
        return Series.through(label, ink, [(at, what(item)) for at, item in readings], scale, "plain")

    def window(label: str, ink: str, what: Callable[[SoakWindow], float | None], scale: float = 1.0) -> Series:
        middles = [((item.start + item.seconds / 2) / 60, what(item)) for item in windows]
        return Series.through(label, ink, middles, scale)

    def chart(id_: str, unit: str, *series: Series, **more: Any) -> Iterator[Chart]:
        if drawn := [line for line in series if len(line.ys)]:
            yield lines(id_, drawn, across="minutes of the soak", up=unit, xlim=(0, minutes), **more)

    used = read("the daemon’s process", "speculative", lambda item: item.resident, 1e-9)
    yield from chart("memory", "GB", used, read("MLX with its cache", "second", lambda item: item.mlx, 1e-9))
    free = read("free above the floor", "speculative", lambda item: item.headroom, 1e-9)
    yield from chart("headroom", "GB", free, level=(0.0, "the floor", "bad"))
    accepted = window("accepted / drafted", "speculative", lambda item: item.acceptance if item.enough else None, 100)
    alpha = window("α, accepted / reached", "third", lambda item: item.alpha if item.enough else None, 100)
    level = LEAST_ACCEPTED * 100, share(LEAST_ACCEPTED), "bad"
    yield from chart("soak-acceptance", "% of drafted tokens", accepted, alpha, level=level, top=100)
    rate = window("all streams together", "speculative", lambda item: item.tokens_per_second)
    yield from chart("soak-throughput", "tokens/s", rate)
    slow = window("p95", "speculative", lambda item: item.inter_token_p95, 1000)
    yield from chart("soak-latency", "ms", slow, window("p50", "third", lambda item: item.inter_token_p50, 1000))
    heat = read("hottest sensor", "second", lambda item: item.temperature)
    yield from chart("heat", "°C", heat, bottom=30.0, top=100.0)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Returns the medians of the first and of the last tenth."""
    tenth = max(1, len(values) // 10)
    return median(values[:tenth]), median(values[-tenth:])
