"""A ladder that lacks drafters: it probes only levels that it can, and no missing one bars the way up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import BUILT_IN_DRAFTERS, DRAFT_HEAD, DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.errors import NotNow, NotServing
from draftd.fallback.probes import ProbeVerdict
from tests.fake_engine import INFO, Answering
from tests.unit.fallback.controlled import (
    BOTTOM,
    COOLDOWN,
    LADDER,
    LIGHT,
    LIGHT_DRAFT,
    PLAIN,
    TOP,
    Controlled,
    tell_and_resolve,
)
from tests.unit.fallback.probing import FULL, SOON, at, probe_runner
from tests.unit.fallback.probing import LIGHT as LOOKUP
from tests.unit.fallback.probing import PLAIN as NOTHING

WHY = "no draft model is loaded"
LOOKUP_ALONE = replace(INFO, drafters=(PROMPT_LOOKUP,), refused_drafters={DRAFT_MODEL: WHY})
NONE_AT_ALL = replace(INFO, drafters=(), refused_drafters={DRAFT_MODEL: WHY})


def without_draft(*drafters: DrafterName, **settings: object) -> Controlled:
    controlled = Controlled(**settings)
    controlled.engine.drafters = drafters
    controlled.runner.unlearn()
    return controlled


def test_probe_of_a_level_with_missing_drafter_is_refused_with_the_reason() -> None:
    with probe_runner(Answering(info=LOOKUP_ALONE)) as (runner, told):
        for ask in (lambda: runner.probe(FULL), lambda: runner.probe(FULL, learn=True), runner.canaries):
            with pytest.raises(NotNow, match=f"no probe of the fallback level full: its drafts are unavailable: {WHY}"):
                ask()
        assert runner.probe(LOOKUP).result(SOON).verdict is not ProbeVerdict.FAILED
    assert [level for level, *_ in told.probes] == [LOOKUP.kind]
    assert told.runs == []


def test_canaries_at_autoregressive_level_run_at_the_lowest_available_drafting_level() -> None:
    only_draft = replace(INFO, drafters=(DRAFT_MODEL,))
    with probe_runner(Answering(info=only_draft), ladder=at(NOTHING)) as (runner, told):
        assert runner.canaries().result(SOON).verdict is ProbeVerdict.GOOD
    assert [level for level, *_ in told.runs] == [LADDER[1].kind]
    none = probe_runner(Answering(info=NONE_AT_ALL), ladder=at(NOTHING))
    with none as (runner, _), pytest.raises(NotNow, match="prompt_lookup is not configured"):
        runner.canaries()


def test_ladder_with_missing_drafter_starts_no_probes_or_canaries_until_available() -> None:
    controlled = without_draft(PROMPT_LOOKUP, canary_period_seconds=COOLDOWN)
    assert controlled.until(10 * COOLDOWN) == TOP
    assert (controlled.runner.probed, controlled.runner.learnt, controlled.runner.tested) == ([], [], 0)
    controlled.engine.drafters = tuple(BUILT_IN_DRAFTERS)
    controlled.until(12 * COOLDOWN)
    assert controlled.runner.learnt
    assert controlled.runner.tested


@pytest.mark.parametrize("drafters", [(), (PROMPT_LOOKUP,)], ids=["none", "lookup alone"])
def test_ladder_steps_up_without_a_probe_past_levels_with_missing_drafter(drafters: tuple[DrafterName, ...]) -> None:
    controlled = without_draft(*drafters)
    tell_and_resolve(controlled, PLAIN, hard=True)
    assert controlled.position == BOTTOM
    assert controlled.until(20 * COOLDOWN) == TOP
    assert controlled.runner.probed == [LADDER[LIGHT]] * len(drafters)
    last = controlled.journal.latest(1)[0]
    assert (last.cause, last.evidence) == ("recovered", f"its drafter is not there ({WHY})")
    assert WHY in str(controlled.controller.state().signal)


def test_fallback_step_up_to_a_level_with_missing_drafter_still_waits_the_full_time() -> None:
    controlled = without_draft(PROMPT_LOOKUP)
    tell_and_resolve(controlled, LIGHT_DRAFT, hard=True)
    assert controlled.position == LIGHT
    assert controlled.until(2 * COOLDOWN - 5) == LIGHT
    assert controlled.until(2 * COOLDOWN + 5) == LIGHT - 1
    assert controlled.runner.probed == []


def test_probe_on_demand_picks_a_level_whose_drafter_is_available() -> None:
    controlled = without_draft(PROMPT_LOOKUP)
    controlled.controller.hold(PLAIN, 1000.0)
    probe = controlled.controller.probe()
    controlled.controller.tick()
    controlled.controller.tick()
    assert probe.result(0).level == LADDER[LIGHT]


def test_fallback_state_lists_missing_drafters_only_while_the_engine_serves() -> None:
    controlled = without_draft(PROMPT_LOOKUP)
    controlled.at(1)
    assert controlled.controller.state().missing == {DRAFT_MODEL: WHY}
    controlled.engine.not_serving = NotServing("the model is being loaded", retry_after=1.0)
    controlled.at(2)
    assert controlled.controller.state().missing == {}


def test_level_of_a_missing_draft_model_is_probed_with_the_draft_head_and_keeps_its_baseline() -> None:
    engine = Answering(info=replace(INFO, draft_model=None, drafters=(DRAFT_HEAD, PROMPT_LOOKUP)))
    with probe_runner(engine) as (runner, _):
        report = runner.probe(FULL, learn=True).result(SOON)
        assert (report.verdict, report.level) == (ProbeVerdict.GOOD, FULL)
        assert set(runner.baselines.drafters) == {DRAFT_HEAD}
        assert runner.canaries().result(SOON).verdict is ProbeVerdict.GOOD
    assert {request.plan.drafter for request in engine.asked} == {None, DRAFT_HEAD}
    assert set(engine.lent) == {DRAFT_HEAD}


def test_ladder_of_a_missing_draft_model_lacks_nothing_if_a_draft_head_drafts() -> None:
    controlled = without_draft(DRAFT_HEAD, PROMPT_LOOKUP)
    controlled.at(1)
    assert controlled.controller.state().missing == {}
