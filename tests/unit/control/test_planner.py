"""The planner evaluates the flag in the request's context."""

from __future__ import annotations

from draftd.control.journal import Journal, Subject
from draftd.control.planner import FixedFlag, FlagContext, PlanAsk, Planner, Standing
from draftd.core import DecodeMode, DrafterKind, FallbackLevel, ModelInfo, ModePreference, WorkloadClass
from draftd.policy.flag import FlagResolution
from draftd.policy.plan import Wish

MODEL = ModelInfo("m", "d", 4096, 256, tuple(DrafterKind), "", 0, 0, "cpu")


class Recording(FixedFlag):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[FlagContext] = []

    def evaluate(self, context: FlagContext) -> FlagResolution:
        self.asked.append(context)
        return super().evaluate(context)


def test_the_flag_is_asked_with_model_workload_and_caller() -> None:
    flag = Recording()
    plan = Planner(flag, max_draft_tokens=3).plan(PlanAsk(Wish(), WorkloadClass.CODE, "me"), MODEL)
    assert flag.asked == [FlagContext("m", WorkloadClass.CODE, "me")]
    assert (plan.mode, plan.max_draft_tokens, plan.drafter) == (DecodeMode.SPECULATIVE, 3, DrafterKind.DRAFT_MODEL)


def test_a_flag_that_flips_acts_on_the_next_plan() -> None:
    flag = FixedFlag(True)
    planner = Planner(flag, max_draft_tokens=3)
    assert planner.plan(PlanAsk(Wish()), MODEL).max_draft_tokens == 3
    flag.value = False
    assert planner.plan(PlanAsk(Wish()), MODEL).mode is DecodeMode.AUTOREGRESSIVE


def test_the_flag_is_evaluated_even_where_the_caller_has_decided() -> None:
    flag = Recording()
    Planner(flag, max_draft_tokens=3).plan(PlanAsk(Wish(ModePreference.AUTOREGRESSIVE)), MODEL)
    assert len(flag.asked) == 1


def test_the_level_is_full_for_no_reason_until_it_is_set() -> None:
    planner = Planner(FixedFlag(), max_draft_tokens=3)
    assert planner.standing == Standing(FallbackLevel.FULL, "")


def test_a_level_acts_on_the_next_plan_and_its_cause_is_in_the_journal() -> None:
    journal = Journal()
    planner = Planner(FixedFlag(), max_draft_tokens=4, journal=journal)
    assert planner.set_level(FallbackLevel.SHORT_BLOCK, "drift")
    plan = planner.plan(PlanAsk(Wish()), MODEL)
    assert (plan.max_draft_tokens, plan.level, planner.ceiling.depth) == (2, FallbackLevel.SHORT_BLOCK, 2)
    assert planner.set_level(FallbackLevel.AUTOREGRESSIVE, "memory")
    assert planner.plan(PlanAsk(Wish()), MODEL).mode is DecodeMode.AUTOREGRESSIVE
    assert planner.standing == Standing(FallbackLevel.AUTOREGRESSIVE, "memory")
    told = [(t.subject, t.previous, t.current, t.cause) for t in journal.latest(5)]
    assert told == [
        (Subject.LEVEL, "full", "short_block", "drift"),
        (Subject.LEVEL, "short_block", "autoregressive", "memory"),
    ]


def test_the_level_that_is_in_force_already_keeps_its_first_cause() -> None:
    journal = Journal()
    planner = Planner(FixedFlag(), max_draft_tokens=4, journal=journal)
    planner.set_level(FallbackLevel.LIGHT_DRAFT, "first")
    assert not planner.set_level(FallbackLevel.LIGHT_DRAFT, "second")
    assert planner.standing.cause == "first"
    assert len(journal.latest(5)) == 1
