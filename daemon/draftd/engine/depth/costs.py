"""The cost of a decode step by depth, drafter and batch size, always measured on this machine.

A calibration gives the first values, and each later step corrects them. The machine gets slower and faster while it
serves, and only the cost of a speculative step *relative to* a plain one matters. So

    log(seconds) = log(calibrated cost for this depth and context) + machine speed + drafter's offset + depth's offset

The machine speed is shared by all steps and changes fast; the drafter's offset belongs to a drafter at a batch size,
the depth's offset to one of its depths. A scalar Kalman filter tracks each (Kalman 1960, a random walk observed through
their sum): a surprise is divided among the three in proportion to their variances. A recently observed offset has a
small variance, so the machine speed takes the blame; one not observed for long has a large variance and takes it
itself. A depth that was not used for a while thus looks neither cheap nor expensive because the machine has changed.

A step counts as at most a quarter off, so that a stall does not become a cost. Several steps in a row that are further
off to the same side mean a change: of the machine speed if plain steps are off too, otherwise of the drafter's cost.
Until a plain step was seen nothing is learnt from the others (`unexplained`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from draftd.core import BUILT_IN_DRAFTERS, PROMPT_LOOKUP, DrafterName

DEEPEST = 17  # the most drafted tokens with a known cost: one more than a plan may allow

_CLAMP = math.log(1.25)  # a step counts as at most this far off: a stall is not a new cost
_NOISE = 0.1**2  # variance of the logarithm of a step's seconds
_SPEED_DRIFT = 0.1**2  # variance added to the machine speed per second of decoding
_FAR_OFF = math.log(1.25)
_IN_A_ROW = 4  # steps far off to the same side: a change, not a stall
_LARGEST_CHANGE = math.log(8)  # the largest change that one step may show
_DRIFT = 0.03**2 / 60  # variance added to the offsets per second
_UNKNOWN, _UNMEASURED, _MEASURED = 2.0**2, 0.3**2, 0.12**2  # initial variances
_DEPTH, _INTERPOLATED = 0.05**2, 0.08**2  # a depth's own variance if measured at this batch size; if interpolated
_GUESSED = 0.2**2  # from this variance on a cost is a guess, and no step counts as far off
_REGIME = math.log(1.25)  # after such a change of machine speed depths may differ from one another
_REGIME_VARIANCE = 0.05**2
_GUESS_SECONDS, _GUESS_STEP = 0.01, 0.2  # a plain step, and the share that each drafted token adds, if nothing is known


@dataclass(frozen=True, slots=True)
class CalibratedCosts:
    """The result of a calibration: seconds of a step whose sequences each have `context` tokens.

    `plain`: by batch size. `drafted`: by drafter, then (batch size, depth). `growth`: by depth (0: plain), seconds that
    one more token of context adds per sequence. `prefill`: a drafter's seconds per prompt token."""

    plain: Mapping[int, float] = field(default_factory=dict)
    drafted: Mapping[DrafterName, Mapping[tuple[int, int], float]] = field(default_factory=dict)
    growth: Mapping[int, float] = field(default_factory=dict)
    context: int = 0
    prefill: Mapping[DrafterName, float] = field(default_factory=dict)

    def merge(self, measured: CalibratedCosts) -> CalibratedCosts:
        """Returns these costs with newly `measured` batch sizes replaced. The other sizes are scaled to the present
        machine speed, taken from plain steps of the smallest common size."""
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
    """One of the three terms that correct a calibrated cost in the module's formula: its `value`, the logarithm of a
    factor, and its variance. `seen`: when it was last observed, in seconds of steps learnt from."""

    value: float = 0.0
    variance: float = _MEASURED
    seen: float = 0.0


class _Curve:
    """Costs by depth of one drafter at one batch size, or of plain steps (one depth only)."""

    __slots__ = ("base", "began", "depths", "factors", "far_off", "offset", "slope", "steps")

    def __init__(self, base: list[float], slope: list[float], offset: _Offset, variances: Sequence[float] = ()) -> None:
        """`variances`: initial variances of the depths' own offsets."""
        self.base, self.slope, self.offset = base, slope, offset
        self.depths = [_Offset(variance=variance) for variance in variances or [_DEPTH] * len(base)]
        self.factors = [1.0] * len(base)
        self.steps = 0  # steps that were learnt from
        # Steps in a row that were far off (negative: too fast), and the step at which that began.
        self.far_off = self.began = 0
        self.refresh()

    def refresh(self) -> None:
        self.factors = [math.exp(self.offset.value + own.value) for own in self.depths]

    def count(self, surprise: float, step: int) -> bool:
        """Counts a step that is far off. Returns whether enough in a row show a change."""
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

    MEASURED = "measured"  # measured by this process's calibration
    LEARNT = "learnt"  # corrected by steps of requests
    GUESSED = "guessed"  # measured by an earlier process, or interpolated


class Batch(NamedTuple):
    """The sequences of a step: how many, their mean tokens of context, and whether any of them is sampled."""

    size: int
    context: int = 0
    sampled: bool = False


class StepCosts:
    """Seconds of a step by drafter (None: plain), batch and depth. Engine thread only."""

    def __init__(self, prices: CalibratedCosts | None = None) -> None:
        self.prices = prices or CalibratedCosts()
        self.measured = bool(self.prices.plain)  # whether plain steps were measured
        self._speed = _Offset(variance=_UNMEASURED if self.measured else _UNKNOWN)
        self._regime = 0.0  # the machine speed at the last regime change
        self._step = self._plain_step = 0  # steps learnt from; the last plain one of them
        self.calibrated: frozenset[int] = frozenset()  # batch sizes measured by this process
        self.unexplained = False  # speculative steps are far off, and no plain step has shown yet why
        self._curves: dict[tuple[DrafterName | None, int, bool], _Curve] = {}
        self._seconds = 0.0  # sum over all steps learnt from
        self.regime_changes = 0  # changes after which depths' costs may be wrong

    def plain(self, batch: Batch) -> float:
        """Returns seconds of a pipelined step without drafts; a guess if unmeasured."""
        return self._cost(self._curve(None, batch.size, batch.sampled), 0, batch)

    def by_depth(
        self, drafter: DrafterName, batch: Batch, deepest: int, beside: DrafterName | None = None
    ) -> list[float]:
        """Returns seconds of a step by depth, from 0 (plain) to `deepest`. No depth is cheaper than a plain step, but a
        deeper one may be cheaper than a shallower: a product of 16 rows can take half as long as one of 12.

        `beside`: another drafter in the same batch with more recent steps; its offset is used instead."""
        curve, plain = self._curve(drafter, batch.size, batch.sampled), self.plain(batch)
        other = curve if beside is None else self._curve(beside, batch.size, batch.sampled)
        like = math.exp(other.offset.value - curve.offset.value)
        costs = (like * self._cost(curve, at, batch) for at in range(min(deepest, len(curve.base))))
        return [plain, *(max(plain, cost) for cost in costs)]

    def together(self, drafters: Collection[DrafterName], batch: Batch, deepest: int) -> list[float]:
        """Returns seconds by depth, from 0 to `deepest`, of a step in which each of these drafters drafts for some of
        the sequences: the target's forward and the time of all of them."""
        if not drafters:
            return self.by_depth(PROMPT_LOOKUP, batch, deepest)
        first, *others = (self.by_depth(drafter, batch, deepest) for drafter in sorted(drafters))
        for more in others:
            verifying = self.by_depth(PROMPT_LOOKUP, batch, deepest)
            added = (max(0.0, own - alone) for own, alone in zip(more, verifying, strict=False))
            first = [step + own for step, own in zip(first, added, strict=False)]
        return first

    def uncertainty(self, drafter: DrafterName, batch: Batch, depth: int) -> float:
        """Returns the standard deviation of the logarithm of a speculative step's cost relative to a plain one."""
        curve, plain = (self._curve(kind, batch.size, batch.sampled) for kind in (drafter, None))
        since = (self._seconds - curve.offset.seen) + (self._seconds - plain.offset.seen)
        variance = curve.offset.variance + curve.depths[depth - 1].variance + plain.offset.variance
        return math.sqrt(variance + _DRIFT * since)

    def depth_uncertainty(self, drafter: DrafterName, batch: Batch, depth: int) -> float:
        """Returns the standard deviation of the logarithm of this depth's cost relative to other depths of the
        drafter."""
        return math.sqrt(self._curve(drafter, batch.size, batch.sampled).depths[depth - 1].variance)

    def learn(self, drafter: DrafterName | None, batch: Batch, depth: int, seconds: float, replayed: int = 0) -> None:
        """Learns from a step that took `seconds` and computed `replayed` positions besides the last token and its
        draft. A plain step (drafter None, depth 0) must have been pipelined."""
        curve = self._curve(drafter, batch.size, batch.sampled)
        cost = self._expected_seconds(drafter, batch, depth, replayed)
        surprise = math.log(max(seconds, 1e-9) / cost)
        # With replayed positions a step shows the cost of verifying, not the cost of its depth.
        own_curve = self._curve(PROMPT_LOOKUP, batch.size, batch.sampled) if replayed else curve
        speed, offset, own = self._speed, curve.offset, own_curve.depths[_index(depth + replayed)]
        self._step += 1
        curve.steps += 1
        if speed.variance < _UNKNOWN and offset.variance < _GUESSED:
            most = self._largest_surprise(curve, surprise, plain=drafter is None)
            if most is None:
                self.unexplained = True
                return
            surprise = min(max(surprise, -most), most)
        if drafter is None:
            self._plain_step, self.unexplained = self._step, False
        passed = min(cost * math.exp(surprise), 1.0)  # not `seconds`: a stall must not add uncertainty
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

    def _largest_surprise(self, curve: _Curve, surprise: float, *, plain: bool) -> float | None:
        """Returns how large a step's surprise, the logarithm of its actual over expected seconds, may count. After
        several far-off steps in a row the limit is larger, and the variance of what changed (machine speed or the
        drafter's offset) is raised. None if something has changed, but only a plain step can show what."""
        changed = curve.count(surprise, self._step)
        if changed and not plain and self._plain_step < curve.began:
            return None
        if not (changed or (plain and self.unexplained)):
            return _CLAMP
        part = self._speed if plain else curve.offset
        part.variance = max(part.variance, _UNMEASURED)
        curve.far_off = 0
        return _LARGEST_CHANGE

    def forget(self, drafter: DrafterName) -> None:
        """Raises the uncertainty of a drafter whose weights were replaced."""
        for (kind, _, _), curve in self._curves.items():
            if kind == drafter:
                curve.offset.variance += _UNMEASURED

    def break_even(self, batch: Batch, seconds: float) -> float | None:
        """Returns how many accepted tokens, at least 0, make a speculative step of `seconds` as fast as autoregressive
        decoding; None until a plain step was measured.

        A step emits one token more than it accepts, a plain one a single token: so seconds / T - 1, with T the plain
        step's seconds at this batch size (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, both costs
        measured)."""
        return max(0.0, seconds / self.plain(batch) - 1.0) if self.measured else None

    def without_stall(self, drafter: DrafterName, batch: Batch, depth: int, seconds: float, replayed: int = 0) -> float:
        """Returns the `seconds` of a speculative step, limited to what `learn` counts at most. Costs exclude stalls, so
        times compared with costs must exclude them too."""
        cost = self._expected_seconds(drafter, batch, depth, replayed)
        return min(max(seconds, cost * math.exp(-_CLAMP)), cost * math.exp(_CLAMP))

    # measured by calibrations and earlier processes

    @property
    def speed(self) -> float:
        """The logarithm of present step times over `prices`: how much the machine's speed has changed since
        calibration."""
        return self._speed.value

    def calibrate(self, measured: CalibratedCosts) -> None:
        """Takes prices that a calibration has just measured, by whole batch sizes, and forgets what steps showed for
        these sizes."""
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
        """Returns the origin of the prices of this drafter's greedy steps."""
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
        """Restores the state from which `offsets`, `speed` and `measured` were read."""
        self._speed.value, self.measured = speed, self.measured or measured
        for (kind, batch, sampled, depth), value in sorted(offsets.items(), key=lambda item: (item[0][3], item[0][2])):
            curve = self._curve(kind, batch, sampled)
            (curve.depths[depth - 1] if depth else curve.offset).value = value
            curve.refresh()

    # initial values

    def _cost(self, curve: _Curve, at: int, batch: Batch) -> float:
        extra = batch.size * (batch.context - self.prices.context)
        return (curve.base[at] + curve.slope[at] * extra) * curve.factors[at] * math.exp(self._speed.value)

    def _expected_seconds(self, drafter: DrafterName | None, batch: Batch, depth: int, replayed: int) -> float:
        """Returns the expected seconds of a step; `replayed` positions add the cost of verifying as many more
        tokens."""
        own = self._curve(drafter, batch.size, batch.sampled)
        cost = self._cost(own, _index(depth), batch)
        if not replayed:
            return cost
        curve = self._curve(PROMPT_LOOKUP, batch.size, batch.sampled)
        wide, narrow = (self._cost(curve, _index(drafts), batch) for drafts in (depth + replayed, depth))
        like = math.exp(own.offset.value - curve.offset.value)  # gives one curve the offset of the other
        return max(cost + (wide - narrow) * like, self.plain(batch))

    def _curve(self, drafter: DrafterName | None, batch: int, sampled: bool) -> _Curve:
        key = (drafter, batch, sampled)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = self._calibrated_curve(drafter, batch)
            if sampled:  # from greedy steps, with more uncertainty
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
        # use another drafter's costs if there are no own ones
        nearest = next((kind for kind in (drafter, *BUILT_IN_DRAFTERS) if prices.drafted.get(kind)), None)
        if nearest is None:
            base = [plain * (1 + _GUESS_STEP * depth) for depth in range(1, DEEPEST + 1)]
            measured = set(range(1, DEEPEST + 1))  # a guess is equally uncertain at all depths
        else:
            costs, points, verified = prices.drafted[nearest], {0: plain}, _by_positions(prices)
            for depth in sorted({depth for _, depth in costs}):
                sizes = {size: seconds for (size, d), seconds in costs.items() if d == depth}
                points[depth] = interpolate(sizes, batch)
                if (largest := max(sizes)) < batch:  # a larger batch also has more positions to verify
                    wide, narrow = (interpolate(verified, n * (depth + 1), beyond=True) for n in (batch, largest))
                    points[depth] += wide - narrow
            base = [interpolate(points, depth, beyond=True) for depth in range(1, DEEPEST + 1)]
            measured = {depth for size, depth in costs if size == batch}
        variance = _MEASURED if nearest == drafter else _UNMEASURED
        depths = [_DEPTH if depth in measured else _INTERPOLATED for depth in range(1, DEEPEST + 1)]
        return _Curve(base, growth[1:], _Offset(variance=variance, seen=self._seconds), depths)


def _by_positions(prices: CalibratedCosts) -> dict[int, float]:
    """Returns seconds of a forward by the positions that it computes in all sequences together; never decreasing."""
    lookup = {size * (depth + 1): s for (size, depth), s in prices.drafted.get(PROMPT_LOOKUP, {}).items()}
    points = dict(sorted((lookup | dict(prices.plain)).items()))
    return dict(zip(points, accumulate(points.values(), max), strict=True))


def _index(depth: int) -> int:
    return max(0, min(depth, DEEPEST) - 1)


def interpolate(points: Mapping[int, float], at: float, beyond: bool = False) -> float:
    """Interpolates linearly. Outside the measured points it returns the nearest value, or, with `beyond`, continues the
    last segment."""
    if at in points:
        return points[int(at)]
    keys = sorted(points)
    for low, high in pairwise(keys):
        if low < at < high or (beyond and high == keys[-1] and at > high):
            slope = (points[high] - points[low]) / (high - low)
            return points[low] + (at - low) * slope if at < high else points[high] + (at - high) * max(0.0, slope)
    return points[keys[0] if at < keys[0] else keys[-1]]
