"""What a sweep says, from its ticks: each arm beside autoregressive decoding, the knee, what was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from draftd.acceptance.arms import Arm
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import ArmSummary, against, summarise
from draftd.acceptance.sweep.knee import Knee, knee
from draftd.acceptance.sweep.run import missing_requests
from draftd.acceptance.sweep.schedule import key_of, measured
from draftd.acceptance.ticks import Stage
from draftd.core import DrafterKind


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


def _drafter(arms: list[Arm]) -> DrafterKind:
    """The first one, whose block lengths were swept."""
    return next((arm.drafter for arm in arms if arm.drafter is not None), DrafterKind.DRAFT_MODEL)
