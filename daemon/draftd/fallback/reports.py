"""What a probe and a run of the canaries found: values, and nothing that judges them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from draftd.fallback.ladder import Rung


class Verdict(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"
    TOO_FEW_SAMPLES = "too_few_samples"
    FAILED = "failed"  # it could not be run: no statement about the draft


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """One probe of `rung`. `acceptance` is accepted / (accepted + rollbacks), `speedup` over autoregressive decoding;
    None where nothing was drafted. `reason` says what the verdict rests on. Seconds are wall time."""

    rung: Rung
    verdict: Verdict
    reason: str
    acceptance: float | None = None
    speedup: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a greedy speculative text leaves the autoregressive one: `at` counts its tokens from 0. `logit_gap` is the
    target's logit of the autoregressive token there less that of the other; None where it could not be measured."""

    at: int
    logit_gap: float | None


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    """One canary, run both ways. `complaint` says which check was not passed, empty where both were."""

    id: str
    passed_autoregressive: bool
    passed_speculative: bool
    divergence: Divergence | None = None
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """One run of all canaries."""

    verdict: Verdict
    reason: str
    outcomes: tuple[CanaryOutcome, ...] = ()
    seconds: float = 0.0

    @property
    def score_autoregressive(self) -> float:
        """Share that passed; 0 where none ran."""
        return sum(o.passed_autoregressive for o in self.outcomes) / max(1, len(self.outcomes))

    @property
    def score_speculative(self) -> float:
        return sum(o.passed_speculative for o in self.outcomes) / max(1, len(self.outcomes))

    @property
    def divergences(self) -> int:
        return sum(o.divergence is not None for o in self.outcomes)
