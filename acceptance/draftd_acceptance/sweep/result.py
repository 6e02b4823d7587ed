"""A sweep's result: each arm against autoregressive decoding, the knee, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftd.core import DRAFT_MODEL, DrafterName
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.options import LONGEST_BLOCK
from draftd_acceptance.statistics import Interval
from draftd_acceptance.summary import METRICS, ArmSummary, against, measure, select, summarise
from draftd_acceptance.sweep.plan import key_of, measured_keys, missing_requests
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Stage, Tick

_METRIC = "decode_tokens_per_second"


@dataclass(frozen=True, slots=True)
class Knee:
    """`block_length` is the shortest whose decode throughput, over that of the best, has an interval that reaches 1; 0
    is autoregressive decoding. `curve` has those ratios by block length, shortest first: paired by prompt, greedy, one
    request at a time. The best one's ratio is exactly 1."""

    block_length: int
    best: int
    curve: tuple[tuple[int, Interval], ...]
    sentence: str


def knee(ticks: Iterable[Tick], drafter: DrafterName = DRAFT_MODEL) -> Knee | None:
    """Returns the knee; None if fewer than two block lengths share measured prompts, or none is of this drafter."""
    ticks = select(ticks)
    there = {tick.place.arm for tick in ticks}
    arms = {0: AUTOREGRESSIVE.id} | {length: Arm(length, drafter).id for length in range(1, LONGEST_BLOCK + 1)}
    arms = {length: arm for length, arm in arms.items() if arm in there}
    if len(arms) < 2 or not max(arms):
        return None

    def over(base: int, lengths: Iterable[int]) -> dict[int, Interval]:
        ratios = {length: against(ticks, arms[length], arms[base], _METRIC) for length in lengths}
        return {length: interval for length, interval in ratios.items() if interval is not None}

    over_shortest = over(min(arms), arms)
    if len(over_shortest) < 2:
        return None
    best = max(over_shortest, key=lambda length: over_shortest[length].estimate)
    curve = over(best, over_shortest)
    at = next(length for length, ratios in curve.items() if ratios.high >= 1)
    return Knee(at, best, tuple(curve.items()), _sentence(at, best, curve))


def swept_knee(ticks: Sequence[Tick]) -> Knee | None:
    """Returns the knee of the drafter whose block lengths were measured; None as in `knee`."""
    arms = map(Arm.parse, dict.fromkeys(tick.place.arm for tick in ticks))
    return knee(ticks, swept_drafter(arm for arm in arms if arm is not None))


def swept_drafter(arms: Iterable[Arm]) -> DrafterName:
    """Returns the drafter whose block lengths were measured: the draft model, if it is one of them."""
    drafters = [arm.drafter for arm in _plain(arms) if arm.drafter is not None]
    return DRAFT_MODEL if DRAFT_MODEL in drafters else next(iter(drafters), DRAFT_MODEL)


def _plain(arms: Iterable[Arm]) -> list[Arm]:
    """Returns the arms with a fixed block length, greedy, one request at a time."""
    return [arm for arm in arms if not (arm.automatic or arm.temperature or arm.concurrency > 1)]


def _sentence(at: int, best: int, curve: dict[int, Interval]) -> str:
    if best == 0:
        block = max((length for length in curve if length), key=lambda length: curve[length].estimate)
        verdict = "does not pay" if curve[block].high < 1 else "is not shown to pay"
        reached = _throughput(curve[block], "autoregressive decoding")
        return f"Speculation {verdict} here: blocks of {block}, the fastest of all blocks, reach {reached}."
    if at == best:
        return f"The knee is at {at}: blocks of {at} decode fastest, and anything shorter is slower."
    reached = _throughput(curve[at], f"blocks of {best}, the fastest")
    if at == 0:
        return f"Speculation is not shown to pay here: autoregressive decoding reaches {reached}."
    return f"The knee is at {at}: blocks of {at} reach {reached}. Anything shorter is slower."


@dataclass(frozen=True, slots=True)
class FastestDrafter:
    """The drafter that decodes fastest in blocks of `block_length`, the length at which most drafters were measured.
    `gains`: decode throughput of each over autoregressive decoding, the fastest first. `lead`: that of the fastest over
    the next; None if they share no prompt."""

    drafter: DrafterName
    block_length: int
    gains: Mapping[DrafterName, Interval]
    lead: Interval | None

    @property
    def sentence(self) -> str:
        (first, gain), (second, _), *_ = self.gains.items()
        names = [name.replace("_", " ") for name in (first, second)]
        reached = _throughput(gain, "autoregressive decoding")
        said = f"The fastest drafter in blocks of {self.block_length} is the {names[0]}: it reaches {reached}"
        if self.lead is None:
            return f"{said}."
        chance = ", which could be chance" if self.lead.low <= 1 else ""
        return f"{said}, and {_throughput(self.lead, f'the {names[1]}')}{chance}."


def fastest_drafter(ticks: Sequence[Tick], gains: Mapping[Arm, Interval | None]) -> FastestDrafter | None:
    """Compares the drafters at one block length: greedy, one request at a time. None if fewer than two were measured.
    `gains`: of each arm over autoregressive decoding."""
    measured = [(arm, gain) for arm in _plain(gains) if (gain := gains[arm]) is not None]
    lengths = Counter(arm.block_length for arm, _ in measured)
    if not lengths or max(lengths.values()) < 2:
        return None
    length = max(lengths, key=lambda block: lengths[block])
    ranked = sorted((pair for pair in measured if pair[0].block_length == length), key=lambda pair: -pair[1].estimate)
    by_drafter = {arm.drafter: gain for arm, gain in ranked if arm.drafter is not None}
    (first, _), (second, _), *_ = ranked
    return FastestDrafter(next(iter(by_drafter)), length, by_drafter, against(ticks, first.id, second.id, _METRIC))


def _throughput(ratio: Interval, other: str) -> str:
    interval = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
    return f"{ratio.estimate:.2f} times the throughput of {other} ({interval})"


@dataclass(frozen=True, slots=True)
class Sweep:
    """`arms` were measured: greedy single-request arms by block length, then the others. `gains` are decode throughput
    over the autoregressive arm of the same temperature and concurrency."""

    ticks: Sequence[Tick]
    plan: Mapping[str, Any]
    arms: tuple[Arm, ...]
    summaries: Mapping[Arm, ArmSummary]
    gains: Mapping[Arm, Interval | None]

    @classmethod
    def read(cls, folder: RunFolder, metrics: Iterable[str] = METRICS) -> Sweep | None:
        """Reads a run's sweep; None if it has none. `metrics` are summarised for every arm."""
        ticks, samples = folder.ticks(Stage.SWEEP), folder.samples(Stage.SWEEP)
        arms_run = {Arm.parse(tick.place.arm) for tick in ticks if not tick.place.warm_up}
        arms = tuple(sorted((arm for arm in arms_run if arm is not None), key=_order))
        if not arms:
            return None
        gains = {arm: against(ticks, arm.id, arm.baseline.id, _METRIC) for arm in arms if arm.speculative}
        summaries = {arm: summarise(ticks, samples, arm.id, metrics) for arm in arms}
        return cls(ticks, folder.plan(Stage.SWEEP) or {}, arms, summaries, gains)

    @property
    def knee(self) -> Knee | None:
        return knee(self.ticks, swept_drafter(self.arms))

    @property
    def fastest_drafter(self) -> FastestDrafter | None:
        return fastest_drafter(self.ticks, self.gains)

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons, by arm or prompt."""
        return {
            **{one["arm"]: one["reason"] for one in self.plan.get("left_out", ())},
            **{one["prompt"]: one["reason"] for one in self.plan.get("left_out_prompts", ())},
        }

    @property
    def missing(self) -> int:
        """Requests that are still to be measured."""
        return missing_requests(self.plan, measured_keys(self.ticks))

    @property
    def errors(self) -> dict[str, int]:
        """The errors of the requests that are still missing, with counts."""
        done = measured_keys(self.ticks)
        failed = [tick for tick in self.ticks if tick.error and not tick.place.warm_up and key_of(tick) not in done]
        return dict(Counter(tick.error for tick in failed).most_common())

    @property
    def by_length(self) -> dict[int, Arm]:
        """The arms of the swept drafter by block length, 0 for autoregressive: greedy, one request at a time."""
        drafters = (None, swept_drafter(self.arms))
        return {arm.block_length: arm for arm in _plain(self.arms) if arm.drafter in drafters}

    def figure(self, arm: Arm, metric: str) -> Interval | None:
        """Returns one of summary.METRICS; None if the arm was not measured."""
        if arm not in self.summaries:
            return None
        figures = self.summaries[arm].figures
        return figures[metric] if metric in figures else measure(self.of(arm), metric)

    def curve(self, metric: str) -> dict[int, Interval]:
        """Returns the metric by block length."""
        figures = {k: self.figure(arm, metric) for k, arm in self.by_length.items()}
        return {k: interval for k, interval in figures.items() if interval is not None}

    def ratio(self, arm: Arm, metric: str) -> Interval | None:
        """Returns the ratio to the arm's autoregressive arm."""
        return against(self.ticks, arm.id, arm.baseline.id, metric)

    def of(self, arm: Arm) -> list[Tick]:
        return select(self.ticks, arm=arm.id)


def _order(arm: Arm) -> tuple[object, ...]:
    odd = arm.drafter not in (None, DRAFT_MODEL)
    return arm.concurrency, arm.temperature, odd, str(arm.drafter) if odd else "", arm.automatic, arm.block_length
