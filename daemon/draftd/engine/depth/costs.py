"""The cost of a decode step, by depth, drafter and batch size: measured on this machine and never assumed.

A calibration gives the first values, and each step after that corrects them. The machine gets slower and faster while
it serves, and what decides is only what a speculative step costs *relative to* a plain one. So

    log(seconds) = log(calibrated cost for this depth and context) + machine speed + drafter's offset + depth's offset

The machine speed is shared by all steps and changes fast; the second term belongs to a drafter at a batch size, the
third to one depth of it. Each is tracked by a scalar Kalman filter (Kalman 1960, a random walk observed through their
sum): a surprise is divided among the three in proportion to their variances. What was observed lately is known well,
so the machine speed takes the blame; what was not is known badly, so that does. A depth that was not used for a while
thus looks neither cheap nor expensive because the machine has changed.

A step is taken to be at most a quarter off, so that a stall is no new cost. Where several in a row are off by more to
one side, something has changed. Plain steps decide what: where they are off as well it is the machine speed, else what
the drafter costs. Until a plain step was seen nothing is learnt from the others (`unexplained`)."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from draftd.core import BUILT_IN_DRAFTERS, PROMPT_LOOKUP, DrafterName

DEEPEST = 17  # drafted tokens in a step that ever have a cost: one more than a plan may allow

_CLAMP = math.log(1.25)  # a step is taken to be at most this far off: a stall is not a new cost
_NOISE = 0.1**2  # variance of the logarithm of a step's seconds
_SPEED_DRIFT = 0.1**2  # variance that a second of decoding adds to the machine speed
_FAR_OFF = math.log(1.25)
_IN_A_ROW = 4  # steps that are far off to one side: a change, and no stall
_LARGEST_CHANGE = math.log(8)  # that one step is believed to show
_DRIFT = 0.03**2 / 60  # variance that a second adds to the offsets
_UNKNOWN, _UNMEASURED, _MEASURED = 2.0**2, 0.3**2, 0.12**2  # variances to begin with
_DEPTH, _INTERPOLATED = 0.05**2, 0.08**2  # of a depth's own: it was measured at this batch size, or was not
_GUESSED = 0.2**2  # from this variance on a cost is a guess, which nothing can be far from
_REGIME = math.log(1.25)  # a machine speed that moved by this much may have moved depths unlike each other
_REGIME_VARIANCE = 0.05**2
_GUESS_SECONDS, _GUESS_STEP = 0.01, 0.2  # of a plain step, and what each drafted token adds, where nothing is known


@dataclass(frozen=True, slots=True)
class CalibratedCosts:
    """What a calibration found: seconds of a step whose sequences each hold `context` tokens.

    `plain` by batch size; `drafted` by drafter, then (batch size, depth); `growth` by depth, 0 the plain one: seconds
    that one more token of context adds for each sequence; `prefill`: seconds that a drafter needs for a prompt's token.
    """

    plain: Mapping[int, float] = field(default_factory=dict)
    drafted: Mapping[DrafterName, Mapping[tuple[int, int], float]] = field(default_factory=dict)
    growth: Mapping[int, float] = field(default_factory=dict)
    context: int = 0
    prefill: Mapping[DrafterName, float] = field(default_factory=dict)

    def merge(self, measured: CalibratedCosts) -> CalibratedCosts:
        """What was `measured` now, in place of what these have of the same batch sizes. The other sizes are brought to
        the machine speed of now, which plain steps of the smallest size that both have tell."""
        common = min(self.plain.keys() & measured.plain.keys(), default=None)
        factor = 1.0 if common is None else measured.plain[common] / self.plain[common]
        drafted = {kind: dict(costs) for kind, costs in measured.drafted.items()}
        for kind, costs in self.drafted.items():
            sizes = {size for size, _ in drafted.get(kind, ())}
            kept = {key: factor * seconds for key, seconds in costs.items() if key[0] not in sizes}
            drafted[kind] = kept | drafted.get(kind, {})
        return CalibratedCosts(
            {size: factor * seconds for size, seconds in self.plain.items()} | dict(measured.plain),
            drafted,
            measured.growth or {depth: factor * seconds for depth, seconds in self.growth.items()},
            measured.context or self.context,
            {kind: factor * seconds for kind, seconds in self.prefill.items()} | dict(measured.prefill),
        )


@dataclass(slots=True)
class _Offset:
    """The error of a logarithm, its variance, and when it was last observed."""

    value: float = 0.0
    variance: float = _MEASURED
    seen: float = 0.0


class _Curve:
    """Costs by depth of one drafter at one batch size, or of plain steps (one depth only)."""

    __slots__ = ("base", "began", "depths", "factors", "far_off", "offset", "slope", "steps")

    def __init__(self, base: list[float], slope: list[float], offset: _Offset, variances: Sequence[float] = ()) -> None:
        """`variances`: of each depth's own offset to begin with."""
        self.base, self.slope, self.offset = base, slope, offset
        self.depths = [_Offset(variance=variance) for variance in variances or [_DEPTH] * len(base)]
        self.factors = [1.0] * len(base)
        self.steps = 0  # that were learnt from
        self.far_off = self.began = 0  # steps in a row that were far off, negative: too fast; and when that began
        self.refresh()

    def refresh(self) -> None:
        self.factors = [math.exp(self.offset.value + own.value) for own in self.depths]

    def count(self, surprise: float, step: int) -> bool:
        """Counts a step that is far off. Returns whether so many in a row are that something has changed."""
        side = (surprise > _FAR_OFF) - (surprise < -_FAR_OFF)
        if not side or self.far_off * side <= 0:
            self.far_off, self.began = 0, step
        self.far_off += side
        return abs(self.far_off) >= _IN_A_ROW


Offsets = Mapping[tuple[DrafterName | None, int, bool, int], float]
"""By drafter, batch size, whether sampled, and depth (0: all depths of the drafter): how far the logarithm of a step's
seconds is from what prices and machine speed say."""


class CostSource(enum.StrEnum):
    """The origin of a price."""

    MEASURED = "measured"  # by this start's calibration
    LEARNT = "learnt"  # steps of requests have corrected it
    GUESSED = "guessed"  # an earlier start measured it, or it lies between what was measured


class Batch(NamedTuple):
    """The sequences of a step: how many, their mean tokens of context, and whether any of them is sampled."""

    size: int
    context: int = 0
    sampled: bool = False


class StepCosts:
    """Seconds of a step. Its kind is a drafter (None: plain), a batch, and a depth. Engine thread only."""

    def __init__(self, prices: CalibratedCosts | None = None) -> None:
        self.prices = prices or CalibratedCosts()
        self.measured = bool(self.prices.plain)  # whether plain steps are more than a guess
        self._speed = _Offset(variance=_UNMEASURED if self.measured else _UNKNOWN)
        self._regime = 0.0  # the machine speed at the last regime change
        self._step = self._plain_step = 0  # how many were learnt from, and which of them was plain last
        self.calibrated: frozenset[int] = frozenset()  # batch sizes that were measured since the start
        self.unexplained = False  # steps that draft are far off, and no plain one has said yet what that is
        self._curves: dict[tuple[DrafterName | None, int, bool], _Curve] = {}
        self._seconds = 0.0  # of all steps that were learnt from
        self.regime_changes = 0  # each time, what was learnt about depths may no longer hold

    def plain(self, batch: Batch) -> float:
        """Seconds of a pipelined step that drafts nothing; a guess where nothing was measured."""
        return self._cost(self._curve(None, batch.size, batch.sampled), 0, batch)

    def by_depth(
        self, drafter: DrafterName, batch: Batch, deepest: int, beside: DrafterName | None = None
    ) -> list[float]:
        """Seconds of a step by depth, the deepest sequence's: 0, a plain one, to `deepest`. None costs less than that;
        but a deeper one may cost less than another: a product of 16 rows can take half as long as one of 12. `beside`:
        in steps of this drafter, of which more is known of late: as far off as its steps are."""
        curve, plain = self._curve(drafter, batch.size, batch.sampled), self.plain(batch)
        other = curve if beside is None else self._curve(beside, batch.size, batch.sampled)
        like = math.exp(other.offset.value - curve.offset.value)
        costs = (like * self._cost(curve, at, batch) for at in range(min(deepest, len(curve.base))))
        return [plain, *(max(plain, cost) for cost in costs)]

    def uncertainty(self, drafter: DrafterName, batch: Batch, depth: int) -> float:
        """Standard deviation of the logarithm of what a speculative step costs relative to a plain one."""
        curve, plain = (self._curve(kind, batch.size, batch.sampled) for kind in (drafter, None))
        since = (self._seconds - curve.offset.seen) + (self._seconds - plain.offset.seen)
        variance = curve.offset.variance + curve.depths[depth - 1].variance + plain.offset.variance
        return math.sqrt(variance + _DRIFT * since)

    def depth_uncertainty(self, drafter: DrafterName, batch: Batch, depth: int) -> float:
        """The same, relative to other depths of the same drafter."""
        return math.sqrt(self._curve(drafter, batch.size, batch.sampled).depths[depth - 1].variance)

    def learn(self, drafter: DrafterName | None, batch: Batch, depth: int, seconds: float, replayed: int = 0) -> None:
        """A step took `seconds`, in which `replayed` positions were computed besides the last token and its draft. A
        plain one (drafter None, depth 0) tells only where it was pipelined."""
        curve = self._curve(drafter, batch.size, batch.sampled)
        cost = self._expected_seconds(drafter, batch, depth, replayed)
        surprise = math.log(max(seconds, 1e-9) / cost)
        # Beside replayed positions a step tells what verifying so many costs, and not what its depth does.
        own_curve = self._curve(PROMPT_LOOKUP, batch.size, batch.sampled) if replayed else curve
        speed, offset, own = self._speed, curve.offset, own_curve.depths[_index(depth + replayed)]
        self._step += 1
        curve.steps += 1
        if speed.variance < _UNKNOWN and offset.variance < _GUESSED:
            changed = curve.count(surprise, self._step)
            if drafter is None:
                believed = changed or self.unexplained
            elif changed and self._plain_step < curve.began:
                self.unexplained = True
                return
            else:
                believed = changed
            if believed:
                part = speed if drafter is None else offset
                part.variance = max(part.variance, _UNMEASURED)
                curve.far_off = 0
            most = _LARGEST_CHANGE if believed else _CLAMP
            surprise = min(max(surprise, -most), most)
        if drafter is None:
            self._plain_step, self.unexplained = self._step, False
        passed = min(cost * math.exp(surprise), 1.0)  # not `seconds`: a stall makes nothing less certain
        self._seconds += passed
        for part in (offset, own):
            part.variance += _DRIFT * (self._seconds - part.seen)
            part.seen = self._seconds
        speed.variance = min(speed.variance + _SPEED_DRIFT * passed, _UNKNOWN)
        total = speed.variance + offset.variance + own.variance + _NOISE
        for part in (speed, offset, own):  # the Kalman gain is each part's share of the variance
            gain = part.variance / total
            part.value += gain * surprise
            part.variance *= 1 - gain
        for affected in {curve, own_curve}:
            affected.refresh()
        self.measured = self.measured or drafter is None
        if abs(speed.value - self._regime) > _REGIME:
            self._regime = speed.value
            self.regime_changes += 1
            for other in self._curves.values():
                variance = other.offset.variance
                other.offset.variance = max(variance, min(variance + _REGIME_VARIANCE, _MEASURED))

    def forget(self, drafter: DrafterName) -> None:
        """It has other weights now: what it costs is known less well."""
        for (kind, _, _), curve in self._curves.items():
            if kind == drafter:
                curve.offset.variance += _UNMEASURED

    def break_even(self, batch: Batch, seconds: float) -> float | None:
        """Accepted tokens that make a speculative step of `seconds` just as fast as autoregressive decoding: at least
        0. None until a plain step was measured.

        A step emits one token more than it accepts, a plain one a single token: so seconds / T - 1, with T the plain
        step's seconds at this batch size (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, both costs measured).
        """
        return max(0.0, seconds / self.plain(batch) - 1.0) if self.measured else None

    def without_stall(self, drafter: DrafterName, batch: Batch, depth: int, seconds: float, replayed: int = 0) -> float:
        """`seconds` of a speculative step, as far off its cost as `learn` takes it to be at most. What stalls the
        machine now and then is in no cost, so it must not be in what is compared with one."""
        cost = self._expected_seconds(drafter, batch, depth, replayed)
        return min(max(seconds, cost * math.exp(-_CLAMP)), cost * math.exp(_CLAMP))

    # what calibrations and earlier starts measured

    @property
    def speed(self) -> float:
        """Logarithm of what steps take now over what `prices` say: how the machine has changed since these were
        measured."""
        return self._speed.value

    def calibrate(self, measured: CalibratedCosts) -> None:
        """Takes the prices that a calibration has `measured` just now, whole batch sizes. What steps have told of these
        sizes is forgotten."""
        self.prices, self.measured = self.prices.merge(measured), True
        self._speed, self._regime, self.unexplained = _Offset(variance=_UNMEASURED), 0.0, False
        self.calibrated |= measured.plain.keys()
        kept = {key: curve for key, curve in self._curves.items() if key[1] not in measured.plain}
        self._curves = {}
        for key, before in kept.items():
            curve = self._curve(*key)
            curve.offset, curve.depths, curve.steps = before.offset, before.depths, before.steps
            curve.refresh()

    def source(self, drafter: DrafterName, batch: int) -> CostSource:
        """The origin of the prices of this drafter's greedy steps."""
        curve = self._curves.get((drafter, batch, False))
        if curve is not None and curve.steps >= _IN_A_ROW:
            return CostSource.LEARNT
        sizes = {size for size, _ in self.prices.drafted.get(drafter, ())}
        return CostSource.MEASURED if batch in self.calibrated & sizes else CostSource.GUESSED

    def offsets(self) -> Offsets:
        offsets = {}
        for (kind, batch, sampled), curve in self._curves.items():
            offsets[kind, batch, sampled, 0] = curve.offset.value
            if kind is not None:
                offsets |= {
                    (kind, batch, sampled, depth): own.value for depth, own in enumerate(curve.depths, 1) if own.seen
                }
        return offsets

    def restore(self, offsets: Offsets, speed: float, *, measured: bool) -> None:
        """Has each price say what it did when `offsets`, `speed` and `measured` were read."""
        self._speed.value, self.measured = speed, self.measured or measured
        for (kind, batch, sampled, depth), value in sorted(offsets.items(), key=lambda item: (item[0][3], item[0][2])):
            curve = self._curve(kind, batch, sampled)
            (curve.depths[depth - 1] if depth else curve.offset).value = value
            curve.refresh()

    # first values

    def _cost(self, curve: _Curve, at: int, batch: Batch) -> float:
        extra = batch.size * (batch.context - self.prices.context)
        return (curve.base[at] + curve.slope[at] * extra) * curve.factors[at] * math.exp(self._speed.value)

    def _expected_seconds(self, drafter: DrafterName | None, batch: Batch, depth: int, replayed: int) -> float:
        """Seconds of a step; `replayed` positions add to them what verifying as many tokens more would."""
        own = self._curve(drafter, batch.size, batch.sampled)
        cost = self._cost(own, _index(depth), batch)
        if not replayed:
            return cost
        curve = self._curve(PROMPT_LOOKUP, batch.size, batch.sampled)
        wide, narrow = (self._cost(curve, _index(drafts), batch) for drafts in (depth + replayed, depth))
        like = math.exp(own.offset.value - curve.offset.value)  # what makes one curve as far off as the other
        return max(cost + (wide - narrow) * like, self.plain(batch))

    def _curve(self, drafter: DrafterName | None, batch: int, sampled: bool) -> _Curve:
        key = (drafter, batch, sampled)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = self._calibrated_curve(drafter, batch)
            if sampled:  # what is known of greedy ones, less surely
                greedy = self._curve(drafter, batch, False)
                curve.offset.value = greedy.offset.value
                curve.offset.variance += _MEASURED
                for mine, theirs in zip(curve.depths, greedy.depths, strict=True):
                    mine.value = theirs.value
                curve.refresh()
        return curve

    def _calibrated_curve(self, drafter: DrafterName | None, batch: int) -> _Curve:
        prices, growth = self.prices, [0.0] * (DEEPEST + 1)
        plain = interpolate(prices.plain, batch) if prices.plain else _GUESS_SECONDS
        if prices.growth:
            growth = [max(0.0, interpolate(prices.growth, depth)) for depth in range(DEEPEST + 1)]
        if drafter is None:
            return _Curve([plain], growth[:1], _Offset(seen=self._seconds))
        # another's costs are better than none
        nearest = next((kind for kind in (drafter, *BUILT_IN_DRAFTERS) if prices.drafted.get(kind)), None)
        if nearest is None:
            base = [plain * (1 + _GUESS_STEP * depth) for depth in range(1, DEEPEST + 1)]
            measured = set(range(1, DEEPEST + 1))  # what is guessed is unsure for all depths together
        else:
            costs, points, verified = prices.drafted[nearest], {0: plain}, _by_positions(prices)
            for depth in sorted({depth for _, depth in costs}):
                sizes = {size: seconds for (size, d), seconds in costs.items() if d == depth}
                points[depth] = interpolate(sizes, batch)
                if (largest := max(sizes)) < batch:  # more to verify, in one sequence or in several
                    wide, narrow = (interpolate(verified, n * (depth + 1), beyond=True) for n in (batch, largest))
                    points[depth] += wide - narrow
            base = [interpolate(points, depth, beyond=True) for depth in range(1, DEEPEST + 1)]
            measured = {depth for size, depth in costs if size == batch}
        variance = _MEASURED if nearest == drafter else _UNMEASURED
        depths = [_DEPTH if depth in measured else _INTERPOLATED for depth in range(1, DEEPEST + 1)]
        return _Curve(base, growth[1:], _Offset(variance=variance, seen=self._seconds), depths)


def _by_positions(prices: CalibratedCosts) -> dict[int, float]:
    """Seconds of a forward by the positions that it computes, of all sequences together; never falls."""
    lookup = {size * (depth + 1): s for (size, depth), s in prices.drafted.get(PROMPT_LOOKUP, {}).items()}
    points = dict(sorted((lookup | dict(prices.plain)).items()))
    return dict(zip(points, accumulate(points.values(), max), strict=True))


def _index(depth: int) -> int:
    return max(0, min(depth, DEEPEST) - 1)


def interpolate(points: Mapping[int, float], at: float, beyond: bool = False) -> float:
    """Interpolates linearly; outside of what was measured the nearest value, or with `beyond` the last line goes on."""
    if at in points:
        return points[int(at)]
    keys = sorted(points)
    for low, high in pairwise(keys):
        if low < at < high or (beyond and high == keys[-1] and at > high):
            slope = (points[high] - points[low]) / (high - low)
            return points[low] + (at - low) * slope if at < high else points[high] + (at - high) * max(0.0, slope)
    return points[keys[0] if at < keys[0] else keys[-1]]
