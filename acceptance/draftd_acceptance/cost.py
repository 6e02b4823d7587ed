"""The cost of tokens and answers in money and waiting time, and the gain that speculation should have on this machine.

The gain is by Leviathan et al. 2023 (arXiv 2211.17192), theorems 3.8 and 3.11, with one change: there a verification
costs as much as one token decoded; here it costs what was measured, and more for longer blocks. `alpha` is the chance
that a drafted token is accepted, given that those before it were; `k` the tokens drafted a step.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Tick, usable

_UNSET = "unset"  # as a manifest spells it


@dataclass(frozen=True, slots=True)
class CostRates:
    """The machine's costs: `per_hour` in `currency`, `watts` at a `tariff` for the kilowatt-hour, or both. None is
    unknown and not counted."""

    currency: str
    per_hour: float | None = None
    watts: float | None = None
    tariff: float | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> CostRates | None:
        """Reads a manifest's settings; None if they name no price."""
        texts = {name: settings.get(f"cost.{name}", _UNSET) for name in ("per_hour", "watts", "tariff")}
        prices = {name: float(text) for name, text in texts.items() if text != _UNSET}
        rates = cls(settings.get("cost.currency", "$"), **prices)
        return None if rates.per_hour is None and rates.tariff is None else rates

    def measuring(self, watts: float | None) -> CostRates:
        """Returns the rates with the measured power, unless the settings give one."""
        return replace(self, watts=watts) if self.watts is None else self

    @property
    def hourly(self) -> float | None:
        """The machine's known costs an hour, summed; None if none is known."""
        energy = None if self.watts is None or self.tariff is None else self.watts / 1000 * self.tariff
        parts = [part for part in (self.per_hour, energy) if part is not None]
        return sum(parts) if parts else None


def per_answer(rates: CostRates, seconds: float) -> float | None:
    """Returns the cost of an answer that takes `seconds` on a machine that does nothing else."""
    return None if rates.hourly is None else rates.hourly / 3600 * seconds


def expected_tokens(alpha: float, k: int) -> float:
    """Returns the tokens of one step, the target's own included: (1 - alpha^(k+1)) / (1 - alpha)."""
    return float(sum(alpha**i for i in range(k + 1)))


def speedup(alpha: float, k: int, step_cost: float) -> float:
    """Returns tokens a second over those of autoregressive decoding. `step_cost` is k·c + v(k) in autoregressive steps:
    k drafted tokens, and one pass of the target over them and the token before them."""
    return expected_tokens(alpha, k) / step_cost


def break_even(k: int, step_cost: float) -> float | None:
    """Returns the acceptance above which speculation pays; None if it never does."""
    if step_cost > k + 1:
        return None
    parts = 1 << 40  # expected tokens rise with acceptance: find the first part that reaches the cost
    return bisect_left(range(parts), step_cost, key=lambda part: expected_tokens(part / parts, k)) / parts


def alpha_of(accepted: int, rollbacks: int) -> float | None:
    """Returns the acceptance over blocks of any length: accepted tokens are successes, rollbacks failures, and tokens
    after a rejection were never tried. None if none was tried."""
    tried = accepted + rollbacks
    return accepted / tried if tried else None


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs, as medians over requests. `draft_seconds` is for one drafted token; `verify_seconds` for one
    drafted step, by block length."""

    autoregressive_seconds: float
    draft_seconds: float
    verify_seconds: Mapping[int, float]

    @property
    def draft_cost(self) -> float:
        """c, in autoregressive steps."""
        return self.draft_seconds / self.autoregressive_seconds

    def verify_cost(self, k: int) -> float:
        """v(k), in autoregressive steps."""
        return self.verify_seconds[k] / self.autoregressive_seconds

    def step_cost(self, k: int) -> float:
        return k * self.draft_cost + self.verify_cost(k)


def measured_costs(ticks: Sequence[Tick]) -> Costs | None:
    """Returns the costs of single greedy requests with the draft model; other drafters and batches cost differently.
    None without such requests, or without autoregressive ones."""
    counted = [tick for tick in ticks if usable(tick)]
    plain = [tick.counts for tick in counted if tick.place.arm == AUTOREGRESSIVE.id]
    steps = [counts.verify_seconds / counts.steps for counts in plain if counts.steps and counts.verify_seconds]
    if not steps:
        return None
    autoregressive = statistics.median(steps)
    drafting: list[float] = []
    verifying: dict[int, list[float]] = {}
    for tick in counted:
        length, c = tick.granted.max_draft_tokens if tick.granted is not None else 0, tick.counts
        if not length or tick.place.arm != Arm(length).id or not c.drafts:
            continue
        drafting.append(c.draft_seconds / c.drafted)
        # Subtract steps without a draft: the one that ends the prompt, and the daemon's trial steps.
        seconds = (c.verify_seconds - (c.steps - c.drafts) * autoregressive) / c.drafts
        verifying.setdefault(length, []).append(max(0.0, seconds))
    if not drafting:
        return None
    verify = {k: statistics.median(verifying[k]) for k in sorted(verifying)}
    return Costs(autoregressive, statistics.median(drafting), verify)
