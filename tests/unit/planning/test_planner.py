"""Flag, wish, ladder, capability: each can only lower the last, and the reason says which did."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from draftd.core import (
    BUILT_IN_DRAFTERS,
    DRAFT_HEAD,
    DRAFT_MODEL,
    LIGHT_DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DepthMode,
    DrafterName,
    FallbackLevel,
    LadderLevel,
    ModePreference,
    WorkloadClass,
)
from draftd.errors import SpeculationUnavailable
from draftd.fallback.ladder import Cause, Ladder, Signal, highest, ladder_levels
from draftd.model_info import ModelInfo
from draftd.planning.flag_file import FlagResolution
from draftd.planning.planner import FlagContext, Planner, RequestedPlan, decide
from tests.fake_fallback import FixedFlag

LADDER = ladder_levels(4, (3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))


ON = FlagResolution("on", True, "STATIC")
OFF = FlagResolution("off", False, "TARGETING_MATCH")
BOTH = (DRAFT_MODEL, PROMPT_LOOKUP)
MODEL = ModelInfo("m", "d", 4096, 256, BOTH, 0, 0, "cpu")
INCAPABLE = replace(MODEL, drafters=(), refused_drafters={DRAFT_MODEL: "cache cannot be trimmed (Mamba)"})
DRAFT, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP


def ceiling(depth: int, level: FallbackLevel = FallbackLevel.FULL, drafter: DrafterName = DRAFT) -> LadderLevel:
    ladder = ladder_levels(depth, (2,), drafter, (LOOKUP,))
    return ladder[highest(ladder, level)]


CEILING = ceiling(4)


class Recording(FixedFlag):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[FlagContext] = []

    def evaluate(self, context: FlagContext) -> FlagResolution:
        self.asked.append(context)
        return super().evaluate(context)


def test_planner_evaluates_the_flag_with_model_workload_and_caller() -> None:
    flag = Recording()
    plan = Planner(flag, Ladder(LADDER[1:])).plan(RequestedPlan(), FlagContext("m", WorkloadClass.CODE, "me"), MODEL)
    assert flag.asked == [FlagContext("m", WorkloadClass.CODE, "me")]
    assert (plan.mode, plan.max_draft_tokens, plan.drafter) == (DecodeMode.SPECULATIVE, 3, DRAFT_MODEL)


def test_flag_change_applies_to_the_next_plan() -> None:
    flag = FixedFlag(True)
    planner = Planner(flag, Ladder(LADDER[1:]))
    assert planner.plan(RequestedPlan(), FlagContext(), MODEL).max_draft_tokens == 3
    flag.value = False
    assert planner.plan(RequestedPlan(), FlagContext(), MODEL).mode is DecodeMode.AUTOREGRESSIVE


def test_planner_evaluates_the_flag_even_if_the_request_sets_the_mode() -> None:
    flag = Recording()
    Planner(flag, Ladder(LADDER[1:])).plan(RequestedPlan(ModePreference.AUTOREGRESSIVE), FlagContext(), MODEL)
    assert len(flag.asked) == 1


def test_plan_uses_the_configured_depth_mode_at_every_ladder_level() -> None:
    for mode in DepthMode:
        ladder = Ladder(LADDER)
        planner = Planner(FixedFlag(), ladder, depth_mode=mode)
        assert planner.depth_mode is mode
        for position in range(len(LADDER) - 1):
            ladder.position = position
            assert planner.plan(RequestedPlan(), FlagContext(), MODEL).depth_mode is mode


def test_ladder_level_change_applies_to_the_next_plan() -> None:
    ladder = Ladder(LADDER)
    planner = Planner(FixedFlag(), ladder)
    assert ladder.move(2, Signal(Cause.ACCEPTANCE_DRIFT, FallbackLevel.SHORT_BLOCK))
    plan = planner.plan(RequestedPlan(), FlagContext(), MODEL)
    assert (plan.max_draft_tokens, plan.level) == (2, FallbackLevel.SHORT_BLOCK)
    assert ladder.move(4, Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE))
    assert planner.plan(RequestedPlan(), FlagContext(), MODEL).mode is DecodeMode.AUTOREGRESSIVE
    assert planner.max_draft_tokens == 4, "the daemon's own, whatever the level"


def test_plan_with_flag_on_speculates_at_the_configured_depth() -> None:
    plan = decide(RequestedPlan(), ON, CEILING, MODEL)
    assert (plan.mode, plan.max_draft_tokens, plan.drafter) == (DecodeMode.SPECULATIVE, 4, DRAFT_MODEL)
    assert (plan.variant, plan.reason, plan.level) == ("on", "flag: on (default variant)", FallbackLevel.FULL)


@pytest.mark.parametrize(
    ("wish", "flag", "allowed", "model", "reason"),
    [
        (RequestedPlan(), OFF, CEILING, MODEL, "flag: off (targeting rule)"),
        (RequestedPlan(ModePreference.AUTOREGRESSIVE), ON, CEILING, MODEL, "request: autoregressive"),
        (RequestedPlan(max_draft_tokens=0), ON, CEILING, MODEL, "request: max_draft_tokens is 0"),
        (RequestedPlan(), ON, ceiling(0), MODEL, "configuration: max_draft_tokens is 0"),
        (RequestedPlan(), ON, ceiling(4, level=FallbackLevel.AUTOREGRESSIVE), MODEL, "ladder: autoregressive"),
        (RequestedPlan(), ON, CEILING, INCAPABLE, "model: cache cannot be trimmed (Mamba)"),
    ],
)
def test_autoregressive_plan_reason_names_the_cause_of_disabled_speculation(
    wish: RequestedPlan, flag: FlagResolution, allowed: LadderLevel, model: ModelInfo, reason: str
) -> None:
    plan = decide(wish, flag, allowed, model)
    assert plan.mode is DecodeMode.AUTOREGRESSIVE
    assert plan.reason == reason
    if wish.preference is ModePreference.AUTO and wish.max_draft_tokens is None:
        with pytest.raises(SpeculationUnavailable, match="demands speculation") as caught:
            decide(RequestedPlan(ModePreference.SPECULATIVE), flag, allowed, model)
        assert reason in caught.value.message


def test_requested_draft_cap_lowers_depth_and_never_raises_the_limit() -> None:
    assert decide(RequestedPlan(max_draft_tokens=2), ON, CEILING, MODEL).max_draft_tokens == 2
    clamped = decide(RequestedPlan(max_draft_tokens=12), ON, CEILING, MODEL)
    assert clamped.max_draft_tokens == 4
    assert clamped.reason == "flag: on (default variant); request: max_draft_tokens 12 lowered to the daemon's 4"


def test_plan_reason_says_the_flag_is_stale_and_why() -> None:
    plan = decide(RequestedPlan(), FlagResolution("on", True, "STALE", "not valid JSON"), CEILING, MODEL)
    assert plan.reason == "flag: on (stale: not valid JSON)"


def test_requested_drafter_that_is_missing_is_not_replaced_by_another() -> None:
    lookup = RequestedPlan(drafter=PROMPT_LOOKUP)
    assert decide(lookup, ON, CEILING, MODEL).drafter == PROMPT_LOOKUP
    only_lookup = replace(MODEL, drafters=(PROMPT_LOOKUP,), refused_drafters={DRAFT_MODEL: "no draft model is loaded"})
    plan = decide(RequestedPlan(drafter=DRAFT_MODEL), ON, CEILING, only_lookup)
    assert plan.mode is DecodeMode.AUTOREGRESSIVE
    assert plan.reason == "request: drafter draft_model is not available (no draft model is loaded)"
    plan = decide(RequestedPlan(), ON, CEILING, only_lookup, depth_mode=DepthMode.FIXED)
    assert plan.reason == "model: no draft model is loaded"
    assert decide(lookup, ON, CEILING, only_lookup).drafter == PROMPT_LOOKUP
    with pytest.raises(SpeculationUnavailable, match="no draft model is loaded"):
        decide(RequestedPlan(ModePreference.SPECULATIVE), ON, CEILING, only_lookup, depth_mode=DepthMode.FIXED)


def test_prompt_lookup_drafts_at_automatic_depth_without_a_draft_model() -> None:
    only_lookup = replace(MODEL, drafters=(PROMPT_LOOKUP,), refused_drafters={DRAFT_MODEL: "no draft model is loaded"})
    for wish in (RequestedPlan(), RequestedPlan(ModePreference.SPECULATIVE)):
        plan = decide(wish, ON, CEILING, only_lookup)
        assert (plan.drafter, plan.depth_mode, plan.alternatives) == (LOOKUP, DepthMode.AUTOMATIC, frozenset())
        assert plan.reason.endswith(
            "no draft model is loaded, so only text that repeats itself is drafted (prompt_lookup)"
        )
    assert decide(RequestedPlan(), ON, ceiling(4, FallbackLevel.AUTOREGRESSIVE), only_lookup).drafter is None


def test_plan_without_a_requested_drafter_uses_the_ladder_level_drafter() -> None:
    assert decide(RequestedPlan(), ON, ceiling(4, drafter=LOOKUP), MODEL).drafter == PROMPT_LOOKUP
    missing = replace(MODEL, drafters=(DRAFT_MODEL,))
    plan = decide(RequestedPlan(), ON, ceiling(4, drafter=LOOKUP), missing)
    assert plan.reason == "model: drafter prompt_lookup is not available"


def test_short_block_level_halves_depth_and_light_draft_uses_prompt_lookup() -> None:
    short = decide(RequestedPlan(), ON, ceiling(4, level=FallbackLevel.SHORT_BLOCK), MODEL)
    assert (short.max_draft_tokens, short.drafter) == (2, DRAFT_MODEL)
    light = decide(RequestedPlan(), ON, ceiling(4, level=FallbackLevel.LIGHT_DRAFT), MODEL)
    assert (light.max_draft_tokens, light.drafter) == (2, PROMPT_LOOKUP)
    no_lookup = replace(MODEL, drafters=(DRAFT_MODEL,))
    assert decide(RequestedPlan(), ON, ceiling(4, level=FallbackLevel.LIGHT_DRAFT), no_lookup).max_draft_tokens == 0


def test_plan_depth_never_exceeds_request_flag_ladder_or_model_limit() -> None:
    caps = (None, 0, 1, 4, 16)
    depths = (0, 1, 4, 16)
    preferences = (ModePreference.AUTO, ModePreference.AUTOREGRESSIVE)
    for preference, cap, depth, level, flag, model in itertools.product(
        preferences, caps, depths, FallbackLevel, (ON, OFF), (MODEL, INCAPABLE)
    ):
        plan = decide(RequestedPlan(preference, cap), flag, ceiling(depth, level), model)
        assert plan.max_draft_tokens <= depth
        assert cap is None or plan.max_draft_tokens <= cap
        forbidden = not flag.value or preference is ModePreference.AUTOREGRESSIVE or model is INCAPABLE
        assert not (forbidden and plan.max_draft_tokens)
        assert plan.reason


def test_light_draft_level_allows_lighter_drafters_and_replaces_heavier() -> None:
    both = replace(MODEL, drafters=(*BOTH, LIGHT_DRAFT_MODEL))
    light = LadderLevel(FallbackLevel.LIGHT_DRAFT, 2, LIGHT_DRAFT_MODEL)
    assert decide(RequestedPlan(drafter=DRAFT), ON, light, both).drafter == LIGHT_DRAFT_MODEL
    assert decide(RequestedPlan(drafter=LOOKUP), ON, light, both).drafter == LOOKUP


def test_depth_mode_is_automatic_unless_daemon_or_request_sets_it() -> None:
    assert decide(RequestedPlan(), ON, CEILING, MODEL).depth_mode is DepthMode.AUTOMATIC
    fixed = DepthMode.FIXED
    assert decide(RequestedPlan(), ON, CEILING, MODEL, depth_mode=fixed).depth_mode is DepthMode.FIXED
    assert decide(RequestedPlan(depth_mode=DepthMode.FIXED), ON, CEILING, MODEL).depth_mode is DepthMode.FIXED
    assert (
        decide(RequestedPlan(depth_mode=DepthMode.AUTOMATIC), ON, CEILING, MODEL, depth_mode=fixed).depth_mode
        is DepthMode.AUTOMATIC
    )


def test_plan_offers_prompt_lookup_as_alternative_at_automatic_depth_only() -> None:
    assert decide(RequestedPlan(), ON, CEILING, MODEL).alternatives == {LOOKUP}
    assert decide(RequestedPlan(max_draft_tokens=2), ON, CEILING, MODEL).alternatives == {LOOKUP}
    assert decide(RequestedPlan(), ON, CEILING, replace(MODEL, drafters=(DRAFT,))).alternatives == frozenset()
    assert decide(RequestedPlan(depth_mode=DepthMode.FIXED), ON, CEILING, MODEL).alternatives == frozenset()


def test_plan_with_a_requested_drafter_has_no_alternative_drafters() -> None:
    assert decide(RequestedPlan(drafter=DRAFT), ON, CEILING, MODEL).alternatives == frozenset()
    assert decide(RequestedPlan(drafter=LOOKUP), ON, CEILING, MODEL).alternatives == frozenset()


def test_plan_has_alternative_drafters_only_at_automatic_depth_without_requested_drafter() -> None:
    heaviest_first = (DRAFT, LIGHT_DRAFT_MODEL, LOOKUP)
    ladder = ladder_levels(4, (3, 2), DRAFT, (LIGHT_DRAFT_MODEL, LOOKUP))
    offered = [frozenset(kinds) for count in range(4) for kinds in itertools.combinations(heaviest_first, count)]
    for level, drafters, named, mode, cap, flag in itertools.product(
        ladder, offered, (None, *BUILT_IN_DRAFTERS), (None, *DepthMode), (None, 0, 1, 16), (ON, OFF)
    ):
        model = replace(MODEL, drafters=tuple(drafters), refused_drafters={} if drafters else {DRAFT: "none"})
        plan = decide(RequestedPlan(max_draft_tokens=cap, drafter=named, depth_mode=mode), flag, level, model)
        assert plan.alternatives <= drafters & {LOOKUP}
        assert plan.drafter not in plan.alternatives
        if plan.alternatives:
            assert plan.drafter == level.drafter
            assert named is None
            assert plan.depth_mode is DepthMode.AUTOMATIC
        if plan.drafter is None:
            assert plan.depth_mode is DepthMode.FIXED


def test_depth_mode_changes_only_depth_mode_and_alternatives_of_a_plan() -> None:
    for level, cap, named in itertools.product(FallbackLevel, (None, 1, 16), (None, *BOTH)):
        plans = [
            decide(RequestedPlan(max_draft_tokens=cap, drafter=named, depth_mode=mode), ON, ceiling(4, level), MODEL)
            for mode in DepthMode
        ]
        assert len({replace(plan, depth_mode=DepthMode.FIXED, alternatives=frozenset()) for plan in plans}) == 1


def test_draft_head_drafts_where_the_ladder_names_a_draft_model_that_is_not_there() -> None:
    only_head = replace(MODEL, draft_model=None, drafters=(DRAFT_HEAD, PROMPT_LOOKUP))
    plan = decide(RequestedPlan(), ON, CEILING, only_head)
    assert (plan.drafter, plan.alternatives) == (DRAFT_HEAD, {PROMPT_LOOKUP})
    named = decide(RequestedPlan(drafter=DRAFT_MODEL), ON, CEILING, only_head)
    assert (named.drafter, named.reason) == (None, "request: drafter draft_model is not available")


def test_plan_carries_the_draft_head_as_an_alternative_of_the_draft_model() -> None:
    both = replace(MODEL, drafters=(DRAFT_MODEL, DRAFT_HEAD, PROMPT_LOOKUP))
    plan = decide(RequestedPlan(), ON, CEILING, both)
    assert (plan.drafter, plan.alternatives) == (DRAFT_MODEL, {DRAFT_HEAD, PROMPT_LOOKUP})
    assert decide(RequestedPlan(), ON, CEILING, both, DepthMode.FIXED).alternatives == frozenset()


def test_requested_draft_head_of_a_model_without_one_is_refused_with_the_reason() -> None:
    plan = decide(RequestedPlan(drafter=DRAFT_HEAD), ON, CEILING, MODEL)
    assert plan.reason == "request: drafter draft_head is not available (the model has no draft head)"
    refused = replace(MODEL, refused_drafters={DRAFT_HEAD: "it lacks fc.weight"})
    plan = decide(RequestedPlan(drafter=DRAFT_HEAD), ON, CEILING, refused)
    assert plan.reason == "request: drafter draft_head is not available (it lacks fc.weight)"
