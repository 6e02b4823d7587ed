"""From raw ticks to ratios: for each repetition, one arm's tokens per second over another's; then the median.

Every figure is derived here from ticks alone, so that a stored run can be read again.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

CLASSES = ("code", "tool_call", "chat", "prose")
BEFORE = "_before"  # the end of an arm's name where it is another working copy's daemon

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Tick:
    """One answer. In the arm of concurrent streams, `group` answers share the same `seconds`."""

    repetition: int
    arm: str
    prompt: str
    workload: str
    tokens: int
    seconds: float
    group: int = 1


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median, lowest and highest of the paired ratios, and the median rates behind them in tokens per second."""

    median: float
    lowest: float
    highest: float
    rate: float
    base_rate: float
    pairs: int


def ratio(ticks: Sequence[Tick], arm: str, base: str, wanted: Callable[[Tick], bool] = lambda t: True) -> Ratio:
    """`arm` over `base`, paired by repetition, on the same prompts."""
    pairs = paired(ticks, arm, base, wanted)
    quotients = [a / b for a, b in pairs]
    return Ratio(
        statistics.median(quotients),
        min(quotients),
        max(quotients),
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        len(pairs),
    )


def paired(
    ticks: Sequence[Tick], arm: str, base: str, wanted: Callable[[Tick], bool] = lambda t: True
) -> list[tuple[float, float]]:
    """The rates of both in each repetition, on the same prompts. Raises ValueError where there are none."""
    pairs = []
    for repetition in sorted({t.repetition for t in ticks}):
        mine = [t for t in ticks if t.repetition == repetition and t.arm == arm and wanted(t)]
        prompts = {t.prompt for t in mine}
        theirs = [t for t in ticks if t.repetition == repetition and t.arm == base and t.prompt in prompts]
        if mine and theirs:
            pairs.append((rate(mine), rate(theirs)))
    if not pairs:
        raise ValueError(f"no ticks of {arm} paired with {base}")
    return pairs


@dataclass(frozen=True, slots=True)
class Change:
    """Median over repetitions of an arm's ratio to itself before, with the 95 % interval of that median."""

    median: float
    low: float
    high: float


def changes(ticks: Sequence[Tick]) -> dict[str, Change]:
    """Of each arm that was measured with another working copy's daemon too; and by workload class, where it drafts.

    The interval is a bootstrap (percentiles of resampled repetitions) with fixed dice.
    """
    names = {t.arm for t in ticks}
    arms = sorted(name for name in names if name + BEFORE in names)
    kinds = [(arm, "") for arm in arms] + [("spec", name) for name in CLASSES if "spec" in arms]
    out = {}
    for arm, workload in kinds:
        quotients = paired(ticks, arm, arm + BEFORE, lambda t, w=workload: not w or t.workload == w)  # type: ignore[misc]
        values = [mine / theirs for mine, theirs in quotients]
        dice = random.Random(0)
        medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(_RESAMPLES))
        low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
        out[f"{arm}_{workload}" if workload else arm] = Change(statistics.median(values), low, high)
    return out


def rate(ticks: Iterable[Tick]) -> float:
    """Tokens per second over these answers; concurrent ones share their time."""
    ticks = list(ticks)
    return sum(t.tokens for t in ticks) / sum(t.seconds / t.group for t in ticks)


# key, what it says, arm, base, workload class (empty: all)
CLAIMS: tuple[tuple[str, str, str, str, str], ...] = (
    ("ar_vs_mlx_lm", "autoregressive over gRPC, telemetry on, against stream_generate", "ar", "mlx_ar", ""),
    ("spec_vs_mlx_lm_greedy", "speculative against mlx-lm's, greedy", "spec", "mlx_spec", ""),
    ("spec_vs_mlx_lm_t08", "speculative against mlx-lm's, temperature 0.8", "spec_t08", "mlx_spec_t08", ""),
    *((f"spec_vs_ar_{name}", f"speculative against autoregressive, {name}", "spec", "ar", name) for name in CLASSES),
    ("batch4_vs_1", "four autoregressive streams at once against one", "ar_x4", "ar", ""),
    ("telemetry_on_vs_off", "autoregressive, telemetry on against off", "ar", "ar_off", ""),
)


def claims(ticks: Sequence[Tick]) -> dict[str, Ratio]:
    """All claims, by key."""
    out = {}
    for key, _, arm, base, workload in CLAIMS:
        out[key] = ratio(ticks, arm, base, lambda t, w=workload: not w or t.workload == w)  # type: ignore[misc]
    return out
