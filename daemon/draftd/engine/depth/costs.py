"""What a round costs, by depth, drafter and batch size: measured on this machine, never assumed.

A calibration at load gives the first values, and each round after that corrects them. The machine gets slower and
faster while it serves, and what decides is only what a drafted round costs *beside* a plain one. So the logarithm of a
round's seconds is taken apart: the calibrated price, for the context that the rows have now; the tempo, fast, which all
rounds share; how far all drafts of one drafter at one batch size are off; and how far one depth is off beyond that. A
scalar Kalman filter for each says who answers for a surprise: what was seen lately is known well, so the tempo does;
what was not is known badly, so that does. A depth that nobody tried for a while thus looks neither cheap nor dear
because the machine has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from draftd.core import BUILT_IN_DRAFTERS, DrafterName

DEEPEST = 17  # drafted tokens in a round that are ever priced: one more than a plan may allow

_CLAMP = math.log(1.25)  # a round is taken as at most this far off: a stall is no new price
_NOISE = 0.1**2  # variance of the logarithm of a round's seconds
_TEMPO_DRIFT = 0.1**2  # what a second of decoding adds to the variance of the tempo
_JUMP = 0.1**2  # and what a round adds that is far off, where several in a row were
_IN_A_ROW = 4
_DRIFT = 0.03**2 / 60  # and to those of the others
_UNKNOWN, _UNMEASURED, _MEASURED, _OWN = 2.0**2, 0.3**2, 0.12**2, 0.05**2  # variances to begin with
_GUESSED = 0.2**2  # from this variance on a price is a guess, which nothing can be far from
_MOVED = math.log(1.25)  # a tempo that moved by this much may have moved depths unlike each other
_MOVED_VARIANCE = 0.05**2
_GUESS_SECONDS, _GUESS_STEP = 0.01, 0.2  # of a plain round, and what each drafted token adds, where nothing is known


@dataclass(frozen=True, slots=True)
class Prices:
    """What a calibration found: seconds of a round whose rows each hold `context` tokens.

    `plain` by batch size; `drafted` by drafter, then (batch size, depth); `growth` by depth, 0 the plain one: seconds
    that one more token of context adds for each row; `taking_in`: seconds that a drafter needs for a token of prompt.
    """

    plain: Mapping[int, float] = field(default_factory=dict)
    drafted: Mapping[DrafterName, Mapping[tuple[int, int], float]] = field(default_factory=dict)
    growth: Mapping[int, float] = field(default_factory=dict)
    context: int = 0
    taking_in: Mapping[DrafterName, float] = field(default_factory=dict)


@dataclass(slots=True)
class Offset:
    """By how much a logarithm is off, how sure that is, and when it was last seen to."""

    value: float = 0.0
    variance: float = _MEASURED
    seen: float = 0.0


class _Line:
    """One drafter at one batch size, or plain rounds (depth 0 only): prices by depth."""

    __slots__ = ("base", "factors", "off", "own", "slope")

    def __init__(self, base: list[float], slope: list[float], off: Offset) -> None:
        self.base, self.slope, self.off = base, slope, off
        self.own = [Offset(variance=_OWN) for _ in base]
        self.factors = [1.0] * len(base)
        self.refresh()

    def refresh(self) -> None:
        self.factors = [math.exp(self.off.value + own.value) for own in self.own]


_Key = tuple[DrafterName | None, int, bool]  # who drafts (None: nobody), batch size, whether any row is sampled


class RoundCosts:
    """Seconds of a round. Engine thread only."""

    def __init__(self, prices: Prices | None = None) -> None:
        self.prices = prices or Prices()
        self._measured = bool(self.prices.plain)
        self._tempo = Offset(variance=_UNMEASURED if self._measured else _UNKNOWN)
        self._far = 0  # how many rounds in a row were far off, negative where they were too fast
        self._anchor = 0.0  # the tempo when the others were last doubted for its sake
        self._lines: dict[_Key, _Line] = {}
        self._seconds = 0.0  # of all rounds that were learnt from
        self.upheavals = 0  # how often the tempo moved far: what was learnt about depths may no longer hold

    def plain(self, batch: int, context: int = 0, sampled: bool = False) -> float:
        """Seconds of a pipelined round of `batch` rows that drafts nothing; a guess where nothing was measured."""
        return self._price(self._line(None, batch, sampled), 0, batch, context)

    def drafted(
        self, drafter: DrafterName, batch: int, deepest: int, context: int = 0, sampled: bool = False
    ) -> list[float]:
        """Seconds of a round in which the deepest row drafts so many tokens, 1 to `deepest`, by index; at index 0 those
        of a plain one. Never falls with depth."""
        line = self._line(drafter, batch, sampled)
        held, tempo = batch * (context - self.prices.context), math.exp(self._tempo.value)
        plain = self._price(self._line(None, batch, sampled), 0, batch, context)
        out = [plain]
        low = 0.0
        base, slope, factors = line.base, line.slope, line.factors
        for i in range(deepest):
            seconds = (base[i] + slope[i] * held) * factors[i] * tempo
            if seconds > low:
                low = seconds
            out.append(low)
        return out

    def doubt(self, drafter: DrafterName, batch: int, depth: int, sampled: bool = False) -> float:
        """Standard deviation of the logarithm of what a drafted round costs beside a plain one."""
        line, plain = self._line(drafter, batch, sampled), self._line(None, batch, sampled)
        own = line.own[depth - 1]
        since = (self._seconds - line.off.seen) + (self._seconds - plain.off.seen)
        return math.sqrt(line.off.variance + own.variance + plain.off.variance + _DRIFT * since)

    def doubt_of_depth(self, drafter: DrafterName, batch: int, depth: int, sampled: bool = False) -> float:
        """The same, beside other depths of the same drafter."""
        return math.sqrt(self._line(drafter, batch, sampled).own[depth - 1].variance)

    def learn(
        self,
        drafter: DrafterName | None,
        batch: int,
        depth: int,
        seconds: float,
        context: int = 0,
        sampled: bool = False,
    ) -> None:
        """A round of `batch` rows took `seconds`; its deepest row drafted `depth` tokens with `drafter`, 0 and None a
        plain one, which tells only where it was pipelined."""
        line = self._line(drafter, batch, sampled)
        at = max(0, min(depth, DEEPEST) - 1)
        price = self._price(line, at, batch, context)
        surprise = math.log(max(seconds, 1e-9) / price)
        tempo, off, own = self._tempo, line.off, line.own[at]
        if tempo.variance < _UNKNOWN and off.variance < _GUESSED:
            tempo.variance += self._jump(surprise)
            surprise = min(max(surprise, -_CLAMP), _CLAMP)
        passed = min(price * math.exp(surprise), 1.0)  # not `seconds`: a stall makes nothing less sure
        self._seconds += passed
        off.variance += _DRIFT * (self._seconds - off.seen)
        own.variance += _DRIFT * (self._seconds - own.seen)
        off.seen = own.seen = self._seconds
        tempo.variance = min(tempo.variance + _TEMPO_DRIFT * passed, _UNKNOWN)
        total = tempo.variance + off.variance + own.variance + _NOISE
        for part in (tempo, off, own):
            gain = part.variance / total
            part.value += gain * surprise
            part.variance *= 1 - gain
        line.refresh()
        if drafter is None:
            self._measured = True
        if abs(tempo.value - self._anchor) > _MOVED:
            self._anchor = tempo.value
            self.upheavals += 1
            for other in self._lines.values():
                other.off.variance = max(other.off.variance, min(other.off.variance + _MOVED_VARIANCE, _MEASURED))

    def _jump(self, surprise: float) -> float:
        """What a surprise adds to the tempo's variance: nothing before some in a row are far off to the same side.

        A stall is over with the next round. Were the tempo let loose for it, the way back, with the tempo sure again,
        would fall to what is known of the drafter, and each stall would make drafts look a little cheaper.
        """
        far = (surprise > _CLAMP) - (surprise < -_CLAMP)
        self._far = self._far + far if far and self._far * far >= 0 else far
        return _JUMP if abs(self._far) >= _IN_A_ROW else 0.0

    def forget(self, drafter: DrafterName) -> None:
        """Its weights are others now: what it costs is known less well."""
        for (kind, _, _), line in self._lines.items():
            if kind == drafter:
                line.off.variance += _UNMEASURED

    def autoregressive(self, batch: int, context: int = 0, sampled: bool = False) -> float | None:
        """Seconds of a pipelined round of `batch` rows that drafts nothing. None before any was measured."""
        return self.plain(batch, context, sampled) if self._measured else None

    def break_even(self, batch: int, seconds: float, context: int = 0, sampled: bool = False) -> float:
        """Accepted tokens that make a drafted round of `seconds` just as fast as autoregressive decoding.

        A round emits one token more than it accepts, an autoregressive one a single token: so seconds / T - 1, with T
        the autoregressive round's seconds at this batch size (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8,
        with both costs measured). 0 while T is not known, and at least 0.
        """
        plain = self.autoregressive(batch, context, sampled)
        return max(0.0, seconds / plain - 1.0) if plain else 0.0

    def without_stall(
        self, drafter: DrafterName, batch: int, depth: int, seconds: float, context: int = 0, sampled: bool = False
    ) -> float:
        """`seconds` of a drafted round, as far off its price as `learn` takes it to be at most. What holds up the
        machine now and then is in no price, so it must not be in what is held against one."""
        line = self._line(drafter, batch, sampled)
        price = self._price(line, max(0, min(depth, DEEPEST) - 1), batch, context)
        return min(max(seconds, price * math.exp(-_CLAMP)), price * math.exp(_CLAMP))

    # what was learnt

    def offsets(self) -> dict[tuple[DrafterName | None, int, bool, int], tuple[float, float]]:
        """By drafter, batch size, whether sampled, and depth (0: all depths of the drafter): how far the logarithm of
        a round's seconds is from what `prices` say, and the variance of that."""
        found = {}
        for (kind, batch, sampled), line in self._lines.items():
            found[kind, batch, sampled, 0] = (line.off.value, line.off.variance)
            if kind is not None:
                for i, own in enumerate(line.own):
                    if own.seen:
                        found[kind, batch, sampled, i + 1] = (own.value, own.variance)
        return found

    def restore(
        self, offsets: Mapping[tuple[DrafterName | None, int, bool, int], tuple[float, float]], tempo: float
    ) -> None:
        """Takes up what `offsets` said before; `tempo` is the logarithm of what a plain round of one row costs now
        over what `prices` say."""
        self._tempo, self._anchor, self._measured = Offset(tempo, _UNMEASURED), tempo, True
        for (kind, batch, sampled, depth), (value, variance) in sorted(
            offsets.items(), key=lambda item: (item[0][3], item[0][1], item[0][2])
        ):
            line = self._line(kind, batch, sampled)
            if depth == 0:
                line.off.value, line.off.variance = value, variance
            else:
                line.own[depth - 1] = Offset(value, variance, 1e-9)
        for line in self._lines.values():
            line.refresh()

    # first values

    def _price(self, line: _Line, at: int, batch: int, context: int) -> float:
        held = batch * (context - self.prices.context)
        return (line.base[at] + line.slope[at] * held) * line.factors[at] * math.exp(self._tempo.value)

    def _line(self, drafter: DrafterName | None, batch: int, sampled: bool) -> _Line:
        key = (drafter, batch, sampled)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._first(drafter, batch, sampled)
        return line

    def _first(self, drafter: DrafterName | None, batch: int, sampled: bool) -> _Line:
        """What the calibration says; of sampled rounds, what is known of greedy ones, less surely."""
        prices = self.prices
        plain = _between(prices.plain, batch) if prices.plain else _GUESS_SECONDS
        growth = [max(0.0, _between(prices.growth, depth)) if prices.growth else 0.0 for depth in range(DEEPEST + 1)]
        if drafter is None:
            line = _Line([plain], growth[:1], Offset(seen=self._seconds))
        else:
            base, sure = self._depths(drafter, batch, plain)
            off = Offset(variance=_MEASURED if sure else _UNMEASURED, seen=self._seconds)
            line = _Line(base, growth[1:], off)
        if sampled:
            greedy = self._line(drafter, batch, False)
            line.off.value = greedy.off.value
            line.off.variance += _MEASURED
            for mine, theirs in zip(line.own, greedy.own, strict=True):
                mine.value = theirs.value
            line.refresh()
        return line

    def _depths(self, drafter: DrafterName, batch: int, plain: float) -> tuple[list[float], bool]:
        """Seconds from depth 1 on, and whether they were measured."""
        kinds = [drafter, *(kind for kind in BUILT_IN_DRAFTERS if kind != drafter)]
        known = next((kind for kind in kinds if self.prices.drafted.get(kind)), None)
        if known is None:
            return [plain * (1 + _GUESS_STEP * depth) for depth in range(1, DEEPEST + 1)], False
        found = self.prices.drafted[known]
        depths = sorted({depth for _, depth in found})
        points = {0: plain}
        for depth in depths:
            points[depth] = _between({size: s for (size, d), s in found.items() if d == depth}, batch)
        rising = dict(zip(points, accumulate(points.values(), max), strict=True))
        return [_between(rising, depth, beyond=True) for depth in range(1, DEEPEST + 1)], known == drafter


def _between(points: Mapping[int, float], at: int, beyond: bool = False) -> float:
    """On the line between two neighbours that were measured; outside of them the nearest's, or `beyond` the last on the
    line through the last two."""
    if at in points:
        return points[at]
    known = sorted(points)
    for low, high in pairwise(known):
        if low < at < high or (beyond and high == known[-1] and at > high):
            return points[low] + (at - low) / (high - low) * (points[high] - points[low])
    return points[known[0] if at < known[0] else known[-1]]
