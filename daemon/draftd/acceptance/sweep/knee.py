"""Where a longer block stops paying: the shortest one that cannot be told from the best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftd.acceptance.arms import AUTOREGRESSIVE, Arm
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import against, select
from draftd.acceptance.sweep.options import LONGEST_BLOCK
from draftd.acceptance.ticks import Tick
from draftd.core import DrafterKind

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


def knee(ticks: Iterable[Tick], drafter: DrafterKind = DrafterKind.DRAFT_MODEL) -> Knee | None:
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
