"""The strategy for a request, through the planner: its demand, the flag, settings, the link, and measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan, FinishReason, ModePreference, WorkloadClass
from draftd.counts import DraftCounts
from draftd.engine.remote.verifier_link import LinkState, RemoteModel
from draftd.errors import RemoteDown, RemoteUnavailable
from draftd.fallback.ladder import Ladder, ladder_levels
from draftd.model_info import ModelInfo
from draftd.outcome import Outcome, RequestStats
from draftd.planning.planner import FlagContext, Planner, RequestedPlan
from draftd.planning.router import EngineFigures, Router
from draftd.settings import CostSettings, RemoteSettings
from draftd.strategies import QualityClass, RemoteCounts, RemoteEstimate, RemoteLevel, RemoteMode, Strategy
from tests.fake_fallback import FixedFlag

MODEL = ModelInfo("m", "d", 4096, 256, (DRAFT_MODEL, PROMPT_LOOKUP), 0, 0, "cpu")
THEIRS = RemoteModel("big", "f", 2048, 256, 8, shared_tokenizer=True, step_seconds=0.03, prefill_seconds=0.001)
UP = LinkState(up=True, model=THEIRS, round_trip=0.015)
OTHER = replace(UP, model=replace(THEIRS, shared_tokenizer=False, difference="token 7 is 'a' here and 'b' there"))
PAYS = RemoteEstimate(RemoteMode.STEPS, 4, 1, {RemoteMode.STREAM: 33.0, RemoteMode.STEPS: 50.0})
PROFESSIONAL = QualityClass.PROFESSIONAL


def planner(
    link: Callable[[], LinkState] | LinkState = UP,
    *,
    flag: FixedFlag | None = None,
    remote: dict[str, Any] | None = None,
    **more: Any,
) -> Planner:
    settings = RemoteSettings(**{"enabled": True, "target": "localhost:1", **(remote or {})})
    router = Router(
        settings,
        CostSettings(remote_per_token=0.001),
        link=(lambda: link) if isinstance(link, LinkState) else link,
        engine=lambda: EngineFigures(step=0.01, remote=dict.fromkeys(WorkloadClass, PAYS)),
        **more,
    )
    ladder = ladder_levels(4, (2,), DRAFT_MODEL, (PROMPT_LOOKUP,))
    return Planner(flag or FixedFlag(), Ladder(ladder), router=router)


def planned(by: Planner, context: FlagContext | None = None, **wish: Any) -> DecodePlan:
    return by.plan(RequestedPlan(**wish), context or FlagContext("m", prompt_tokens=10), MODEL, 100)


def test_daemon_without_a_remote_plans_local_and_refuses_strategy_remote() -> None:
    ladder = Ladder(ladder_levels(4, (2,), DRAFT_MODEL, (PROMPT_LOOKUP,)))
    plan = planned(alone := Planner(FixedFlag(), ladder), strategy=Strategy.AUTO)
    assert (plan.strategy, plan.reason) == (Strategy.LOCAL, "flag: on (default variant)")
    with pytest.raises(RemoteUnavailable, match="remote.enabled is false") as refused:
        planned(alone, strategy=Strategy.REMOTE)
    assert refused.value.grpc_status == "FAILED_PRECONDITION"


def test_request_for_professional_quality_class_plans_speculative_strategy_with_reason() -> None:
    by = planner()
    assert planned(by).strategy is Strategy.LOCAL
    plan = planned(by, quality=PROFESSIONAL)
    assert plan.strategy is Strategy.SPECULATIVE
    assert "; strategy: auto: speculative, " in plan.reason
    assert plan.reason.startswith("flag: on (default variant)")


@pytest.mark.parametrize(
    ("wish", "link", "refusal", "said"),
    [
        ({"strategy": Strategy.SPECULATIVE}, OTHER, RemoteUnavailable, "another tokenizer: token 7"),
        ({"strategy": Strategy.REMOTE}, LinkState(why="refused", retry_after=3.0), RemoteDown, r"reached \(refused\)"),
        ({"quality": PROFESSIONAL}, LinkState(retry_after=3.0), RemoteDown, "local is standard"),
        (
            {"strategy": Strategy.SPECULATIVE, "preference": ModePreference.AUTOREGRESSIVE},
            UP,
            RemoteUnavailable,
            "request: autoregressive",
        ),
    ],
)
def test_unavailable_strategy_or_quality_is_refused_with_its_reason(
    wish: dict[str, Any], link: LinkState, refusal: type[RemoteUnavailable], said: str
) -> None:
    with pytest.raises(refusal, match=said) as refused:
        planned(planner(link), **wish)
    assert type(refused.value) is refusal
    assert refused.value.retry_after == (3.0 if refusal is RemoteDown else None)


@pytest.mark.parametrize(
    ("remote", "setting"),
    [({"local_callers": ("ann",)}, "remote.local_callers"), ({"local_workloads": ("code",)}, "remote.local_workloads")],
)
def test_requests_of_configured_local_callers_or_workloads_stay_local(remote: dict[str, Any], setting: str) -> None:
    by = planner(remote=remote, flag=FixedFlag(strategy=Strategy.REMOTE))
    mine = FlagContext("m", WorkloadClass.CODE, "ann", 10)
    assert planned(by, mine).strategy is Strategy.LOCAL
    assert planned(by, FlagContext("m", WorkloadClass.CHAT, "bob", 10)).strategy is Strategy.REMOTE
    with pytest.raises(RemoteUnavailable, match=setting):
        planned(by, mine, strategy=Strategy.REMOTE)


def test_request_that_needs_the_local_target_is_not_routed_to_the_remote() -> None:
    by = planner(flag=FixedFlag(strategy=Strategy.REMOTE))
    assert planned(by, local_only="prompt_logprobs: own").strategy is Strategy.LOCAL
    for strategy in (Strategy.REMOTE, Strategy.SPECULATIVE):
        with pytest.raises(
            RemoteUnavailable, match=f"strategy {strategy}, which is not available: prompt_logprobs: own"
        ):
            planned(by, strategy=strategy, local_only="prompt_logprobs: own")


def test_router_relays_text_if_the_remote_has_another_tokenizer() -> None:
    by = planner(OTHER, flag=FixedFlag(strategy=Strategy.REMOTE))
    plan = planned(by)
    assert (plan.strategy, by.router.relays_text(plan.strategy)) == (Strategy.REMOTE, True)
    assert not planner().router.relays_text(Strategy.REMOTE)
    assert (
        by.plan(RequestedPlan(token_ids_only="logprobs of this model"), FlagContext("m"), MODEL).strategy
        is Strategy.LOCAL
    )


def test_prompt_over_the_remote_context_is_refused_for_strategy_remote() -> None:
    with pytest.raises(RemoteUnavailable, match="no room in the remote's context of 2048"):
        planned(planner(), FlagContext("m", prompt_tokens=2048), strategy=Strategy.REMOTE)


def test_remote_ladder_level_limits_plans_to_streaming_or_local() -> None:
    streaming = planner(allowed=lambda: RemoteLevel.STREAMING)
    assert planned(streaming, quality=PROFESSIONAL).strategy is Strategy.REMOTE
    assert planned(streaming, strategy=Strategy.SPECULATIVE).strategy is Strategy.REMOTE, "the same text, streamed"
    with pytest.raises(RemoteDown, match="draftd level"):
        planned(planner(allowed=lambda: RemoteLevel.LOCAL), quality=PROFESSIONAL)


def test_request_demanding_remote_strategy_or_quality_may_not_fall_back_to_local_decoding() -> None:
    by = planner()
    assert by.local_allowed(RequestedPlan())
    assert by.local_allowed(RequestedPlan(strategy=Strategy.AUTO, quality=QualityClass.STANDARD))
    assert not by.local_allowed(RequestedPlan(quality=PROFESSIONAL))
    assert not by.local_allowed(RequestedPlan(strategy=Strategy.SPECULATIVE))


def finished(tokens: int, seconds: float, failed_over: str = "") -> Outcome:
    counts = DraftCounts(emitted=tokens)
    stats = RequestStats(20, 0.0, scheduled=0.0, prefilled=0.2, first_token=0.2, first_chunk_tokens=1, counts=counts)
    stats.last_token = stats.finished = 0.2 + seconds
    stats.remote = RemoteCounts(tokens=tokens)
    return Outcome(FinishReason.LENGTH, stats, failed_over=failed_over)


def test_router_estimates_follow_recent_answers_and_forget_old_ones() -> None:
    now = 0.0
    by = planner(clock=lambda: now)
    local, remote = (planned(by, strategy=one) for one in (Strategy.LOCAL, Strategy.REMOTE))
    assert by.router.expected_tokens(WorkloadClass.CODE, None) == 256
    assert by.router.expected_tokens(WorkloadClass.CODE, 100) == 100
    for plan in (local, remote):
        by.router.learn_answer(plan, WorkloadClass.CODE, finished(51, 0.5))
    by.router.learn_answer(
        remote, WorkloadClass.CODE, finished(4096, 0.1, failed_over="gone")
    )  # says nothing of either
    assert by.router.expected_tokens(WorkloadClass.CODE, 100) == pytest.approx(51)
    rows = by.route(RequestedPlan(), FlagContext("m", WorkloadClass.CODE, prompt_tokens=100), 100).ways
    assert [way.estimate.tokens_per_second for way in rows[:2] if way.estimate] == pytest.approx([100, 100])
    assert rows[0].estimate is not None
    assert rows[0].estimate.prefill == pytest.approx(100 * 0.2 / 20)
    now = 1000.0
    rows = by.route(RequestedPlan(), FlagContext("m", WorkloadClass.CODE, prompt_tokens=100), 100).ways
    assert [way.estimate.measured for way in rows if way.estimate] == [False, False, False]
