"""How likely a drafted token is to be accepted: by position, workload class and drafter, and for each sequence.

The probability a_i that the token at position i is accepted, given that all before it were, is counted with
exponential forgetting, so that it follows drift. Where there is little evidence it is shrunk towards something more
general (a Beta prior of fixed weight): a workload class towards all texts of the same drafter, a position towards the
one before it, the first position towards a guess. A sequence's own text differs from its class: the ratio of its odds
to those of its class is learnt while it is decoded, and begins at 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftd.core import DrafterName, FinishReason, Origin, WorkloadClass
from draftd.engine.depth.costs import DEEPEST
from draftd.engine.sequence import DecodeSequence, Key, SequenceEvidence

GUESS = 0.6  # of the first position, before anything was drafted

_CLASS_MEMORY, _POOL_MEMORY = 150.0, 300.0  # drafts
_GUESS_WEIGHT, _POOL_WEIGHT, _CLASS_WEIGHT = 2.0, 4.0, 4.0  # of the prior, in drafts
_SHORTFALL = 0.5  # share of a position's shortfall that the next one is expected to have: what follows is easier
_LEAST, _MOST = 0.005, 0.995


class AcceptanceEvidence:
    """How often each position was drafted, and how often that token was accepted; older counts fade."""

    __slots__ = ("_keep", "accepted", "drafted")

    def __init__(self, memory: float) -> None:
        """`memory` in drafts."""
        self._keep = 1 - 1 / memory
        self.drafted, self.accepted = [0.0] * DEEPEST, [0.0] * DEEPEST

    @classmethod
    def from_saved(
        cls, key: Key, drafted: Sequence[float], accepted: Sequence[float], share: float
    ) -> AcceptanceEvidence:
        """The saved evidence, of which only `share` counts."""
        evidence = cls(_POOL_MEMORY if key[3] is None else _CLASS_MEMORY)
        evidence.drafted, evidence.accepted = list(drafted), [min(pair) for pair in zip(accepted, drafted, strict=True)]
        evidence.fade(share)
        return evidence

    def add(self, drafted: int, accepted: int) -> None:
        """Positions after the first rejected one say nothing."""
        keep = self._keep
        for i in range(min(accepted + 1, drafted, DEEPEST)):
            self.drafted[i] = self.drafted[i] * keep + 1
            self.accepted[i] = self.accepted[i] * keep + (i < accepted)

    def fade(self, share: float) -> None:
        self.drafted = [n * share for n in self.drafted]
        self.accepted = [n * share for n in self.accepted]


@dataclass(slots=True)
class Acceptance:
    """Shared by all requests. Engine thread only."""

    deepest: int = DEEPEST
    evidence: dict[Key, AcceptanceEvidence] = field(default_factory=dict)
    _rates: dict[Key, list[float]] = field(default_factory=dict)  # since the evidence last changed

    def rates(self, key: Key) -> list[float]:
        """a_i for positions 1 to `deepest`."""
        rates = self._rates.get(key)
        if rates is None:
            rates = self._rates[key] = self._estimate(key)
        return rates

    def expected_tokens(self, sequence: DecodeSequence, kind: DrafterName, most: int) -> list[float]:
        """Tokens that a step is expected to give this sequence, by how many this drafter drafts: 0 to `most`."""
        own = sequence.evidence.get(kind)
        return expected_by_depth(self.rates(sequence.evidence_key(kind)), 1.0 if own is None else own.odds, most)

    def drafted_count(self, key: Key, position: int) -> float:
        """How often `position`, from 1 on, was drafted lately."""
        evidence = self.evidence.get(key)
        return evidence.drafted[position - 1] if evidence else 0.0

    def learn(self, sequence: DecodeSequence, kind: DrafterName, drafted: int, accepted: int) -> None:
        """One sequence's draft. `rates` follows with `refresh`, once for all sequences of a step."""
        key = sequence.evidence_key(kind)
        sequence.evidence.setdefault(kind, SequenceEvidence()).add(self.rates(key), drafted, accepted)
        for evidence_key, memory in ((key, _CLASS_MEMORY), (_all_texts(key), _POOL_MEMORY)):
            evidence = self.evidence.get(evidence_key)
            if evidence is None:
                evidence = self.evidence[evidence_key] = AcceptanceEvidence(memory)
            evidence.add(drafted, accepted)

    def refresh(self) -> None:
        self._rates.clear()

    def fade(self, key: Key, share: float) -> None:
        """Keeps only a share of the evidence of this class, which is old."""
        for evidence_key in (key, _all_texts(key)):
            if evidence_key in self.evidence:
                self.evidence[evidence_key].fade(share)
        self._rates.clear()

    def forget(self, kind: DrafterName) -> None:
        """Another drafter has this name now."""
        self.evidence = {key: evidence for key, evidence in self.evidence.items() if key[0] != kind}
        self._rates.clear()

    def _estimate(self, key: Key) -> list[float]:
        evidence = self.evidence.get(key)
        if key[3] is None:
            return _shrunk(evidence, [GUESS] * self.deepest, _GUESS_WEIGHT, _POOL_WEIGHT)
        return _shrunk(evidence, self.rates(_all_texts(key)), _CLASS_WEIGHT, _CLASS_WEIGHT)


def _all_texts(key: Key) -> Key:
    return key[0], key[1], key[2], None


def _shrunk(evidence: AcceptanceEvidence | None, general: Sequence[float], first: float, later: float) -> list[float]:
    """Each position's share, with a prior of `first` (at the first position) or `later` drafts at the expected rate:
    the general one, off by as much as this evidence was at the position before, or by less where that was worse,
    because an accepted token is followed by one that is accepted more often than any other."""
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


def expected_by_depth(rates: Sequence[float], odds: float, most: int) -> list[float]:
    """Expected tokens of a step that drafts k = 0 to `most`: 1 + Σ_{j≤k} Π_{i≤j} a_i, each a_i's odds times `odds`.

    Leviathan et al. 2023, arXiv 2211.17192, equation 1, with a rate for each position in place of one for all."""
    out, reach, total = [1.0], 1.0, 1.0
    for rate in rates[:most]:
        reach *= rate * odds / (1 - rate + rate * odds)
        total += reach
        out.append(total)
    return out


_LENGTH_GUESS, _LENGTH_WEIGHT, _LENGTH_MEMORY = 128.0, 4.0, 64.0  # tokens; in answers; answers


class AnswerLengths:
    """Mean length of answers by workload class. Engine thread only."""

    def __init__(self) -> None:
        self._sums: dict[WorkloadClass, tuple[float, float]] = {}  # answers, and their tokens

    def learn(self, sequence: DecodeSequence) -> None:
        """Only an answer of a client that was not broken off says how long answers are."""
        request = sequence.request
        if request.origin is not Origin.CLIENT or sequence.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        answers, tokens = self._sum(request.workload)
        keep = 1 - 1 / _LENGTH_MEMORY
        self._sums[request.workload] = (answers * keep + 1, tokens * keep + sequence.emitted)

    def expected_remaining(self, sequence: DecodeSequence) -> float:
        """Tokens that it is expected to emit yet: the mean length of its class, however many it has emitted, because
        lengths scatter as widely as that (an exponential distribution has no memory); never more than it may, or than
        its peer lets it."""
        answers, tokens = self._sum(sequence.request.workload)
        return min(float(sequence.remaining), sequence.granted, tokens / answers)

    def _sum(self, workload: WorkloadClass) -> tuple[float, float]:
        return self._sums.get(workload, (_LENGTH_WEIGHT, _LENGTH_WEIGHT * _LENGTH_GUESS))
