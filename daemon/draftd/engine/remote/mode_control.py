"""Which way a text is best had from another daemon's target, and how many tokens to propose at a time: the most
expected tokens a second, from what was measured of both machines and of what lies between them.

A synchronous step of k drafted tokens takes the round trip R, the draft's k·t_d and the verifier's t_v, and is expected
to give E tokens: it beats the remote's own streaming, t_AR a token, where R < E·t_AR - k·t_d - t_v. While a verdict is
on its way the edge drafts on, so that after a step that is accepted whole, with the token after it guessed, the next
one costs no more than max(t_v, (k+1)·t_d): the round trip is hidden.

Where the verifier streams meanwhile, what is proposed must overtake it: so many tokens are had at its own pace after
each one that was guessed wrong, and only what is right beyond these comes faster. That is never slower than streaming,
but the target works all the time.

What another daemon's target accepts is counted apart from what the local one does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, TypeVar

from draftd.core import CLASSES, DepthMode, DrafterName, WorkloadClass
from draftd.engine.depth.acceptance_rates import Acceptance, expected_by_depth
from draftd.engine.depth.costs import DEEPEST, interpolate
from draftd.engine.depth.saved import RemoteLearnt, rows, to_counted
from draftd.engine.limits import RemoteLimits
from draftd.engine.remote.verifier_link import LinkState, RemoteModel
from draftd.engine.sequence import DecodeSequence
from draftd.strategies import RemoteEstimate, RemoteMode

WORTH = 1.05  # a way that promises less than this over streaming is not taken
_ALIKE = 0.97  # of two ways so close the one that spends less of the target's time is taken
_RECENT = 0.1  # weight of the latest measurement
_SLOPE = 0.15  # what each drafted token adds to a forward, in plain ones, where nothing was measured
_DRAFT_SHARE = 0.15  # of a plain step, that a drafted token takes where that was not measured
_GUESSED_SECONDS = 0.02  # of a plain step of the remote, where nothing is known
_STREAK = 8  # tokens of a grant in a row, over which the pace of streaming is measured
_STREAKS, _OLD = 4, 4096  # that tell it, for as many tokens that are proposed
_CERTAIN = 0.995
_MEASURED = 48  # tokens of an answer, over which the pace of streaming is measured where that is not known


@dataclass(frozen=True, slots=True)
class RemoteTimes:
    """Seconds. `plain`: of a streamed token, as fast as the verifier is by itself, with its own draft or without.
    `verify`: of a step by how many tokens it drafts, from 0. `draft`: of a
    drafted token. `queue`: that a step waits at the verifier. `load`: sequences there, over those decoded together."""

    round_trip: float
    plain: float
    verify: Sequence[float]
    draft: float
    queue: float = 0.0
    load: float = 0.0


def estimate(
    times: RemoteTimes, expected: Sequence[float], in_flight: int, *, fixed_depth: bool = False
) -> RemoteEstimate:
    """`expected`: tokens of a step by how many it drafts, 0 to the most (acceptance_rates.py). `in_flight`: steps on
    their way at most. `fixed_depth`: every step drafts the most that it may, whether or not that pays."""
    most = min(len(expected), len(times.verify)) - 1
    stream = 1 / times.plain
    depths = [most] if fixed_depth else range(1, most + 1)
    steps = max(((_step_rate(times, expected, k, in_flight), k) for k in depths), default=(0.0, 0))
    overlapped = max(((_overlap_rate(times, expected, k, in_flight), k) for k in depths), default=(0.0, 0))
    rates = {RemoteMode.STREAM: stream, RemoteMode.OVERLAPPED: overlapped[0], RemoteMode.STEPS: steps[0]}
    if fixed_depth and most > 0:
        mode, depth = RemoteMode.STEPS, most
    elif steps[0] >= stream * (_ALIKE if times.load >= 1 else WORTH) and (
        times.load >= 1 or steps[0] >= _ALIKE * overlapped[0]
    ):
        mode, depth = RemoteMode.STEPS, steps[1]
    elif overlapped[0] >= stream * WORTH:
        mode, depth = RemoteMode.OVERLAPPED, overlapped[1]
    else:
        return RemoteEstimate(RemoteMode.STREAM, 0, 0, rates, times.plain)
    works = times.verify[depth] / expected[depth] if mode is RemoteMode.STEPS else 1 / overlapped[0]  # all the time
    drafts = depth * times.draft / expected[depth]
    return RemoteEstimate(mode, depth, _ahead(times, depth, in_flight), rates, works, drafts)


def break_even(times: RemoteTimes, expected: Sequence[float]) -> float | None:
    """The R of the rule above, at the depth where it is longest: below 0 where drafts pay at no distance. None where
    nothing may be drafted."""
    most = min(len(expected), len(times.verify)) - 1
    pays = (expected[k] * times.plain - k * times.draft - times.verify[k] for k in range(1, most + 1))
    return max(pays, default=None)


def _ahead(times: RemoteTimes, k: int, in_flight: int) -> int:
    """Proposals on their way that hide a round trip: more would only make the verifier's steps deeper."""
    between = times.round_trip + (k + 1) * times.draft
    return min(in_flight, 1 + math.ceil(between / times.verify[k]))


def _step_rate(times: RemoteTimes, expected: Sequence[float], k: int, in_flight: int) -> float:
    """Tokens a second of steps of k tokens, with nothing streamed."""
    whole = _right(expected, k) * _right(expected, 1) if in_flight > 1 else 0.0
    waited = times.round_trip + times.queue + times.verify[k] + k * times.draft + _behind(times, k, in_flight)
    return expected[k] / (whole * _hidden(times, k, in_flight) + (1 - whole) * waited)


def _overlap_rate(times: RemoteTimes, expected: Sequence[float], k: int, in_flight: int) -> float:
    """Tokens a second where the verifier streams until a proposal is ahead of it: after each token that was guessed
    wrong that is `streamed` tokens later, and no gain where the next wrong one comes before."""
    if times.draft >= times.plain:
        return 1 / times.plain
    first = times.round_trip + k * times.draft + _behind(times, k, in_flight)
    overtaken = max(first, (times.round_trip + times.draft) / (1 - times.draft / times.plain)) + times.queue
    streamed = math.ceil(overtaken / times.plain)
    right = [_right(expected, i) for i in range(k + 1)]
    block = min(right[k], _CERTAIN)  # each block of k goes on as likely as the first began
    run = sum(right[:k]) / (1 - block)  # tokens from one wrong guess to the next
    slow = sum(block ** (i // k) * right[i % k] for i in range(min(streamed, 1024)))
    ahead = min(_hidden(times, k, in_flight) / expected[k], times.plain)
    return run / (times.plain * slow + ahead * max(0.0, run - slow)) if run > slow else 1 / times.plain


def _right(expected: Sequence[float], k: int) -> float:
    """The chance that the first k drafted tokens are right."""
    return expected[k] - expected[k - 1] if k else 1.0


def _hidden(times: RemoteTimes, k: int, in_flight: int) -> float:
    """Seconds of a step whose proposal was there before it was its turn."""
    return max(
        times.verify[k], (k + 1) * times.draft, (times.round_trip + times.verify[k]) / _ahead(times, k, in_flight)
    )


def _behind(times: RemoteTimes, k: int, in_flight: int) -> float:
    """Seconds that a verdict waits for a draft that is being made."""
    block = (k + 1) * times.draft
    return block / 2 if (_ahead(times, k, in_flight) - 1) * block > times.round_trip + times.verify[k] else 0.0


@dataclass(slots=True)
class _Mean:
    """Exponentially weighted, and over all of the first few; 0 before there is one."""

    value: float = 0.0
    counted: int = 0

    def add(self, value: float) -> None:
        self.counted += 1
        self.value += max(_RECENT, 1 / self.counted) * (value - self.value)


_K = TypeVar("_K")


def _mean_values(means: Mapping[_K, _Mean]) -> tuple[tuple[_K, float], ...]:
    return tuple((key, mean.value) for key, mean in means.items())


@dataclass(slots=True)
class RemoteCosts:
    """Measured costs of a verifier and of drafting for it. Engine thread only."""

    step_seconds: float = 0.0  # as the verifier said of itself, 0 where it did not
    load: float = 0.0
    _forward: _Mean = field(default_factory=_Mean)  # seconds of a plain forward
    _rest: _Mean = field(default_factory=_Mean)  # of a step, besides its forward
    # Of a streamed token where the verifier drafts by itself, by the text's class, and of all texts.
    _drafted: dict[WorkloadClass | None, _Mean] = field(default_factory=dict)
    _proposed: dict[WorkloadClass, int] = field(default_factory=dict)  # tokens, since that was measured
    _wider: dict[int, _Mean] = field(default_factory=dict)  # by depth: seconds of its forward over those of a plain one
    _queue: _Mean = field(default_factory=_Mean)
    _round_trip: _Mean = field(default_factory=_Mean)
    draft: dict[DrafterName, _Mean] = field(default_factory=dict)

    def learnt(self, fingerprint: str, acceptance: Acceptance) -> RemoteLearnt:
        """What does not depend on where the verifier is, nor on who else uses it."""
        return RemoteLearnt.model_construct(  # without checks, which are for what is read
            fingerprint=fingerprint,
            forward=self._plain_forward,
            rest=self._rest.value,
            wider=_mean_values(self._wider),
            streaming=_mean_values(self._drafted),
            draft=_mean_values(self.draft),
            acceptance=rows(to_counted(acceptance)),
        )

    @classmethod
    def from_saved(cls, learnt: RemoteLearnt, step_seconds: float) -> RemoteCosts:
        """To go on with, where the verifier says that a plain step takes `step_seconds` now, 0 where it does not."""
        costs, slower = cls(step_seconds or learnt.forward), step_seconds / learnt.forward if step_seconds else 1.0
        costs._rest = _Mean(learnt.rest, 1)
        costs._wider = {depth: _Mean(ratio, _STREAKS) for depth, ratio in learnt.wider}
        costs._drafted = {kind: _Mean(seconds * slower, _STREAKS) for kind, seconds in learnt.streaming}
        costs.draft = {kind: _Mean(seconds, _STREAKS) for kind, seconds in learnt.draft}
        return costs

    @property
    def measured(self) -> bool:
        """Whether the seconds of a plain forward are more than a guess."""
        return bool(self._forward.value or self.step_seconds)

    @property
    def plain(self) -> float:
        """Seconds of a streamed token for which nothing is drafted."""
        return self._plain_forward + self._rest.value

    def streaming(self, workload: WorkloadClass | None = None) -> float:
        """Seconds of a streamed token of such a text."""
        measured = self._drafted.get(workload) or self._drafted.get(None)
        return self.plain if measured is None else measured.value

    def streaming_unmeasured(self, workload: WorkloadClass) -> bool:
        """Whether `streaming` is not known of such texts, or was measured long ago."""
        return workload not in self._drafted or self._drafted[workload].counted < _STREAKS

    @property
    def _plain_forward(self) -> float:
        return self._forward.value or self.step_seconds or _GUESSED_SECONDS

    def times(
        self, round_trip: float | None, kind: DrafterName, most: int, workload: WorkloadClass | None = None
    ) -> RemoteTimes:
        """For up to `most` drafted tokens. `round_trip`: as the link measured it; None: as steps had it."""
        between = self._round_trip.value if round_trip is None else round_trip
        verify = [self._plain_forward * ratio + self._rest.value for ratio in self._ratios(most)]
        draft = self.draft[kind].value if kind in self.draft else self.plain * _DRAFT_SHARE
        return RemoteTimes(between, self.streaming(workload), verify, draft, self._queue.value, self.load)

    def learn_verify(self, drafted: int, verify_seconds: float) -> None:
        """One verdict's forward."""
        if verify_seconds <= 0:
            return
        if not drafted:
            self._forward.add(verify_seconds)
            return
        ratio = min(max(verify_seconds / self._plain_forward, 0.5), 20.0)
        self._wider.setdefault(min(drafted, DEEPEST), _Mean()).add(ratio)

    def learn_streaming(self, workload: WorkloadClass, tokens: int, seconds: float, *, drafted: bool) -> bool:
        """So many tokens of a grant came in a row; whether that is enough to tell the pace. `drafted`: the verifier's
        own drafter was in it."""
        if tokens < _STREAK or seconds <= 0:  # all of them were received at once
            return False
        if not drafted:
            self._rest.add(max(0.0, seconds / tokens - self._plain_forward))
        for scope in (workload, None) if drafted or self._drafted else ():
            self._drafted.setdefault(scope, _Mean()).add(seconds / tokens)
        self._proposed[workload] = 0
        return True

    def count_proposed(self, workload: WorkloadClass, tokens: int) -> None:
        """So many were decided by what was proposed."""
        total = self._proposed.get(workload, 0) + tokens
        self._proposed[workload] = total
        if total >= _OLD and workload in self._drafted:
            self._drafted[workload].counted, self._proposed[workload] = 0, 0

    def learn_round_trip(self, seconds: float, queue_seconds: float) -> None:
        """The round trip of a step that found its sequence at rest, without what the verifier took, and how long it
        waited there for others."""
        self._round_trip.add(max(0.0, seconds))
        self._queue.add(queue_seconds)

    def learn_draft(self, kind: DrafterName, tokens: int, seconds: float) -> None:
        self.draft.setdefault(kind, _Mean()).add(seconds / tokens)

    def _ratios(self, most: int) -> list[float]:
        """Of a forward with 0 to `most` drafted tokens, over a plain one. Between measured depths it is interpolated;
        none costs less than one before it."""
        points = {0: 1.0} | {depth: mean.value for depth, mean in self._wider.items()}
        deepest = max(points)
        ratios = (interpolate(points, depth) + _SLOPE * max(0, depth - deepest) for depth in range(most + 1))
        return list(accumulate(ratios, max))


class DraftOutcome(NamedTuple):
    """The outcome of one draft: `accepted` of its first `drafted` tokens were right."""

    kind: DrafterName
    drafted: int
    accepted: int


class RemoteControl:
    """How the sequences of another daemon's target are decoded, by what was learnt of that daemon, and of drafting for
    it. Engine thread only."""

    def __init__(self, limits: RemoteLimits) -> None:
        self._limits = limits
        self.fingerprint = ""  # of the verifier's model
        self.costs, self.acceptance = RemoteCosts(), Acceptance()
        self.recalled: RemoteLearnt | None = None  # what an earlier run learnt of a verifier

    def follow(self, model: RemoteModel) -> None:
        """What the verifier serves now; of a model that is not the one before nothing is known."""
        if model.fingerprint == self.fingerprint:
            return
        self.fingerprint, saved = model.fingerprint, self.recalled
        self.costs, self.acceptance = RemoteCosts(model.step_seconds), Acceptance()
        if saved is not None and saved.fingerprint == model.fingerprint:
            self.costs, self.acceptance = RemoteCosts.from_saved(saved, model.step_seconds), saved.rates()

    def learnt(self) -> RemoteLearnt | None:
        """To be saved: of the verifier that decoded last."""
        return self.costs.learnt(self.fingerprint, self.acceptance) if self.costs.measured else self.recalled

    def decide(self, sequence: DecodeSequence, kinds: Sequence[DrafterName], state: LinkState) -> RemoteEstimate | None:
        """With the drafter, of those that know its text, that promises most; None where none can draft."""
        most = 0 if state.model is None else min(sequence.most, self._most(state.model))
        fixed = sequence.plan.depth_mode is DepthMode.FIXED
        estimates = []
        for kind in kinds if most > 0 else ():
            times = self.costs.times(state.round_trip, kind, most, sequence.request.workload)
            expected = self.acceptance.expected_tokens(sequence, kind, most)
            estimates.append(estimate(times, expected, self._limits.in_flight, fixed_depth=fixed))
        return max(estimates, key=lambda option: option.rate, default=None)

    def streams_first(self, sequence: DecodeSequence, state: LinkState) -> bool:
        """Whether it is to stream for a while, to see how fast that is: the verifier drafts by itself, and it is not
        known, or was not for long, what that gives such texts."""
        model, free = state.model, sequence.plan.depth_mode is DepthMode.AUTOMATIC
        drafts = model is not None and model.drafts and free
        return drafts and sequence.emitted < _MEASURED and self.costs.streaming_unmeasured(sequence.request.workload)

    def estimates(
        self, state: LinkState, kind: DrafterName
    ) -> tuple[dict[WorkloadClass, RemoteEstimate], float | None]:
        """What a greedy text of each class may expect with this drafter and without, from the hello of a verifier on
        that says what its steps take, or else from its first steps; and the round trip below which this drafter's
        steps, one at a time, beat streaming, None before it drafted for this verifier."""
        if state.model is not None:
            self.follow(state.model)
        if state.model is None or not self.costs.measured:
            return {}, None
        most, classes = self._most(state.model), (WorkloadClass.UNSPECIFIED, *CLASSES)
        expected = {
            text: expected_by_depth(self.acceptance.rates((kind, False, False, text)), 1.0, most) for text in classes
        }
        estimates = {
            workload: estimate(self.costs.times(state.round_trip, kind, most, workload), tokens, self._limits.in_flight)
            for workload, tokens in expected.items()
        }
        if kind not in self.costs.draft:
            return estimates, None
        any_text = self.costs.times(state.round_trip, kind, most)
        return estimates, break_even(any_text, expected[WorkloadClass.UNSPECIFIED])

    def learn(self, sequence: DecodeSequence, judged: Sequence[DraftOutcome]) -> None:
        for kind, drafted, accepted in judged:
            self.acceptance.learn(sequence, kind, drafted, accepted)
        if judged:
            self.acceptance.refresh()

    def _most(self, model: RemoteModel) -> int:
        return min(self._limits.max_draft_tokens, model.max_draft_tokens)
