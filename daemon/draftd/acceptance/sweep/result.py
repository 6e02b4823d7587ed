"""What a sweep showed: each arm beside autoregressive decoding, where longer blocks stop paying, what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import LONGEST_BLOCK
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import ArmSummary, against, select, summarise
from draftd.acceptance.sweep.plan import key_of, measured
from draftd.acceptance.sweep.run import missing_requests
from draftd.acceptance.ticks import AUTOREGRESSIVE, Arm, Stage, Tick
from draftd.core import DRAFT_MODEL, DrafterName

_METRIC = "decode_tokens_per_second"


@dataclass(frozen=True, slots=True)
class Knee:
    """`block_length` is the shortest whose decode throughput, over that of the best, has an interval that reaches 1; 0
    where that is autoregressive decoding. `curve` is those ratios by block length, shortest first: paired by prompt,
    greedy, one request at a time. Of the best one the ratio is 1 and sure."""

    block_length: int
    best: int
    curve: tuple[tuple[int, Interval], ...]
    sentence: str


def knee(ticks: Iterable[Tick], drafter: DrafterName = DRAFT_MODEL) -> Knee | None:
    """None where fewer than two block lengths were measured on the same prompts, or none of this drafter."""
    ticks = select(ticks)
    there = {tick.place.arm for tick in ticks}
    arms = {0: AUTOREGRESSIVE.id} | {length: Arm(length, drafter).id for length in range(1, LONGEST_BLOCK + 1)}
    arms = {length: arm for length, arm in arms.items() if arm in there}
    if len(arms) < 2 or not max(arms):
        return None
    shortest = min(arms)
    over_shortest = {length: against(ticks, arm, arms[shortest], _METRIC) for length, arm in arms.items()}
    estimates = {length: found.estimate for length, found in over_shortest.items() if found is not None}
    if len(estimates) < 2:
        return None
    best = max(sorted(estimates), key=lambda length: estimates[length])
    curve = []
    for length in sorted(estimates):
        found = against(ticks, arms[length], arms[best], _METRIC)
        if found is not None:
            curve.append((length, found))
    at = next(length for length, found in curve if found.high >= 1)
    return Knee(at, best, tuple(curve), _sentence(at, best, dict(curve)))


def _sentence(at: int, best: int, curve: dict[int, Interval]) -> str:
    if best == 0:
        block = max((length for length in curve if length), key=lambda length: curve[length].estimate)
        reached = f"of blocks the fastest, those of {block}, reach {_share(curve[block])} of autoregressive decoding"
        if curve[block].high < 1:
            return f"Speculation does not pay here: {reached}."
        return f"Speculation is not shown to pay here: {reached}."
    if at == best:
        return f"The knee is at {at}: blocks of {at} decode fastest, and no shorter ones come up to them."
    reached = f"{_share(curve[at])} of the fastest, blocks of {best}"
    if at == 0:
        return f"Speculation is not shown to pay here: autoregressive decoding reaches {reached}."
    return f"The knee is at {at}: blocks of {at} reach {reached}; no shorter ones do."


def _share(ratio: Interval) -> str:
    return f"{ratio.estimate:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})"


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One arm. `speedup` is its decode throughput over that of the autoregressive arm of the same temperature and
    concurrency; of such an arm itself None."""

    arm: Arm
    summary: ArmSummary
    speedup: Interval | None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """`left_out`: arms and prompts, with the reason. `missing` requests are still to be measured; `errors` is what they
    failed with when they were asked, and how often."""

    rows: tuple[SweepRow, ...]
    knee: Knee | None
    left_out: dict[str, str]
    errors: dict[str, int]
    missing: int


def sweep_result(folder: RunFolder) -> SweepResult | None:
    """None where the run has no sweep."""
    plan = folder.plan(Stage.SWEEP)
    if plan is None:
        return None
    ticks, samples = folder.ticks(Stage.SWEEP), folder.samples(Stage.SWEEP)
    arms = [Arm.parse(arm) for arm in dict.fromkeys([*plan.get("arms", ()), *(tick.place.arm for tick in ticks)])]
    rows = []
    for arm in arms:
        over = None if arm == arm.baseline else against(ticks, arm.id, arm.baseline.id, "decode_tokens_per_second")
        rows.append(SweepRow(arm, summarise(ticks, samples, arm.id), over))
    done = measured(ticks)
    failed = [tick for tick in ticks if tick.error and not tick.place.warm_up and key_of(tick) not in done]
    return SweepResult(
        rows=tuple(rows),
        knee=knee(ticks, _drafter(arms)),
        left_out={
            **{one["arm"]: one["reason"] for one in plan.get("left_out", ())},
            **{one["prompt"]: one["reason"] for one in plan.get("left_out_prompts", ())},
        },
        errors=dict(Counter(tick.error for tick in failed).most_common()),
        missing=missing_requests(plan, done),
    )


def _drafter(arms: list[Arm]) -> DrafterName:
    """The first one, whose block lengths were swept."""
    return next((arm.drafter for arm in arms if arm.drafter is not None), DRAFT_MODEL)
