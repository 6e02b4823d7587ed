"""What speculation is expected to gain, from the acceptance and from what drafting and verifying cost on this machine.

Leviathan et al. 2023 (arXiv 2211.17192), theorems 3.8 and 3.11, with one thing made real: there a verification costs as
much as one token decoded; here it costs what was measured, and more for longer blocks. `alpha` is the chance that a
drafted token is accepted, where those before it were; `k` the tokens drafted a round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from draftd.acceptance.arms import AUTOREGRESSIVE, Arm
from draftd.acceptance.figures import usable
from draftd.acceptance.ticks import Tick
from draftd.errors import FieldError

VerifyCost = Mapping[int, float] | Callable[[int], float]
"""v(k): what one pass over k drafted tokens and the one before them costs, in autoregressive rounds."""


def expected_tokens(alpha: float, k: int) -> float:
    """Of one round: (1 - alpha^(k+1)) / (1 - alpha), the target's own token counted."""
    _check(alpha, k)
    return float(sum(alpha**i for i in range(k + 1)))


def speedup(alpha: float, k: int, draft_cost: float, verify_cost: VerifyCost) -> float:
    """Tokens a second over those of autoregressive decoding. `draft_cost` is c: of one drafted token, in autoregressive
    rounds. Raises FieldError where `verify_cost` is a mapping that says nothing of such blocks."""
    return expected_tokens(alpha, k) / _round_cost(k, draft_cost, verify_cost)


def break_even(k: int, draft_cost: float, verify_cost: VerifyCost) -> float | None:
    """The acceptance from which on speculation pays; None where it never does."""
    cost = _round_cost(k, draft_cost, verify_cost)
    if cost <= 1:
        return 0.0
    if cost > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):  # expected tokens grow with alpha
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < cost else (low, middle)
    return high


def alpha_of(accepted: int, rollbacks: int) -> float | None:
    """The acceptance that blocks of whatever length had: each accepted token is a success, each rollback a failure, and
    what is drafted past a rejection was never tried. None where nothing was."""
    tried = accepted + rollbacks
    return accepted / tried if tried else None


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured, medians over requests. `draft_seconds` is of one drafted token, `verify_seconds` of one drafted round
    by its block length; None and empty where nothing was drafted."""

    autoregressive_seconds: float
    draft_seconds: float | None
    verify_seconds: Mapping[int, float]

    @property
    def draft_cost(self) -> float | None:
        """c, in autoregressive rounds."""
        return None if self.draft_seconds is None else self.draft_seconds / self.autoregressive_seconds

    @property
    def verify_costs(self) -> Mapping[int, float]:
        """v(k), in autoregressive rounds; v(0) is 1."""
        return {0: 1.0} | {k: seconds / self.autoregressive_seconds for k, seconds in self.verify_seconds.items()}


def measured_costs(ticks: Sequence[Tick]) -> Costs | None:
    """Of one greedy request at a time with the draft model: other drafters and batches have other prices. None without
    autoregressive requests."""
    plain = _rounds(ticks)
    if not plain:
        return None
    autoregressive = statistics.median(plain)
    drafting: list[float] = []
    verifying: dict[int, list[float]] = {}
    for tick in ticks:
        length = tick.granted.max_draft_tokens if tick.granted is not None else 0
        c = tick.counts
        if not usable(tick) or not length or tick.place.arm != Arm(length).id or not c.drafts:
            continue
        drafting.append(c.draft_seconds / c.drafted)
        # Rounds without a draft are among them: the one that ends the prompt, and those that the daemon tries.
        seconds = (c.verify_seconds - (c.rounds - c.drafts) * autoregressive) / c.drafts
        verifying.setdefault(length, []).append(max(0.0, seconds))
    return Costs(
        autoregressive,
        statistics.median(drafting) if drafting else None,
        {k: statistics.median(verifying[k]) for k in sorted(verifying)},
    )


def _rounds(ticks: Sequence[Tick]) -> list[float]:
    """Seconds of an autoregressive round, by request."""
    return [
        tick.counts.verify_seconds / tick.counts.rounds
        for tick in ticks
        if usable(tick) and tick.place.arm == AUTOREGRESSIVE.id and tick.counts.rounds and tick.counts.verify_seconds
    ]


def _round_cost(k: int, draft_cost: float, verify_cost: VerifyCost) -> float:
    if callable(verify_cost):
        return k * draft_cost + verify_cost(k)
    if k not in verify_cost:
        raise FieldError("k", k, f"a block length that was measured: {', '.join(map(str, sorted(verify_cost)))}")
    return k * draft_cost + verify_cost[k]


def _check(alpha: float, k: int) -> None:
    if not 0 <= alpha <= 1:
        raise FieldError("alpha", alpha, "0 to 1")
    if k < 0:
        raise FieldError("k", k, "0 or more")
