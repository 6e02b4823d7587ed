"""Money and waiting, reckoned by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import PROMPT_LOOKUP
from draftd.counts import DraftCounts
from draftd.errors import ConfigError
from draftd.fronts.grpc.manifest import in_force
from draftd.settings import load_settings
from draftd_acceptance.cost import (
    CostRates,
    alpha_of,
    break_even,
    expected_tokens,
    measured_costs,
    per_answer,
    speedup,
)
from draftd_acceptance.report.figures import money
from draftd_acceptance.statistics import Interval
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Tick
from tests.fake_ticks import drafted, granted, place, tick
from tests.rig import Rig, autoregressive, request, speculative
from tests.scripted import scripted_models


def test_hourly_cost_adds_machine_price_and_power_price() -> None:
    assert CostRates("$", per_hour=0.6).hourly == 0.6
    assert CostRates("€", watts=50, tariff=0.4).hourly == pytest.approx(0.02)
    assert CostRates("€", per_hour=0.6, watts=50, tariff=0.4).hourly == pytest.approx(0.62)


@pytest.mark.parametrize("rates", [CostRates("$"), CostRates("$", watts=50), CostRates("$", tariff=0.4)])
def test_cost_is_none_without_complete_prices(rates: CostRates) -> None:
    assert rates.hourly is None
    assert per_answer(rates, 10) is None


def test_measured_power_is_used_for_cost_only_when_no_power_is_configured() -> None:
    tariff = CostRates("€", tariff=0.5)
    assert tariff.measuring(20.0).hourly == pytest.approx(0.01)
    assert tariff.measuring(None).hourly is None
    assert CostRates("€", watts=100, tariff=0.5).measuring(20.0).hourly == pytest.approx(0.05)


def test_cost_of_answer_and_of_1000_tokens_is_share_of_hourly_cost() -> None:
    rates = CostRates("$", per_hour=3.6)
    assert per_answer(rates, 25) == pytest.approx(0.025)
    assert money(rates, Interval(100, 90, 110, 1)) == "$0.0100"  # ten seconds, a tenth of a cent each


def test_hourly_price_of_zero_gives_cost_of_zero() -> None:
    assert per_answer(CostRates("$", per_hour=0), 100) == 0


def rates(**settings: str) -> CostRates | None:
    """Returns the cost rates of the manifest of a daemon with these settings."""
    environ = {f"DRAFTD_COST__{name.upper()}": value for name, value in settings.items()}
    return CostRates.from_settings(in_force(load_settings(None, {}, environ), {}))


def test_cost_rates_are_read_from_settings_in_manifest() -> None:
    assert rates(per_hour="0.5", watts="42.5", tariff="0.31", currency="€") == CostRates("€", 0.5, 42.5, 0.31)
    assert rates(per_hour="0") == CostRates("$", 0.0)
    assert rates(tariff="0.4") == CostRates("$", tariff=0.4)
    assert rates() is None
    assert rates(currency="CHF") is None
    assert CostRates.from_settings({}) is None  # from a daemon that has no such settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("PER_HOUR", "-1"), ("PER_HOUR", "nan"), ("WATTS", "many"), ("TARIFF", "1e9"), ("CURRENCY", ""), ("WATTS", "60")],
)
def test_invalid_cost_setting_is_refused_with_setting_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {}, {f"DRAFTD_COST__{name}": value})
    assert refused.value.field.split()[0] == f"cost.{name.lower()}"


ALPHAS = (0.0, 0.3, 0.6, 0.8, 0.95, 1.0)
LENGTHS = (1, 2, 5)
_ROWS, _STEPS = 12, 40


@dataclass(frozen=True)
class Decoded:
    """`tokens` of each of a row's first steps, in order; `counts` of all rounds of all rows."""

    tokens: tuple[int, ...]
    counts: tuple[DraftCounts, ...]

    @property
    def mean(self) -> float:
        return sum(self.tokens) / len(self.tokens)


def deviation(alpha: float, k: int) -> float:
    """The standard deviation of a step's tokens: i with chance alpha^(i-1) (1 - alpha), k + 1 with alpha^k."""
    chances = [alpha ** (i - 1) * (1 - alpha) for i in range(1, k + 1)] + [alpha**k]
    squares = sum(chance * i**2 for i, chance in enumerate(chances, 1))
    return math.sqrt(max(0.0, squares - expected_tokens(alpha, k) ** 2))


def decoded(alpha: float, k: int) -> Decoded:
    """Decodes with the real engine for a fixed number of steps. A fixed number of tokens would favour long steps at the
    end."""
    plan = speculative(k) if k else autoregressive()
    prompts = [[7 + row, 3, 5 * row % 200 + 1] for row in range(_ROWS)]
    # Enough tokens for all steps of every row: six standard deviations above the expectation.
    tokens = math.ceil(_STEPS * expected_tokens(alpha, k) + 6 * math.sqrt(_STEPS) * deviation(alpha, k)) + k + 2
    sinks = Rig(scripted_models(alpha), max_batch=_ROWS).run_together(
        [request(p, plan, max_tokens=tokens) for p in prompts]
    )
    # The first chunk is the prompt's own token.
    steps = tuple(n for sink in sinks for n in sink.chunks[1 : _STEPS + 1])
    assert len(steps) == _ROWS * _STEPS
    return Decoded(steps, tuple(sink.done.stats.counts for sink in sinks))


def four_errors(alpha: float, k: int) -> float:
    return 4 * deviation(alpha, k) / math.sqrt(_ROWS * _STEPS) + 1e-9


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_engine_tokens_per_step_and_speed_up_match_expected_tokens_formula(alpha: float, k: int) -> None:
    found = decoded(alpha, k)
    assert found.mean == pytest.approx(expected_tokens(alpha, k), abs=four_errors(alpha, k))
    # The estimated acceptance is the true one at any block length.
    accepted, rollbacks = sum(c.accepted for c in found.counts), sum(c.rollbacks for c in found.counts)
    error = 4 * math.sqrt(alpha * (1 - alpha) / (accepted + rollbacks))
    assert alpha_of(accepted, rollbacks) == pytest.approx(alpha, abs=error + 1e-9)
    # Each step is one forward of the target, and of the draft as many as it drafts. The speed-up is theirs, at a price
    # each in place of a clock: a target's forward over one token costs 1, and yields one.
    assert all(c.target_forwards == c.steps for c in found.counts)
    assert all(c.draft_forwards == c.drafted for c in found.counts)
    for draft_cost, verify_cost in ((0.3, 1.4), (0.05, 1.0)):
        price = k * draft_cost + verify_cost
        measured = sum(found.tokens) / (_STEPS * _ROWS * price)
        assert measured == pytest.approx(speedup(alpha, k, price), abs=four_errors(alpha, k) / price)


def test_engine_step_without_drafts_yields_one_token() -> None:
    assert decoded(0.8, 0).mean == 1.0


@pytest.mark.parametrize("k", [2, 4])
def test_tolerance_for_expected_tokens_detects_depth_off_by_one_or_acceptance_by_0_1(k: int) -> None:
    """The test's bound is tight enough to catch a block off by one token, or an acceptance off by 0.1."""
    found = decoded(0.8, k).mean
    for alpha, length in ((0.8, k - 1), (0.8, k + 1), (0.7, k), (0.9, k)):
        assert abs(found - expected_tokens(alpha, length)) > four_errors(0.8, k)


def test_expected_tokens_and_speed_up_match_figures_of_leviathan_paper() -> None:
    """Leviathan et al., figure 2 and table 1: gamma 5 at alpha 0.8 expects 3.69 tokens; alpha 0.9 with a draft of no
    cost and gamma 10 gains 6.86 times."""
    assert expected_tokens(0.8, 5) == pytest.approx(3.69, abs=0.005)
    assert speedup(0.9, 10, 1.0) == pytest.approx(6.86, abs=0.005)
    assert [(expected_tokens(0.7, k) - 1) / k for k in (1, 2, 4, 8)] == pytest.approx([0.7, 0.6, 0.44, 0.28], abs=0.01)


def test_cost_formulas_give_exact_values_at_acceptance_0_acceptance_1_and_depth_0() -> None:
    assert [expected_tokens(0.0, k) for k in (0, 1, 6)] == [1, 1, 1]
    assert [expected_tokens(1.0, k) for k in (0, 1, 6)] == [1, 2, 7]
    assert speedup(0.7, 0, 1.0) == 1.0


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(0, 16))
def test_expected_tokens_match_closed_form_of_geometric_series(alpha: float, k: int) -> None:
    closed = k + 1 if alpha > 1 - 1e-6 else (1 - alpha ** (k + 1)) / (1 - alpha)
    assert expected_tokens(alpha, k) == pytest.approx(closed, rel=1e-4)


@settings(deadline=None)
@given(st.integers(1, 12), st.floats(0, 1), st.floats(1, 4))
def test_speed_up_at_break_even_acceptance_is_one(k: int, draft_cost: float, verify_cost: float) -> None:
    cost = k * draft_cost + verify_cost
    found = break_even(k, cost)
    if found is None:
        assert speedup(1.0, k, cost) < 1
    elif found > 0:
        assert speedup(found, k, cost) == pytest.approx(1, abs=1e-6)
    else:
        assert speedup(0.0, k, cost) >= 1 - 1e-9


def test_break_even_is_zero_for_free_drafts_and_none_for_too_costly_drafts() -> None:
    assert break_even(4, 1.0) == 0.0
    assert break_even(4, 5.5) is None
    assert break_even(1, 1.5) == pytest.approx(0.5)


def test_acceptance_estimate_is_none_if_no_drafted_token_was_accepted_or_rejected() -> None:
    assert alpha_of(0, 0) is None
    assert alpha_of(0, 3) == 0.0


def plain(seconds: float, steps: int = 20, arm: Arm = AUTOREGRESSIVE) -> Tick:
    counts = DraftCounts(steps=steps, emitted=steps, target_forwards=steps, verify_seconds=steps * seconds)
    return tick(place(arm.id), granted=granted(arm), counts=counts)


def block(arm: Arm, draft: float, verify: float, *, rate: float = 0.010, warm_up: bool = False) -> Tick:
    """A tick of ten blocks and three steps without a draft, at `rate` seconds each."""
    k = arm.block_length
    counts = drafted(
        k, drafts=10, accepted=k * 5, plain=3, draft_seconds=10 * k * draft, verify_seconds=10 * verify + 3 * rate
    )
    return tick(place(arm.id, warm_up=warm_up), granted=granted(arm), counts=counts)


def test_step_costs_are_medians_over_undrafted_and_draft_model_requests_sent_one_by_one() -> None:
    costs = measured_costs(
        [
            *(plain(s) for s in (0.009, 0.010, 0.080)),
            *(block(Arm(4), d, v) for d, v in ((0.001, 0.012), (0.002, 0.013), (0.003, 0.050))),
            block(Arm(2), 0.002, 0.011),
            # At other prices: another drafter, several at a time, a warm-up, an answer that failed.
            block(Arm(4, PROMPT_LOOKUP), 9.0, 9.0),
            block(Arm(4, concurrency=4), 9.0, 9.0),
            block(Arm(6), 9.0, 9.0, warm_up=True),
            plain(9.0, arm=Arm(0, None, concurrency=2)),
        ]
    )
    assert costs is not None
    assert costs.autoregressive_seconds == pytest.approx(0.010)
    assert costs.draft_seconds == pytest.approx(0.002)
    assert costs.verify_seconds == {2: pytest.approx(0.011), 4: pytest.approx(0.013)}
    assert costs.draft_cost == pytest.approx(0.2)
    assert [costs.verify_cost(k) for k in (2, 4)] == [pytest.approx(1.1), pytest.approx(1.3)]
    assert speedup(1.0, 4, costs.step_cost(4)) == pytest.approx(5 / (4 * 0.2 + 1.3))


def test_measured_step_costs_are_none_without_both_decoding_modes() -> None:
    assert measured_costs([block(Arm(4), 0.001, 0.012)]) is None
    assert measured_costs([plain(0.010)]) is None
