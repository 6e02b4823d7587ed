"""How likely a drafted token is to be accepted, by position, workload class and drafter, and for each sequence.

a_i is the probability that the token at position i is accepted, given that all before it were. It is counted with
exponential forgetting, so it follows drift. With little evidence it is shrunk towards a more general rate (a Beta prior
of fixed weight): a workload class towards all texts of the drafter, a position towards the one before it, the first
position towards a guess. A sequence's own text differs from its class: the ratio of its odds to those of its class is
learnt during decoding, starting at 1. So is the ratio for drafts of prompt lookup by the length of their match: after a
long one far more is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftd.core import PROMPT_LOOKUP, DrafterName, FinishReason, Origin, WorkloadClass
from draftd.engine.depth.costs import DEEPEST
from draftd.engine.sequence import DecodeSequence, Key, SequenceEvidence

GUESS = 0.6  # rate of the first position before anything was drafted
PERFECT = 0.97  # the highest rate that a trial hopes for

_BONUS = 0.5  # how far acceptance may exceed its estimate before the first draft
_FEW = 64  # drafts from which on acceptance is known
_CLASS_MEMORY, _POOL_MEMORY = 150.0, 300.0  # drafts
_MATCH_MEMORY = 300.0  # drafted tokens
_GUESS_WEIGHT, _POOL_WEIGHT, _CLASS_WEIGHT = 2.0, 4.0, 4.0  # weight of the prior, in drafts
_SHORTFALL = 0.5  # share of a position's shortfall expected at the next one, which is easier
_LEAST, _MOST = 0.005, 0.995


class AcceptanceEvidence:
    """Counts, by position, of drafted and of accepted tokens; older counts fade."""

    __slots__ = ("_keep", "accepted", "drafted")

    def __init__(self, memory: float) -> None:
        """`memory`: in drafts."""
        self._keep = 1 - 1 / memory
        self.drafted, self.accepted = [0.0] * DEEPEST, [0.0] * DEEPEST

    @classmethod
    def from_saved(
        cls, key: Key, drafted: Sequence[float], accepted: Sequence[float], share: float
    ) -> AcceptanceEvidence:
        """Returns saved evidence, weighted by `share`."""
        evidence = cls(_POOL_MEMORY if key[3] is None else _CLASS_MEMORY)
        evidence.drafted, evidence.accepted = list(drafted), [min(pair) for pair in zip(accepted, drafted, strict=True)]
        evidence.fade(share)
        return evidence

    def add(self, drafted: int, accepted: int) -> None:
        """Counts one draft. Positions after the first rejected one are not counted."""
        keep = self._keep
        for i in range(min(accepted + 1, drafted, DEEPEST)):
            self.drafted[i] = self.drafted[i] * keep + 1
            self.accepted[i] = self.accepted[i] * keep + (i < accepted)

    def fade(self, share: float) -> None:
        self.drafted = [n * share for n in self.drafted]
        self.accepted = [n * share for n in self.accepted]


@dataclass(slots=True)
class Acceptance:
    """The acceptance rates of all requests. Engine thread only."""

    deepest: int = DEEPEST
    evidence: dict[Key, AcceptanceEvidence] = field(default_factory=dict)
    matches: dict[int, SequenceEvidence] = field(default_factory=dict)  # of prompt lookup, by length
    _rates: dict[Key, list[float]] = field(default_factory=dict)  # computed since the evidence last changed

    def rates(self, key: Key) -> list[float]:
        """Returns a_i for positions 1 to `deepest`."""
        rates = self._rates.get(key)
        if rates is None:
            rates = self._rates[key] = self._estimate(key)
        return rates

    def expected_tokens(self, sequence: DecodeSequence, kind: DrafterName, most: int) -> list[float]:
        """Returns the tokens that a step is expected to give this sequence when the drafter drafts 0 to `most`
        tokens."""
        return expected_by_depth(self.rates(sequence.evidence_key(kind)), self._odds(sequence, kind), most)

    def hoped_tokens(self, sequence: DecodeSequence, kind: DrafterName, most: int) -> list[float]:
        """Returns the same if the drafter's acceptance is as high as its drafts of this class allow while they are
        few."""
        key = sequence.evidence_key(kind)
        drafts = self.drafted_count(key, 1)
        more = bonus(drafts) if drafts < _FEW else 0.0
        rates = [min(PERFECT, rate + more) for rate in self.rates(key)]
        return expected_by_depth(rates, self._odds(sequence, kind), most)

    def _odds(self, sequence: DecodeSequence, kind: DrafterName) -> float:
        """Returns the odds of acceptance divided by those of the class of text."""
        own, match = sequence.evidence.get(kind), self.matches.get(sequence.match) if kind == PROMPT_LOOKUP else None
        return (1.0 if own is None else own.odds) * (1.0 if match is None else match.odds)

    def drafted_count(self, key: Key, position: int) -> float:
        """Returns how often `position` (from 1) was drafted recently."""
        evidence = self.evidence.get(key)
        return evidence.drafted[position - 1] if evidence else 0.0

    def learn(self, sequence: DecodeSequence, kind: DrafterName, drafted: int, accepted: int) -> None:
        """Counts one sequence's draft. Call `refresh` once after all sequences of a step to update `rates`."""
        key = sequence.evidence_key(kind)
        rates = self.rates(key)
        if kind == PROMPT_LOOKUP:  # what the match explains is not the sequence's own
            match = self.matches.setdefault(sequence.match, SequenceEvidence(memory=_MATCH_MEMORY))
            expected = [multiply_odds(rate, match.odds) for rate in rates]
            match.add(rates, drafted, accepted)
            rates = expected
        sequence.evidence.setdefault(kind, SequenceEvidence()).add(rates, drafted, accepted)
        for evidence_key, memory in ((key, _CLASS_MEMORY), (_all_texts(key), _POOL_MEMORY)):
            evidence = self.evidence.get(evidence_key)
            if evidence is None:
                evidence = self.evidence[evidence_key] = AcceptanceEvidence(memory)
            evidence.add(drafted, accepted)

    def refresh(self) -> None:
        self._rates.clear()

    def fade(self, key: Key, share: float) -> None:
        """Multiplies the counts gathered so far by `share`: those of `key`, and those of all texts with its drafter and
        sampling."""
        for evidence_key in (key, _all_texts(key)):
            if evidence_key in self.evidence:
                self.evidence[evidence_key].fade(share)
        self._rates.clear()

    def forget(self, kind: DrafterName) -> None:
        """Drops the evidence of a drafter whose weights were replaced."""
        self.evidence = {key: evidence for key, evidence in self.evidence.items() if key[0] != kind}
        self._rates.clear()

    def _estimate(self, key: Key) -> list[float]:
        evidence = self.evidence.get(key)
        if key[3] is None:
            return _shrunk(evidence, [GUESS] * self.deepest, _GUESS_WEIGHT, _POOL_WEIGHT)
        return _shrunk(evidence, self.rates(_all_texts(key)), _CLASS_WEIGHT, _CLASS_WEIGHT)


def bonus(drafts: float) -> float:
    """Returns how far acceptance may exceed its estimate after so many drafts."""
    return _BONUS / math.sqrt(drafts + 1)


def _all_texts(key: Key) -> Key:
    return key[0], key[1], key[2], None


def _shrunk(evidence: AcceptanceEvidence | None, general: Sequence[float], first: float, later: float) -> list[float]:
    """Returns each position's rate, shrunk with a prior of `first` drafts (at the first position) or `later` drafts.

    The prior's rate is the general one, shifted by this evidence's deviation at the position before. A shortfall counts
    only in part, because an accepted token is more often followed by another accepted one."""
    if evidence is None:
        return list(general)
    out: list[float] = []
    off, weight = 0.0, first
    for drafted, accepted, rate in zip(evidence.drafted, evidence.accepted, general, strict=False):
        estimate = _clamp((accepted + weight * _clamp(rate + off)) / (drafted + weight))
        out.append(estimate)
        off, weight = max(estimate - rate, _SHORTFALL * (estimate - rate)), later
    return out


def _clamp(rate: float) -> float:
    return _LEAST if rate < _LEAST else _MOST if rate > _MOST else rate


def multiply_odds(rate: float, odds: float) -> float:
    """Returns the rate whose odds are those of `rate` multiplied by `odds`."""
    return rate * odds / (1 - rate + rate * odds)


def expected_by_depth(rates: Sequence[float], odds: float, most: int) -> list[float]:
    """Returns the expected tokens of a step that drafts k = 0 to `most`: 1 + Σ_{j≤k} Π_{i≤j} a_i, with each a_i's odds
    multiplied by `odds`.

    Leviathan et al. 2023, arXiv 2211.17192, equation 1, with a rate for each position instead of one for all."""
    out, reach, total = [1.0], 1.0, 1.0
    for rate in rates[:most]:
        reach *= multiply_odds(rate, odds)
        total += reach
        out.append(total)
    return out


_HORIZON = 128.0  # tokens within which a drafter's prefill must pay off
_LENGTH_GUESS, _LENGTH_WEIGHT, _LENGTH_MEMORY = 128.0, 4.0, 64.0  # in tokens; in answers; in answers


class AnswerLengths:
    """Mean answer length by workload class. Engine thread only."""

    def __init__(self) -> None:
        self._sums: dict[WorkloadClass, tuple[float, float]] = {}  # answers, tokens

    def learn(self, sequence: DecodeSequence) -> None:
        """Learns from a client's completed answer; other sequences are ignored."""
        request = sequence.request
        if request.origin is not Origin.CLIENT or sequence.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        answers, tokens = self._sum(request.workload)
        keep = 1 - 1 / _LENGTH_MEMORY
        self._sums[request.workload] = (answers * keep + 1, tokens * keep + sequence.emitted)

    def expected_remaining(self, sequence: DecodeSequence) -> float:
        """Returns the tokens that the sequence is still expected to emit: the mean length of its class however many it
        has emitted, as for an exponential distribution, limited by what it and its peer allow."""
        answers, tokens = self._sum(sequence.request.workload)
        return min(float(sequence.remaining), sequence.granted, tokens / answers)

    def horizon(self, sequence: DecodeSequence) -> float:
        """Returns the tokens within which a prefill by a drafter must pay off."""
        return min(_HORIZON, self.expected_remaining(sequence))

    def _sum(self, workload: WorkloadClass) -> tuple[float, float]:
        return self._sums.get(workload, (_LENGTH_WEIGHT, _LENGTH_WEIGHT * _LENGTH_GUESS))
