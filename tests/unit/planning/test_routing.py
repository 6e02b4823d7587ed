"""The choice of a strategy, by table: estimates in, strategy and reason out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DecodeMode, DecodePlan, FallbackLevel, FinishReason
from draftd.counts import DraftCounts
from draftd.outcome import Outcome, RequestStats
from draftd.planning.prices import PriceList, answer_price, money
from draftd.planning.routing import LocalState, Route, RouteRequest, VerifierState, choose
from draftd.strategies import QualityClass, RemoteCounts, RemoteEstimate, RemoteMode, Strategy

DRAFT, STANDARD, PROFESSIONAL = QualityClass
LOCAL, REMOTE, SPECULATIVE = Strategy.LOCAL, Strategy.REMOTE, Strategy.SPECULATIVE

ASKED = RouteRequest(prompt_tokens=100, tokens=100)
HERE = LocalState(STANDARD, step=0.01, prefill=0.001)  # 100 tokens/s: 1.1 s
STREAMS = RemoteEstimate(RemoteMode.STREAM, 0, 0, {RemoteMode.STREAM: 1 / 0.03}, 0.03)
PAYS = replace(
    STREAMS,
    mode=RemoteMode.STEPS,
    depth=7,
    rates={RemoteMode.STREAM: 1 / 0.03, RemoteMode.STEPS: 58.0},
    target_seconds=0.0102,
    draft_seconds=0.0034,
)
THERE = VerifierState(quality=PROFESSIONAL, step=0.03, prefill=0.0005, round_trip=0.015, expected=PAYS)
FREE = PriceList()
PRICED = PriceList(remote_per_target_hour=3.6)  # 0.001 for each second of its target


def taken(
    asked: RouteRequest, local: LocalState = HERE, remote: VerifierState = THERE, prices: PriceList = FREE
) -> Route:
    route = choose(asked, local, remote, prices)
    assert [way.strategy for way in route.ways] == [LOCAL, REMOTE, SPECULATIVE]
    assert sum(way.chosen for way in route.ways) == (route.strategy is not None)
    assert all(way.why for way in route.ways)
    return route


@pytest.mark.parametrize(
    ("asked", "local", "remote", "prices", "way"),
    [
        (ASKED, HERE, THERE, FREE, LOCAL),  # the fastest that is standard
        (replace(ASKED, quality=PROFESSIONAL), HERE, THERE, FREE, SPECULATIVE),
        (replace(ASKED, quality=PROFESSIONAL), HERE, replace(THERE, expected=STREAMS), FREE, REMOTE),  # no draft pays
        (replace(ASKED, quality=PROFESSIONAL), HERE, replace(THERE, expected=None), FREE, REMOTE),  # nothing known yet
        (ASKED, replace(HERE, quality=DRAFT), THERE, FREE, SPECULATIVE),  # without a wish it should be standard
        (ASKED, replace(HERE, quality=DRAFT), VerifierState("down"), FREE, LOCAL),  # and need not
        (replace(ASKED, quality=DRAFT), replace(HERE, quality=DRAFT), THERE, FREE, LOCAL),
        (ASKED, replace(HERE, queue=9), THERE, FREE, SPECULATIVE),
        (ASKED, replace(HERE, load=9), THERE, PRICED, LOCAL),  # it costs nothing
        (replace(ASKED, max_seconds=2), replace(HERE, load=9), THERE, PRICED, SPECULATIVE),
        (replace(ASKED, max_seconds=0.1), HERE, THERE, PRICED, LOCAL),  # none keeps it: the nearest
        (replace(ASKED, quality=PROFESSIONAL, max_cost=1e-9), HERE, THERE, PRICED, SPECULATIVE),
        (replace(ASKED, no_drafts="flag: off", quality=PROFESSIONAL), HERE, THERE, FREE, REMOTE),
        (ASKED, replace(HERE, queue=9), replace(THERE, speculation="another tokenizer"), FREE, REMOTE),
        (ASKED, replace(HERE, queue=9), replace(THERE, measured={REMOTE: 500.0}), FREE, REMOTE),
        (ASKED, replace(HERE, queue=3), replace(THERE, busy=4), FREE, LOCAL),
        (replace(ASKED, only=REMOTE, demanded=True), HERE, THERE, PRICED, REMOTE),
        (replace(ASKED, only=SPECULATIVE), HERE, VerifierState("down"), FREE, LOCAL),  # the flag demands nothing
    ],
)
def test_router_takes_the_best_strategy_within_quality_time_and_price(
    asked: RouteRequest, local: LocalState, remote: VerifierState, prices: PriceList, way: Strategy
) -> None:
    assert taken(asked, local, remote, prices).strategy is way


DOWN = VerifierState("the remote cannot be reached", down=True, retry_after=4.0)


@pytest.mark.parametrize(
    ("asked", "remote", "retry", "said"),
    [
        (
            replace(ASKED, only=REMOTE, demanded=True),
            DOWN,
            4.0,
            "demands strategy remote, which is not available: the remote",
        ),
        (replace(ASKED, quality=PROFESSIONAL), DOWN, 4.0, "local is standard; the remote cannot be reached"),
        (
            replace(ASKED, quality=PROFESSIONAL),
            VerifierState("remote.enabled is false"),
            None,
            "remote.enabled is false",
        ),
        (replace(ASKED, quality=PROFESSIONAL, only=LOCAL), DOWN, None, "quality professional is wanted: local is"),
        (replace(ASKED, only=SPECULATIVE, demanded=True, no_drafts="ladder"), THERE, None, "not available: ladder"),
    ],
)
def test_router_refuses_an_unreachable_strategy_or_quality_with_the_reason(
    asked: RouteRequest, remote: VerifierState, retry: float | None, said: str
) -> None:
    route = taken(asked, remote=remote)
    assert said in route.refusal
    assert (route.strategy, route.down, route.retry_after) == (None, retry is not None, retry)


def test_route_reason_gives_estimate_and_why_other_strategies_lost() -> None:
    route = taken(replace(ASKED, quality=PROFESSIONAL), prices=PRICED)
    said = "speculative, 1.8 s and $0.0011 for professional; local is standard; remote costs $0.003"
    assert route.reason == f"strategy: auto: {said}"
    missed = taken(replace(ASKED, max_seconds=0.1)).reason
    assert "1.1 s is over max_seconds 0.1" in missed
    flagged = taken(replace(ASKED, only=SPECULATIVE), remote=DOWN).reason
    assert flagged.startswith("strategy: flag: local; no strategy speculative: ")


def test_route_estimates_sum_seconds_and_cost_per_strategy() -> None:
    local, remote, speculative = (way.estimate for way in taken(ASKED, prices=PRICED).ways)
    assert local is not None
    assert remote is not None
    assert speculative is not None
    assert local.seconds == pytest.approx(0.1 + 1.0)
    assert (local.cost, local.measured) == (0.0, False)
    assert remote.seconds == pytest.approx(0.05 + 3.0 + 0.015)
    assert remote.cost == pytest.approx(0.001 * (0.05 + 3.0))
    assert speculative.tokens_per_second == PAYS.rate
    assert speculative.cost == pytest.approx(0.001 * (0.05 + 100 * 0.0102))
    drafted = taken(ASKED, prices=PRICED.model_copy(update={"per_hour": 3.6})).way(SPECULATIVE).estimate
    assert drafted is not None
    assert drafted.cost == pytest.approx(speculative.cost + 0.001 * 100 * 0.0034), "drafting here has its price too"


@pytest.mark.parametrize("expected", [STREAMS, None])
def test_speculative_route_without_gain_is_estimated_like_remote_streaming(expected: RemoteEstimate | None) -> None:
    route = taken(ASKED, remote=replace(THERE, expected=expected), prices=PRICED)
    assert route.way(SPECULATIVE).estimate == route.way(REMOTE).estimate


def plan(strategy: Strategy) -> DecodePlan:
    return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test", strategy=strategy)


def outcome(failed_over: str = "", remote: RemoteCounts | None = None) -> Outcome:
    stats = RequestStats(10, 0.0, scheduled=1.0, prefilled=2.0, finished=11.0, engine_seconds=3.0, remote=remote)
    stats.counts = DraftCounts(emitted=100)
    return Outcome(FinishReason.STOP, stats, failed_over=failed_over)


BOTH = PriceList(
    per_hour=3600.0, per_token=0.5, remote_per_hour=36000.0, remote_per_target_hour=360000.0, remote_per_token=0.01
)


@pytest.mark.parametrize(
    ("strategy", "ended", "prices", "cost", "quality"),
    [
        (LOCAL, outcome(), FREE, None, STANDARD),
        (LOCAL, outcome(), PRICED, 0.0, STANDARD),  # one's own machine, beside one that has a price
        (LOCAL, outcome(), BOTH, 1.0 + 3.0 + 50, STANDARD),
        (REMOTE, outcome(remote=RemoteCounts(tokens=100, target_seconds=2.0)), BOTH, 3.0 + 100 + 200 + 1, PROFESSIONAL),
        (SPECULATIVE, outcome("gone", RemoteCounts(tokens=40)), BOTH, 3.0 + 60 * 0.5 + 0.4 * 100 + 0.4, STANDARD),
        (SPECULATIVE, outcome("gone", RemoteCounts()), FREE, None, STANDARD),
    ],
)
def test_answer_price_follows_tokens_time_and_the_verifier_that_served(
    strategy: Strategy, ended: Outcome, prices: PriceList, cost: float | None, quality: QualityClass
) -> None:
    worth = answer_price(prices, plan(strategy), ended, STANDARD, PROFESSIONAL)
    assert (worth.cost, worth.quality) == (None if cost is None else pytest.approx(cost), quality)


def test_route_estimate_leaves_out_an_unmeasured_round_trip() -> None:
    estimate = taken(ASKED, remote=replace(THERE, round_trip=None)).way(REMOTE).estimate
    assert estimate is not None
    assert (estimate.round_trips, estimate.seconds) == (None, pytest.approx(0.05 + 3.0))


def test_money_amounts_are_written_without_exponents() -> None:
    written = [money("$", one) for one in (None, 0.0, 0.00000042, 0.0004, 1.25, 1234.0)]
    assert written == ["no price", "$0", "$0.00000042", "$0.0004", "$1.2", "$1234"]


def test_price_list_uses_measured_power_if_no_wattage_is_set() -> None:
    assert PriceList(tariff=0.5).with_measured_power(20.0).hourly == pytest.approx(0.01)
    assert PriceList(watts=100, tariff=0.5).with_measured_power(20.0).hourly == pytest.approx(0.05)
