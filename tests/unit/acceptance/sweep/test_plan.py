"""Which arms a daemon is measured in, one knob at a time, and what is said of those that it cannot be."""

from __future__ import annotations

from draftd.acceptance.options import SweepOptions
from draftd.acceptance.sweep.plan import SweepPlan, plan_sweep
from draftd.acceptance.ticks import Arm
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP
from tests.unit.acceptance.sweep.conftest import model

DRAFT, LIGHT, LOOKUP = (
    DRAFT_MODEL,
    LIGHT_DRAFT_MODEL,
    PROMPT_LOOKUP,
)
ALL = SweepOptions()


def ids(plan: SweepPlan) -> list[str]:
    return [arm.id for arm in plan.arms]


def test_one_knob_at_a_time_from_the_base() -> None:
    plan = plan_sweep(ALL, model(DRAFT, LIGHT, LOOKUP), 8)
    assert ids(plan) == [
        "ar", "k2", "k3", "k4", "k6", "auto6", "k4-light_draft_model", "k4-prompt_lookup",
        "ar-t0.8", "k4-t0.8", "ar-x2", "k4-x2", "ar-x4", "k4-x4",
    ]  # fmt: skip
    assert plan.left_out == {}
    base = Arm(4)
    for arm in plan.arms:
        if arm.speculative and not arm.automatic:
            knobs = [
                arm.block_length != base.block_length,
                arm.drafter != base.drafter,
                arm.temperature != 0,
                arm.concurrency != 1,
            ]
            assert sum(knobs) <= 1
        assert arm.baseline in plan.arms  # there is something to measure it against


def test_a_daemon_that_allows_less_than_asked() -> None:
    plan = plan_sweep(ALL, model(DRAFT, max_draft_tokens=3), 2)
    assert ids(plan) == ["ar", "k2", "k3", "auto3", "ar-t0.8", "k3-t0.8", "ar-x2", "k3-x2"]
    most = "the daemon drafts 3 tokens a step at most (engine.max_draft_tokens)"
    together = "the daemon decodes 2 requests together at most (engine.max_batch)"
    assert plan.left_out == {"k4": most, "k6": most, "ar-x4": together, "k3-x4": together}


def test_where_nothing_drafts_only_the_autoregressive_arms_are_left() -> None:
    plan = plan_sweep(ALL, model(reason="there is no draft model", max_draft_tokens=4))
    assert ids(plan) == ["ar", "ar-t0.8", "ar-x2", "ar-x4"]
    assert set(plan.left_out) == {"k2", "k3", "k4", "k6", "auto4", "k4-t0.8", "k4-x2", "k4-x4"}
    assert set(plan.left_out.values()) == {"the daemon does not speculate: there is no draft model"}


def test_without_a_draft_model_the_first_drafter_that_there_is_takes_its_place() -> None:
    plan = plan_sweep(ALL, model(LOOKUP, reason="no draft model is loaded"))
    assert ids(plan)[:5] == ["ar", *(f"k{k}-prompt_lookup" for k in (2, 3, 4, 6))]
    assert plan.left_out == {"k4": "the daemon offers no draft_model: no draft model is loaded"}


def test_a_drafter_that_was_asked_for_and_is_not_there_is_said() -> None:
    asked = SweepOptions(drafters=(DRAFT_MODEL, LIGHT_DRAFT_MODEL))
    described = model(DRAFT, LOOKUP)
    described.light_draft_reason = "none is configured"
    plan = plan_sweep(asked, described)
    assert plan.left_out == {"k4-light_draft_model": "the daemon offers no light_draft_model: none is configured"}
    assert "k4-prompt_lookup" not in ids(plan)


def test_the_autoregressive_arm_is_measured_asked_or_not() -> None:
    plan = plan_sweep(SweepOptions(block_lengths=(3,), block_length=3, concurrency=(), temperatures=()), model(DRAFT))
    assert ids(plan) == ["ar", "k3", "auto3"]


def test_more_requests_at_a_time_than_prompts_are_left_out() -> None:
    plan = plan_sweep(SweepOptions(groups=("short_control",), concurrency=(8, 9)), model(DRAFT))
    assert {"ar-x8", "k4-x8"} < set(ids(plan))
    assert plan.left_out == dict.fromkeys(("ar-x9", "k4-x9"), "there are 8 prompts, and each is asked once at a time")


def test_the_plan_as_it_lies_in_the_run() -> None:
    plan = plan_sweep(ALL, model(DRAFT, max_draft_tokens=4)).frozen(12)
    assert plan["left_out"] == [
        {"arm": "k6", "reason": "the daemon drafts 4 tokens a step at most (engine.max_draft_tokens)"}
    ]
    assert plan["requests"] == 12
    assert SweepOptions.from_plan(plan) == ALL
    # Of prompts that changed the checksum is named before a page of text is.
    assert sorted(plan).index("prompt_checksums") < sorted(plan).index("prompts")
