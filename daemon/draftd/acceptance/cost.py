"""What tokens and answers cost, in money and in waiting. Reported beside throughput, never instead of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_UNSET = "unset"  # as a manifest spells it


@dataclass(frozen=True, slots=True)
class CostRates:
    """What the machine costs: `per_hour` in `currency`, and `watts` at a `tariff` for the kilowatt-hour; either or
    both. What is None is not known and not counted."""

    currency: str
    per_hour: float | None = None
    watts: float | None = None
    tariff: float | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> CostRates | None:
        """From a manifest's settings; None where they name no price."""

        def number(name: str) -> float | None:
            text = settings.get(f"cost.{name}", _UNSET)
            return None if text == _UNSET else float(text)

        rates = cls(settings.get("cost.currency", "$"), number("per_hour"), number("watts"), number("tariff"))
        return None if rates.per_hour is None and rates.tariff is None else rates

    def measuring(self, watts: float | None) -> CostRates:
        """With the power that was measured, where none is set."""
        return replace(self, watts=watts) if self.watts is None else self

    @property
    def hourly(self) -> float | None:
        """Of the machine, all that is known together; None where nothing is."""
        energy = None if self.watts is None or self.tariff is None else self.watts / 1000 * self.tariff
        known = [part for part in (self.per_hour, energy) if part is not None]
        return sum(known) if known else None


def per_thousand_tokens(rates: CostRates, tokens_per_second: float) -> float | None:
    """Of a machine that does nothing else."""
    if rates.hourly is None or tokens_per_second <= 0:
        return None
    return rates.hourly / 3600 * 1000 / tokens_per_second


def per_answer(rates: CostRates, seconds: float) -> float | None:
    """Of one that takes so long, on a machine that does nothing else."""
    return None if rates.hourly is None else rates.hourly / 3600 * seconds


def time_to_useful_answer(
    load: float, queue: float, prefill: float, tokens: float, rate: float, network: float
) -> float:
    """Seconds until there is an answer to use: load + queue + prefill + tokens / rate + network.

    `load` is 0 where the daemon runs already; `rate` is tokens a second while decoding."""
    assert rate > 0, rate
    return load + queue + prefill + tokens / rate + network
