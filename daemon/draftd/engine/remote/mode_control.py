"""Chooses how to decode a text on another daemon's target, and how many tokens to propose at a time: the most expected
tokens per second, from measurements of both machines and of the network between them.

A synchronous step of k drafted tokens takes the round trip R, the draft's k·t_d and the verifier's t_v, and is expected
to give E tokens. It beats the remote's own streaming, at t_AR a token, if R < E·t_AR - k·t_d - t_v. While a verdict is
on its way the edge keeps drafting, so after a fully accepted step whose bonus token was guessed right, the next step
costs only max(t_v, (k+1)·t_d): the round trip is hidden.

If the verifier streams meanwhile, proposals must overtake it: after each wrong guess some tokens come at streaming
speed, and only correct tokens beyond these come faster. That is never slower than streaming, but the target works all
the time.

Acceptance by another daemon's target is counted separately from the local target's.
"""

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

WORTH = 1.05  # the least gain over streaming for which another mode is chosen
_ALIKE = 0.97  # of two modes this close, the one that uses less of the target's time is chosen
_RECENT = 0.1  # weight of the latest measurement
_SLOPE = 0.15  # what each drafted token adds to a forward, in plain forwards, if unmeasured
_DRAFT_SHARE = 0.15  # of a plain step: the time of a drafted token, if unmeasured
_GUESSED_SECONDS = 0.02  # seconds of a plain step of the remote, if unknown
_STREAK = 8  # consecutive tokens of a grant over which streaming is measured
_STREAKS, _OLD = 4, 4096  # measurements required; repeat after this many proposed tokens
_CERTAIN = 0.995
_MEASURED = 48  # tokens of an answer over which streaming is measured if unknown


@dataclass(frozen=True, slots=True)
class RemoteTimes:
    """Seconds of remote decoding. `plain`: per streamed token, by the verifier alone, with or without its own draft.
    `verify[k]`: a step with k drafted tokens. `draft`: per drafted token. `queue`: a step's wait at the verifier.
    `load`, a ratio: the verifier's open sequences divided by the most that it decodes at once."""

    round_trip: float
    plain: float
    verify: Sequence[float]
    draft: float
    queue: float = 0.0
    load: float = 0.0


def estimate(
    times: RemoteTimes, expected: Sequence[float], in_flight: int, *, fixed_depth: bool = False
) -> RemoteEstimate:
    """Returns the best mode and depth. `expected[k]`: the mean tokens of a step with k drafted ones
    (acceptance_rates.py). `in_flight`: the most steps on their way. `fixed_depth`: every step drafts as much as it may,
    whether or not that pays."""
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
    # Unless decoding goes step by step, the target works all the time.
    works = times.verify[depth] / expected[depth] if mode is RemoteMode.STEPS else 1 / overlapped[0]
    drafts = depth * times.draft / expected[depth]
    return RemoteEstimate(mode, depth, _ahead(times, depth, in_flight), rates, works, drafts)


def break_even(times: RemoteTimes, expected: Sequence[float]) -> float | None:
    """Returns the longest round trip, in seconds, at which some depth pays: the largest E·t_AR - k·t_d - t_v (module
    docstring). Negative if drafts pay at no distance; None if nothing may be drafted."""
    most = min(len(expected), len(times.verify)) - 1
    pays = (expected[k] * times.plain - k * times.draft - times.verify[k] for k in range(1, most + 1))
    return max(pays, default=None)


def _ahead(times: RemoteTimes, k: int, in_flight: int) -> int:
    """Returns how many proposals of k tokens to send before their verdicts come: enough to keep the verifier busy
    during a round trip, at most `in_flight`. With more, proposals would wait there and merge into deeper steps."""
    between = times.round_trip + (k + 1) * times.draft
    return min(in_flight, 1 + math.ceil(between / times.verify[k]))


def _step_rate(times: RemoteTimes, expected: Sequence[float], k: int, in_flight: int) -> float:
    """Returns tokens per second in steps of k drafted tokens, without streaming."""
    whole = _right(expected, k) * _right(expected, 1) if in_flight > 1 else 0.0
    waited = times.round_trip + times.queue + times.verify[k] + k * times.draft + _behind(times, k, in_flight)
    return expected[k] / (whole * _hidden(times, k, in_flight) + (1 - whole) * waited)


def _overlap_rate(times: RemoteTimes, expected: Sequence[float], k: int, in_flight: int) -> float:
    """Returns tokens per second if the verifier streams until proposals overtake it. After each wrong guess the first
    tokens come at streaming speed; a run of right guesses that ends within them gains nothing."""
    if times.draft >= times.plain:
        return 1 / times.plain
    first = times.round_trip + k * times.draft + _behind(times, k, in_flight)
    overtaken = max(first, (times.round_trip + times.draft) / (1 - times.draft / times.plain)) + times.queue
    streamed = math.ceil(overtaken / times.plain)
    right = [_right(expected, i) for i in range(k + 1)]
    block = min(right[k], _CERTAIN)  # each block of k is as likely to be right as the first
    run = sum(right[:k]) / (1 - block)  # mean tokens from one wrong guess to the next
    slow = sum(block ** (i // k) * right[i % k] for i in range(min(streamed, 1024)))
    ahead = min(_hidden(times, k, in_flight) / expected[k], times.plain)
    return run / (times.plain * slow + ahead * max(0.0, run - slow)) if run > slow else 1 / times.plain


def _right(expected: Sequence[float], k: int) -> float:
    """Returns the probability that the first k drafted tokens are right."""
    return expected[k] - expected[k - 1] if k else 1.0


def _hidden(times: RemoteTimes, k: int, in_flight: int) -> float:
    """Returns the seconds of a step whose proposal arrived before the verifier was ready for it, so that no round trip
    is awaited."""
    return max(
        times.verify[k], (k + 1) * times.draft, (times.round_trip + times.verify[k]) / _ahead(times, k, in_flight)
    )


def _behind(times: RemoteTimes, k: int, in_flight: int) -> float:
    """Returns the mean seconds that a verdict waits at the edge for a draft in progress."""
    block = (k + 1) * times.draft
    return block / 2 if (_ahead(times, k, in_flight) - 1) * block > times.round_trip + times.verify[k] else 0.0


@dataclass(slots=True)
class _Mean:
    """An exponentially weighted mean, starting as the plain mean of the first few values; 0 before any."""

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

    step_seconds: float = 0.0  # as the verifier reported, 0 if it did not
    load: float = 0.0
    _forward: _Mean = field(default_factory=_Mean)  # seconds of a plain forward
    _rest: _Mean = field(default_factory=_Mean)  # seconds of a step besides its forward
    # Seconds per streamed token with the verifier's own drafts, by workload class, and for all texts (None).
    _drafted: dict[WorkloadClass | None, _Mean] = field(default_factory=dict)
    _proposed: dict[WorkloadClass, int] = field(default_factory=dict)  # tokens proposed since streaming was measured
    _wider: dict[int, _Mean] = field(default_factory=dict)  # by depth: seconds of its forward over those of a plain one
    _queue: _Mean = field(default_factory=_Mean)
    _round_trip: _Mean = field(default_factory=_Mean)
    draft: dict[DrafterName, _Mean] = field(default_factory=dict)

    def learnt(self, fingerprint: str, acceptance: Acceptance) -> RemoteLearnt:
        """Returns what depends neither on the network nor on the verifier's other users, for saving."""
        return RemoteLearnt.model_construct(  # without validation, which is for loaded documents
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
        """Returns saved costs, scaled to the verifier's present `step_seconds` of a plain step (0 if not reported)."""
        costs, slower = cls(step_seconds or learnt.forward), step_seconds / learnt.forward if step_seconds else 1.0
        costs._rest = _Mean(learnt.rest, 1)
        costs._wider = {depth: _Mean(ratio, _STREAKS) for depth, ratio in learnt.wider}
        costs._drafted = {kind: _Mean(seconds * slower, _STREAKS) for kind, seconds in learnt.streaming}
        costs.draft = {kind: _Mean(seconds, _STREAKS) for kind, seconds in learnt.draft}
        return costs

    @property
    def measured(self) -> bool:
        """Whether the seconds of a plain forward were measured or reported."""
        return bool(self._forward.value or self.step_seconds)

    @property
    def plain(self) -> float:
        """Seconds of a streamed token without drafts."""
        return self._plain_forward + self._rest.value

    def streaming(self, workload: WorkloadClass | None = None) -> float:
        """Returns seconds per streamed token in texts of this class; None: of any class."""
        measured = self._drafted.get(workload) or self._drafted.get(None)
        return self.plain if measured is None else measured.value

    def streaming_unmeasured(self, workload: WorkloadClass) -> bool:
        """Returns whether `streaming` is unknown for this class of texts, or was measured long ago."""
        return workload not in self._drafted or self._drafted[workload].counted < _STREAKS

    @property
    def _plain_forward(self) -> float:
        return self._forward.value or self.step_seconds or _GUESSED_SECONDS

    def times(
        self, round_trip: float | None, kind: DrafterName, most: int, workload: WorkloadClass | None = None
    ) -> RemoteTimes:
        """Returns the times for up to `most` drafted tokens. `round_trip`: as measured by the link; None: as measured
        in steps."""
        between = self._round_trip.value if round_trip is None else round_trip
        verify = [self._plain_forward * ratio + self._rest.value for ratio in self._ratios(most)]
        draft = self.draft[kind].value if kind in self.draft else self.plain * _DRAFT_SHARE
        return RemoteTimes(between, self.streaming(workload), verify, draft, self._queue.value, self.load)

    def learn_verify(self, drafted: int, verify_seconds: float) -> None:
        """Learns the seconds of one verdict's forward."""
        if verify_seconds <= 0:
            return
        if not drafted:
            self._forward.add(verify_seconds)
            return
        ratio = min(max(verify_seconds / self._plain_forward, 0.5), 20.0)
        self._wider.setdefault(min(drafted, DEEPEST), _Mean()).add(ratio)

    def learn_streaming(self, workload: WorkloadClass, tokens: int, seconds: float, *, drafted: bool) -> bool:
        """Learns the verifier's speed from consecutive `tokens` that it decoded in `seconds` within a grant (permission
        to decode without proposals). Returns False if they are too few to measure. `drafted`: the verifier's own
        drafter took part."""
        if tokens < _STREAK or seconds <= 0:  # all tokens were received at once
            return False
        if not drafted:
            self._rest.add(max(0.0, seconds / tokens - self._plain_forward))
        for scope in (workload, None) if drafted or self._drafted else ():
            self._drafted.setdefault(scope, _Mean()).add(seconds / tokens)
        self._proposed[workload] = 0
        return True

    def count_proposed(self, workload: WorkloadClass, tokens: int) -> None:
        """Counts `tokens` of verdicts on proposals. After 4,096 of them the measured streaming speed counts as
        outdated."""
        total = self._proposed.get(workload, 0) + tokens
        self._proposed[workload] = total
        if total >= _OLD and workload in self._drafted:
            self._drafted[workload].counted, self._proposed[workload] = 0, 0

    def learn_round_trip(self, seconds: float, queue_seconds: float) -> None:
        """Learns from a step that was sent while no verdict was awaited: its round trip, without the verifier's own
        time, and its wait in the verifier's queue."""
        self._round_trip.add(max(0.0, seconds))
        self._queue.add(queue_seconds)

    def learn_draft(self, kind: DrafterName, tokens: int, seconds: float) -> None:
        self.draft.setdefault(kind, _Mean()).add(seconds / tokens)

    def _ratios(self, most: int) -> list[float]:
        """Returns the cost of a forward with 0 to `most` drafted tokens over a plain one, interpolated between measured
        depths and never decreasing."""
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
    """Chooses how sequences of another daemon's target are decoded, from what was learnt of that daemon and of drafting
    for it. Engine thread only."""

    def __init__(self, limits: RemoteLimits) -> None:
        self._limits = limits
        self.fingerprint = ""  # fingerprint of the verifier's model
        self.costs, self.acceptance = RemoteCosts(), Acceptance()
        self.recalled: RemoteLearnt | None = None  # learnt from a verifier by an earlier process

    def follow(self, model: RemoteModel) -> None:
        """Notes the verifier's present model; a different one resets what was learnt."""
        if model.fingerprint == self.fingerprint:
            return
        self.fingerprint, saved = model.fingerprint, self.recalled
        self.costs, self.acceptance = RemoteCosts(model.step_seconds), Acceptance()
        if saved is not None and saved.fingerprint == model.fingerprint:
            self.costs, self.acceptance = RemoteCosts.from_saved(saved, model.step_seconds), saved.rates()

    def learnt(self) -> RemoteLearnt | None:
        """Returns what was learnt of the verifier that decoded last, for saving."""
        return self.costs.learnt(self.fingerprint, self.acceptance) if self.costs.measured else self.recalled

    def decide(self, sequence: DecodeSequence, kinds: Sequence[DrafterName], state: LinkState) -> RemoteEstimate | None:
        """Returns the best estimate over the drafters in `kinds`, which know the text; None if none of them can
        draft."""
        most = 0 if state.model is None else min(sequence.most, self._most(state.model))
        fixed = sequence.plan.depth_mode is DepthMode.FIXED
        estimates = []
        for kind in kinds if most > 0 else ():
            times = self.costs.times(state.round_trip, kind, most, sequence.request.workload)
            expected = self.acceptance.expected_tokens(sequence, kind, most)
            estimates.append(estimate(times, expected, self._limits.in_flight, fixed_depth=fixed))
        return max(estimates, key=lambda option: option.rate, default=None)

    def streams_first(self, sequence: DecodeSequence, state: LinkState) -> bool:
        """Returns whether the sequence should stream for a while to measure the streaming speed: the verifier drafts by
        itself, and its speed on such texts is unknown or outdated."""
        model, free = state.model, sequence.plan.depth_mode is DepthMode.AUTOMATIC
        drafts = model is not None and model.drafts and free
        return drafts and sequence.emitted < _MEASURED and self.costs.streaming_unmeasured(sequence.request.workload)

    def estimates(
        self, state: LinkState, kind: DrafterName
    ) -> tuple[dict[WorkloadClass, RemoteEstimate], float | None]:
        """Returns the estimate for a greedy text of each class with this drafter, and the longest round trip at which
        single steps of this drafter beat streaming (None until it has drafted for this verifier). Empty until step
        times are known, from the verifier's hello or from its first steps."""
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
