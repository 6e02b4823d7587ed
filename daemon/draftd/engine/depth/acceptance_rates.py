"""How likely a drafted token stands: by position, kind of text and drafter, and for each row.

The probability that position i stands, where all before it do, is counted with a memory that fades, so that it follows
drift. Little evidence is completed from more general: a class of text from all texts of the same drafter, a position
from the one before it, the first from a guess. A row's own text differs from its class: the ratio of its odds to those
of its class is learnt as it goes, and begins at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftd.core import DecodeRequest, DrafterName, WorkloadClass
from draftd.engine.depth.costs import DEEPEST

GUESS = 0.6  # of the first position, before anything was drafted

_CLASS_MEMORY, _POOL_MEMORY, _ROW_MEMORY = 150.0, 300.0, 40.0  # trials
_GUESS_WEIGHT, _POOL_WEIGHT, _CLASS_WEIGHT, _ROW_WEIGHT = 2.0, 4.0, 4.0, 8.0  # in trials, of what is more general
_DISAPPOINTED = 0.5  # of what a position fell short by, the share that the next is thought to: what follows is easier
_LEAST, _MOST = 0.005, 0.995

Key = tuple[DrafterName, bool, bool, WorkloadClass | None]  # who drafts; sampled, seeded; of what (None: all texts)


class Evidence:
    """Trials and how many stood, by position, with a memory of so many trials."""

    __slots__ = ("_keep", "stood", "tried")

    def __init__(self, memory: float) -> None:
        self._keep = 1 - 1 / memory
        self.tried, self.stood = [0.0] * DEEPEST, [0.0] * DEEPEST

    def add(self, drafted: int, accepted: int) -> None:
        keep, tried, stood = self._keep, self.tried, self.stood
        for i in range(min(accepted + 1, drafted, DEEPEST)):
            tried[i] = tried[i] * keep + 1
            stood[i] = stood[i] * keep + (i < accepted)

    @classmethod
    def of(cls, key: Key, tried: Sequence[float], stood: Sequence[float], share: float) -> Evidence:
        """As it was kept before, of which this share still counts."""
        evidence = cls(_POOL_MEMORY if key[3] is None else _CLASS_MEMORY)
        evidence.tried, evidence.stood = list(tried), [min(s, t) for s, t in zip(stood, tried, strict=True)]
        evidence.fade(share)
        return evidence

    def fade(self, share: float) -> None:
        """Only this share of it still counts."""
        self.tried = [n * share for n in self.tried]
        self.stood = [n * share for n in self.stood]


@dataclass(slots=True)
class RowEvidence:
    """What a row's own drafts of one drafter say beside its class: trials that stood and fell, and were expected to."""

    stood: float = 0.0
    fell: float = 0.0
    expected_stood: float = 0.0
    expected_fell: float = 0.0

    def add(self, rates: Sequence[float], drafted: int, accepted: int) -> None:
        keep = 1 - 1 / _ROW_MEMORY
        for i in range(min(accepted + 1, drafted, len(rates))):
            self.stood = self.stood * keep + (i < accepted)
            self.fell = self.fell * keep + (i >= accepted)
            self.expected_stood = self.expected_stood * keep + rates[i]
            self.expected_fell = self.expected_fell * keep + 1 - rates[i]

    def fade(self, share: float) -> None:
        self.stood *= share
        self.fell *= share
        self.expected_stood *= share
        self.expected_fell *= share

    @property
    def odds(self) -> float:
        """By which the class's odds are multiplied."""
        w = _ROW_WEIGHT / 2
        return ((self.stood + w) / (self.expected_stood + w)) * ((self.expected_fell + w) / (self.fell + w))


@dataclass(slots=True)
class Acceptance:
    """Shared by all requests. Engine thread only."""

    deepest: int = DEEPEST
    evidence: dict[Key, Evidence] = field(default_factory=dict)
    _rates: dict[Key, list[float]] = field(default_factory=dict)

    def rates(self, key: Key) -> list[float]:
        """Of positions 1 to `deepest`: the probability that a token stands where all before it do."""
        rates = self._rates.get(key)
        if rates is None:
            rates = self._rates[key] = self._estimate(key)
        return rates

    def trials(self, key: Key, position: int) -> float:
        """How often position `position`, from 1 on, was tried lately."""
        evidence = self.evidence.get(key)
        return evidence.tried[position - 1] if evidence else 0.0

    def learn(self, key: Key, row: RowEvidence, drafted: int, accepted: int) -> None:
        """One row's draft. What `rates` says follows with `settle`: once a round, not once a row."""
        row.add(self.rates(key), drafted, accepted)
        for one, memory in ((key, _CLASS_MEMORY), (_pool(key), _POOL_MEMORY)):
            evidence = self.evidence.get(one)
            if evidence is None:
                evidence = self.evidence[one] = Evidence(memory)
            evidence.add(drafted, accepted)

    def settle(self) -> None:
        self._rates.clear()

    def fade(self, key: Key, share: float) -> None:
        """What is known of this class is old: only a share of it still counts."""
        for one in (key, _pool(key)):
            if one in self.evidence:
                self.evidence[one].fade(share)
        self._rates.clear()

    def forget(self, kind: DrafterName) -> None:
        """Another drafter stands behind this name."""
        self.evidence = {key: found for key, found in self.evidence.items() if key[0] != kind}
        self._rates.clear()

    def _estimate(self, key: Key) -> list[float]:
        evidence = self.evidence.get(key)
        if key[3] is None:
            return _shrunk(evidence, [GUESS] * self.deepest, _GUESS_WEIGHT, _POOL_WEIGHT)
        general = self.rates(_pool(key))
        return general if evidence is None else _shrunk(evidence, general, _CLASS_WEIGHT, _CLASS_WEIGHT)


def key_of(kind: DrafterName, request: DecodeRequest) -> Key:
    """What drafts of this request by this drafter are evidence of."""
    sampling = request.sampling
    return kind, not sampling.greedy, not sampling.greedy and sampling.seed is not None, request.workload


def _pool(key: Key) -> Key:
    return key[0], key[1], key[2], None


def _shrunk(evidence: Evidence | None, general: Sequence[float], first: float, later: float) -> list[float]:
    """Each position's share, completed with the weight of `first` (at the first) or `later` trials of what is
    expected: the general rate, off by as much as this evidence was at the position before, or less where that was
    worse: a token that stands is followed by one that does more often than any other."""
    if evidence is None:
        return list(general)
    out: list[float] = []
    off, weight = 0.0, first
    for tried, stood, rate in zip(evidence.tried, evidence.stood, general, strict=False):
        expected = _bounded(rate + off)
        found = _bounded((stood + weight * expected) / (tried + weight))
        out.append(found)
        off, weight = max(found - rate, _DISAPPOINTED * (found - rate)), later
    return out


def _bounded(rate: float) -> float:
    return _LEAST if rate < _LEAST else _MOST if rate > _MOST else rate


def emitted(rates: Sequence[float], odds: float, most: int) -> list[float]:
    """Expected tokens of a round in which a row drafts 0 to `most`: 1 + Σ_j Π_{i≤j} a_i, with the row's odds."""
    out, reach, total = [1.0], 1.0, 1.0
    for i in range(most):
        rate = rates[i]
        rate = rate * odds / (1 - rate + rate * odds)
        reach *= rate
        total += reach
        out.append(total)
    return out
