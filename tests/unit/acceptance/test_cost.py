"""Money and waiting, reckoned by hand."""

from __future__ import annotations

import pytest

from draftd.acceptance.cost import CostRates, per_answer, per_thousand_tokens, time_to_useful_answer
from draftd.errors import ConfigError
from draftd.fronts.grpc.manifest import in_force
from draftd.settings import load_settings


def test_an_hour_costs_what_the_machine_and_its_power_do() -> None:
    assert CostRates("$", per_hour=0.6).hourly == 0.6
    assert CostRates("€", watts=50, tariff=0.4).hourly == pytest.approx(0.02)
    assert CostRates("€", per_hour=0.6, watts=50, tariff=0.4).hourly == pytest.approx(0.62)


@pytest.mark.parametrize("rates", [CostRates("$"), CostRates("$", watts=50), CostRates("$", tariff=0.4)])
def test_what_is_not_known_costs_nothing_that_could_be_said(rates: CostRates) -> None:
    assert rates.hourly is None
    assert per_thousand_tokens(rates, 100) is None
    assert per_answer(rates, 10) is None


def test_power_that_was_measured_stands_in_for_power_that_was_not_set() -> None:
    tariff = CostRates("€", tariff=0.5)
    assert tariff.measuring(20.0).hourly == pytest.approx(0.01)
    assert tariff.measuring(None).hourly is None
    assert CostRates("€", watts=100, tariff=0.5).measuring(20.0).hourly == pytest.approx(0.05)


def test_tokens_and_answers_are_shares_of_the_hour() -> None:
    rates = CostRates("$", per_hour=3.6)
    assert per_thousand_tokens(rates, 100) == pytest.approx(0.01)  # ten seconds, a tenth of a cent each
    assert per_answer(rates, 25) == pytest.approx(0.025)
    assert per_thousand_tokens(rates, 0) is None


def test_free_is_a_price_too() -> None:
    assert per_thousand_tokens(CostRates("$", per_hour=0), 100) == 0


def test_time_to_a_useful_answer_is_the_sum_of_its_parts() -> None:
    found = time_to_useful_answer(load=3, queue=0.5, prefill=0.25, tokens=128, rate=64, network=0.01)
    assert found == pytest.approx(3 + 0.5 + 0.25 + 2 + 0.01)


def rates(**settings: str) -> CostRates | None:
    """As a manifest of a daemon with these settings gives them."""
    environ = {f"DRAFTD_COST__{name.upper()}": value for name, value in settings.items()}
    return CostRates.from_settings(in_force(load_settings(None, {}, environ), {}))


def test_prices_come_through_a_manifest() -> None:
    assert rates(per_hour="0.5", watts="42.5", tariff="0.31", currency="€") == CostRates("€", 0.5, 42.5, 0.31)
    assert rates(per_hour="0") == CostRates("$", 0.0)
    assert rates(tariff="0.4") == CostRates("$", tariff=0.4)
    assert rates() is None
    assert rates(currency="CHF") is None
    assert CostRates.from_settings({}) is None  # of a daemon that has no such settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("PER_HOUR", "-1"), ("PER_HOUR", "nan"), ("WATTS", "many"), ("TARIFF", "1e9"), ("CURRENCY", ""), ("WATTS", "60")],
)
def test_a_price_that_cannot_be_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {}, {f"DRAFTD_COST__{name}": value})
    assert refused.value.field.split()[0] == f"cost.{name.lower()}"
