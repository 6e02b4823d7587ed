"""Computes ratios from raw measurements (ticks): one arm's tokens per second divided by another's, for each repetition.

A result is the median over repetitions. It needs the ticks alone, so that stored measurements can be evaluated again.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CLASSES = ("code", "tool_call", "chat", "prose")
BEFORE = "_before"  # suffix of the name of an arm that uses another working copy's daemon

_RESAMPLES = 5_000


@dataclass(frozen=True, slots=True)
class Tick:
    """One answer's measurement. `workload` is the prompt category (class). In the arm of concurrent streams, `group`
    answers share the same `seconds`."""

    repetition: int
    arm: str
    prompt: str
    workload: str
    tokens: int
    seconds: float
    group: int = 1


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of one arm's tokens per second to another's, paired by repetition: the median, the lowest and the highest
    of `pairs` repetitions. `rate` and `base_rate` are the median tokens per second of the two arms."""

    median: float
    lowest: float
    highest: float
    rate: float
    base_rate: float
    pairs: int


def ratio(ticks: Sequence[Tick], arm: str, base: str, wanted: Callable[[Tick], bool] = lambda t: True) -> Ratio:
    """Returns tokens per second of `arm` divided by those of `base`, paired by repetition, on the prompts of the ticks
    that `wanted` selects. Raises ValueError if no repetition has both arms."""
    pairs = []
    for repetition in sorted({t.repetition for t in ticks}):
        mine = [t for t in ticks if t.repetition == repetition and t.arm == arm and wanted(t)]
        prompts = {t.prompt for t in mine}
        theirs = [t for t in ticks if t.repetition == repetition and t.arm == base and t.prompt in prompts]
        if mine and theirs:
            pairs.append((rate(mine), rate(theirs)))
    if not pairs:
        raise ValueError(f"no repetition has measurements of both the arms {arm} and {base}")
    quotients = [a / b for a, b in pairs]
    return Ratio(
        statistics.median(quotients),
        min(quotients),
        max(quotients),
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        len(pairs),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """Ratio of an arm's tokens per second to those with the other working copy's daemon: the median over pairs of
    answers, and its 95 % interval."""

    median: float
    low: float
    high: float


def changes(ticks: Sequence[Tick]) -> dict[str, Change]:
    """Returns the change of each arm that was also measured with another working copy's daemon, and of `spec` by prompt
    category, with keys such as `spec_code`.

    A pair is the two daemons' answers to one prompt in one repetition. These answers follow each other within seconds,
    so that drifts of the machine's speed cancel. The bootstrap has a fixed seed and resamples whole repetitions: all
    pairs of a repetition share the same two processes, and two processes of one program can differ by some per cent.
    """
    names = {t.arm for t in ticks}
    arms = sorted(name for name in names if name + BEFORE in names)
    kinds = [(arm, "") for arm in arms] + [("spec", name) for name in CLASSES if "spec" in arms]
    answers = {(t.arm, t.repetition, t.prompt): t for t in ticks}
    out = {}
    for arm, workload in kinds:
        values: dict[int, list[float]] = {}
        for (name, repetition, prompt), mine in answers.items():
            before = answers.get((arm + BEFORE, repetition, prompt))
            if name == arm and workload in ("", mine.workload) and before is not None:
                ratio = (mine.tokens / mine.seconds) / (before.tokens / before.seconds)
                values.setdefault(repetition, []).append(ratio)
        drawn = np.random.default_rng(0).choice(sorted(values), (_RESAMPLES, len(values)))
        medians = [np.median(np.concatenate([values[repetition] for repetition in one])) for one in drawn]
        low, high = np.quantile(medians, (0.025, 0.975)).tolist()
        median = statistics.median(itertools.chain(*values.values()))
        out[f"{arm}_{workload}" if workload else arm] = Change(median, low, high)
    return out


def rate(ticks: Iterable[Tick]) -> float:
    """Returns tokens per second over these answers; concurrent answers share their time."""
    ticks = list(ticks)
    return sum(t.tokens for t in ticks) / sum(t.seconds / t.group for t in ticks)


# key, description, arm, arm that it is divided by, prompt category (class; empty: all)
CLAIMS: tuple[tuple[str, str, str, str, str], ...] = (
    ("ar_vs_mlx_lm", "autoregressive over gRPC, telemetry on, against mlx-lm's stream_generate", "ar", "mlx_ar", ""),
    ("spec_vs_mlx_lm_greedy", "speculative against mlx-lm's speculative, greedy", "spec", "mlx_spec", ""),
    ("spec_vs_mlx_lm_t08", "speculative against mlx-lm's speculative, temperature 0.8", "spec_t08", "mlx_spec_t08", ""),
    *((f"spec_vs_ar_{name}", f"speculative against autoregressive, {name}", "spec", "ar", name) for name in CLASSES),
    ("batch4_vs_1", "four autoregressive streams at once against one", "ar_x4", "ar", ""),
    ("telemetry_on_vs_off", "autoregressive, telemetry on against off", "ar", "ar_off", ""),
)


def claims(ticks: Sequence[Tick]) -> dict[str, Ratio]:
    """Returns the ratios of all CLAIMS whose arms were measured, by key."""
    out = {}
    measured = {t.arm for t in ticks}
    for key, _, arm, base, workload in CLAIMS:
        if not {arm, base} <= measured:
            continue
        out[key] = ratio(ticks, arm, base, lambda t, w=workload: not w or t.workload == w)  # type: ignore[misc]
    return out
