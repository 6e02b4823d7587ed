"""Holds, and weights that must load before a step up: waiting for them and giving up."""

from __future__ import annotations

from draftd.errors import ModelLoadError
from draftd.fallback.leases import Applied
from draftd.fallback.probes import ProbeVerdict
from draftd.journal import Subject
from tests.unit.fallback.controlled import (
    BOTTOM,
    COOLDOWN,
    FULL,
    LADDER,
    LIGHT,
    LIGHT_DRAFT,
    PLAIN,
    SHORT,
    SHORT_BLOCK,
    SHORTER,
    START,
    TOP,
    Controlled,
    notice,
    tell,
    tell_and_resolve,
)


def test_operator_hold_overrides_a_critical_alert_until_the_hold_expires() -> None:
    controlled = Controlled()
    controlled.controller.hold(SHORT_BLOCK, 500.0)
    assert controlled.position == SHORT
    assert controlled.engine.lowered == []  # running requests keep their plans
    assert controlled.controller.state().hold is not None
    assert controlled.controller.state().hold is not None
    assert controlled.until(3 * COOLDOWN) == SHORT
    assert controlled.runner.probed == []  # nothing would come of it
    assert tell(controlled, notice(PLAIN, hard=True)) == [Applied.ACCEPTED]
    assert controlled.until(499) == SHORT
    assert controlled.until(501) == BOTTOM
    assert [cause for _, _, cause in controlled.told] == ["hold", "released", "alert"]
    assert controlled.journal.latest(3)[0].evidence == "by an operator, until 2027-01-15 08:08:20 UTC"


def test_operator_hold_of_a_higher_level_waits_until_draft_weights_are_loaded() -> None:
    controlled = Controlled()
    tell(controlled, notice(PLAIN, hard=True))
    assert controlled.engine.held == frozenset()
    controlled.engine.slow = True
    controlled.controller.hold(FULL, None)
    assert controlled.position == BOTTOM
    controlled.engine.load()
    assert controlled.at(2) == TOP
    assert controlled.told[-1] == ("autoregressive", "full", "hold")
    assert controlled.controller.release() is True
    assert controlled.position == BOTTOM  # the alert still fires
    assert controlled.controller.release() is False


def test_operator_hold_of_the_current_fallback_level_is_recorded_in_the_journal() -> None:
    controlled = Controlled()
    controlled.controller.hold(FULL, None)
    controlled.controller.release()
    assert controlled.told == [("full", "full", "hold"), ("full", "full", "released")]
    assert {transition.subject for transition in controlled.journal.latest(2)} == {Subject.LEVEL}


def test_draft_load_failure_prevents_fallback_step_up_and_is_retried_once_per_cooldown() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, PLAIN, hard=True)
    controlled.engine.failure = ModelLoadError("the folder is empty")
    controlled.runner.verdicts[LADDER[LIGHT]] = ProbeVerdict.BAD
    assert controlled.until(10 * COOLDOWN) == BOTTOM
    draft_loads = [done for done in controlled.trace.done if "draft_model" in done]
    assert 1 <= len(draft_loads) <= 10  # once a cooldown
    assert controlled.engine.held == frozenset()
    controlled.engine.failure = None
    assert controlled.until(20 * COOLDOWN) == TOP


def test_draft_weights_that_never_finish_loading_are_given_up_and_released() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, PLAIN, hard=True)
    controlled.engine.slow = True
    controlled.controller.hold(FULL, None)
    controlled.until(200)
    assert controlled.position == BOTTOM
    assert controlled.trace.done[-1] == "keep "


def test_alert_while_draft_weights_load_cancels_the_fallback_step_up() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, LIGHT_DRAFT, hard=True)
    controlled.engine.slow = True
    controlled.until(2 * COOLDOWN + 5)
    assert controlled.position == LIGHT
    assert controlled.trace.done[-1] == "keep draft_model,prompt_lookup"
    tell(controlled, notice(LIGHT_DRAFT, starts_at=START + 9))
    assert controlled.trace.done[-1] == "keep prompt_lookup"
    controlled.engine.load()
    assert controlled.until(4 * COOLDOWN) == LIGHT


def test_draft_load_interrupted_by_a_step_down_is_requested_again_on_step_up() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, LIGHT_DRAFT, hard=True)
    controlled.engine.slow = True
    controlled.until(2 * COOLDOWN + 5)
    assert controlled.trace.done[-1] == "keep draft_model,prompt_lookup"
    tell_and_resolve(controlled, PLAIN, hard=True, starts_at=START + 9)
    controlled.engine.load()
    controlled.runner.verdicts[LADDER[LIGHT]] = ProbeVerdict.BAD  # so that it climbs to where it was climbing before
    assert controlled.until(6 * COOLDOWN) == BOTTOM
    assert controlled.trace.done[-1] == "keep draft_model"
    controlled.engine.load()
    assert controlled.at(controlled.now + 1) == SHORTER
