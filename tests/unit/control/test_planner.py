"""The planner evaluates the flag in the request's context."""

from __future__ import annotations

from draftd.core import (
    BUILT_IN_DRAFTERS,
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DepthMode,
    FallbackLevel,
    ModelInfo,
    ModePreference,
    WorkloadClass,
)
from draftd.fallback.journal import Journal, Subject
from draftd.fallback.ladder import rungs
from draftd.planning.flag_format import FlagResolution
from draftd.planning.plan import FlagContext, Wish
from draftd.planning.planner import FixedFlag, PlanAsk, Planner, Standing

LADDER = rungs(4, (3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))
MODEL = ModelInfo("m", "d", 4096, 256, tuple(BUILT_IN_DRAFTERS), "", 0, 0, "cpu")


class Recording(FixedFlag):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[FlagContext] = []

    def evaluate(self, context: FlagContext) -> FlagResolution:
        self.asked.append(context)
        return super().evaluate(context)


def test_the_flag_is_asked_with_model_workload_and_caller() -> None:
    flag = Recording()
    plan = Planner(flag, LADDER[1:]).plan(PlanAsk(Wish(), WorkloadClass.CODE, "me"), MODEL)
    assert flag.asked == [FlagContext("m", WorkloadClass.CODE, "me")]
    assert (plan.mode, plan.max_draft_tokens, plan.drafter) == (DecodeMode.SPECULATIVE, 3, DRAFT_MODEL)


def test_a_flag_that_flips_acts_on_the_next_plan() -> None:
    flag = FixedFlag(True)
    planner = Planner(flag, LADDER[1:])
    assert planner.plan(PlanAsk(Wish()), MODEL).max_draft_tokens == 3
    flag.value = False
    assert planner.plan(PlanAsk(Wish()), MODEL).mode is DecodeMode.AUTOREGRESSIVE


def test_the_flag_is_evaluated_even_where_the_caller_has_decided() -> None:
    flag = Recording()
    Planner(flag, LADDER[1:]).plan(PlanAsk(Wish(ModePreference.AUTOREGRESSIVE)), MODEL)
    assert len(flag.asked) == 1


def test_the_level_is_full_for_no_reason_until_it_is_set() -> None:
    planner = Planner(FixedFlag(), LADDER[1:])
    assert planner.standing == Standing(0, "")


def test_a_level_acts_on_the_next_plan_and_its_cause_is_in_the_journal() -> None:
    journal = Journal()
    planner = Planner(FixedFlag(), LADDER, journal=journal)
    assert planner.move(2, "drift", "0.31 in two windows")
    plan = planner.plan(PlanAsk(Wish()), MODEL)
    assert (plan.max_draft_tokens, plan.level, planner.ceiling.depth) == (2, FallbackLevel.SHORT_BLOCK, 2)
    assert planner.move(4, "memory")
    assert planner.plan(PlanAsk(Wish()), MODEL).mode is DecodeMode.AUTOREGRESSIVE
    assert planner.standing == Standing(4, "memory")
    told = [(t.number, t.subject, t.previous, t.current, t.cause, t.evidence) for t in journal.latest(5)]
    assert told == [
        (1, Subject.LEVEL, "full", "short_block 2", "drift", "0.31 in two windows"),
        (2, Subject.LEVEL, "short_block 2", "autoregressive", "memory", ""),
    ]


def test_the_level_that_is_in_force_already_keeps_its_first_cause() -> None:
    journal = Journal()
    planner = Planner(FixedFlag(), LADDER, journal=journal)
    planner.move(3, "first")
    assert not planner.move(3, "second")
    assert planner.standing.cause == "first"
    assert len(journal.latest(5)) == 1


def test_it_stands_where_an_earlier_run_stood_and_that_is_no_transition() -> None:
    journal = Journal()
    planner = Planner(FixedFlag(), LADDER, journal=journal)
    planner.restore(2, "drift")
    assert planner.standing == Standing(2, "drift")
    assert planner.plan(PlanAsk(Wish()), MODEL).max_draft_tokens == 2
    assert journal.latest(5) == ()


def test_depth_is_chosen_as_the_daemon_says_at_every_level() -> None:
    for mode in DepthMode:
        planner = Planner(FixedFlag(), LADDER, depth_mode=mode)
        assert planner.depth_mode is mode
        for rung in range(len(LADDER) - 1):
            planner.restore(rung, "")
            assert planner.plan(PlanAsk(Wish()), MODEL).depth_mode is mode
