"""The cost and quality of an answer, here and at the remote daemon. Pure.

An answer decoded here pays for seconds of the engine, at the machine's price per hour plus its power, divided among the
answers decoded together; and for each token. An answer decoded at the remote daemon pays for each token, for the
request's time, and for its share of the target's time in forwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from draftd.core import DecodePlan
from draftd.outcome import Outcome
from draftd.settings import CostSettings
from draftd.strategies import QualityClass, Strategy, Verifier

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class AnswerPrice:
    """The price and quality class of one answer. `costs`: those that are known, in `currency`, by the daemon that is
    paid."""

    costs: Mapping[Verifier, float] = field(default_factory=dict)
    currency: str = ""
    quality: QualityClass | None = None

    @property
    def cost(self) -> float | None:
        """The sum of the known costs; None if none is known."""
        return _sum(self.costs.values())


class PriceList(CostSettings):
    """The settings `cost.*`. A price of None is not known and not counted."""

    def with_measured_power(self, watts: float | None) -> PriceList:
        """Returns the prices with the measured power, unless one is set."""
        return self.model_copy(update={"watts": watts}) if self.watts is None else self

    @property
    def hourly(self) -> float | None:
        """The price of an hour of this machine, with its power; None if neither is known."""
        energy = None if self.watts is None or self.tariff is None else self.watts / 1000 * self.tariff
        return _sum((self.per_hour, energy))

    @property
    def known(self) -> bool:
        """Whether the remote daemon has a price: only then can money decide. This machine, if it has no price, then
        costs nothing."""
        return any(
            price is not None for price in (self.remote_per_hour, self.remote_per_target_hour, self.remote_per_token)
        )

    def local_cost(self, seconds: float, tokens: float) -> float | None:
        """Returns the cost of so many seconds of this machine's engine, and of tokens that its model chose."""
        price = _sum((_times(self.hourly, seconds / _HOUR), _times(self.per_token, tokens)))
        return 0.0 if price is None and self.known else price

    def remote_cost(self, seconds: float, target_seconds: float, tokens: float) -> float | None:
        """Returns the cost of a request at the remote daemon. `seconds`: its whole duration there. `target_seconds`:
        its share of the target model's time in forwards. `tokens`: those that the target chose. None if the remote
        daemon has no price."""
        return _sum(
            (
                _times(self.remote_per_hour, seconds / _HOUR),
                _times(self.remote_per_target_hour, target_seconds / _HOUR),
                _times(self.remote_per_token, tokens),
            )
        )


def answer_price(
    prices: PriceList, plan: DecodePlan, outcome: Outcome, local: QualityClass, remote: QualityClass | None
) -> AnswerPrice:
    """Returns the price of an answer. `local`, `remote`: the classes of the two models. The answer has the lowest class
    of the models that chose its tokens."""
    stats = outcome.stats
    emitted, remote_tokens = stats.counts.emitted, 0 if stats.remote is None else stats.remote.tokens
    is_remote = plan.strategy is not Strategy.LOCAL
    also_local = not is_remote or bool(outcome.failed_over)
    prefill = 0.0 if is_remote else stats.prefill_seconds or 0.0
    costs = {
        Verifier.LOCAL: prices.local_cost(
            prefill + stats.engine_seconds, max(0, emitted - remote_tokens) if also_local else 0
        )
    }
    if is_remote:
        remote_seconds = 0.0 if stats.finished is None or stats.scheduled is None else stats.finished - stats.scheduled
        if also_local:
            remote_seconds *= remote_tokens / max(1, emitted)
        target_seconds = 0.0 if stats.remote is None else stats.remote.target_seconds
        costs[Verifier.REMOTE] = prices.remote_cost(remote_seconds, target_seconds, remote_tokens)
    classes = [quality for quality, chose in ((remote, remote_tokens or not also_local), (local, also_local)) if chose]
    priced = {verifier: cost for verifier, cost in costs.items() if cost is not None}
    return AnswerPrice(
        priced,
        prices.currency,
        min((quality_class for quality_class in classes if quality_class is not None), default=local),
    )


def money(currency: str, amount: float | None) -> str:
    """Formats an amount for people: two significant digits, no exponent."""
    if amount is None:
        return "no price"
    if amount >= 100:
        return f"{currency}{amount:.0f}"
    text = f"{amount:.2g}"
    if "e" in text:
        text = f"{amount:.{int(text.rpartition('-')[2]) + 1}f}".rstrip("0")
    return f"{currency}{text}"


def _times(price: float | None, amount: float) -> float | None:
    return None if price is None else price * amount


def _sum(parts: Iterable[float | None]) -> float | None:
    amounts = [part for part in parts if part is not None]
    return sum(amounts) if amounts else None
