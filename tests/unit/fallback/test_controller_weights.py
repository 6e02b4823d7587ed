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


def test_a_hold_outranks_everything_and_its_end_lets_the_ladder_go_on() -> None:
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


def test_a_hold_of_a_higher_level_waits_for_the_weights() -> None:
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


def test_a_hold_of_the_level_in_force_is_in_the_journal_too() -> None:
    controlled = Controlled()
    controlled.controller.hold(FULL, None)
    controlled.controller.release()
    assert controlled.told == [("full", "full", "hold"), ("full", "full", "released")]
    assert {transition.subject for transition in controlled.journal.latest(2)} == {Subject.LEVEL}


def test_a_drafter_that_cannot_be_loaded_keeps_the_ladder_where_it_is() -> None:
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


def test_weights_that_never_come_are_given_up_and_let_go_of() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, PLAIN, hard=True)
    controlled.engine.slow = True
    controlled.controller.hold(FULL, None)
    controlled.until(200)
    assert controlled.position == BOTTOM
    assert controlled.trace.done[-1] == "keep "


def test_an_alert_while_the_weights_come_ends_the_climb() -> None:
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


def test_weights_that_were_on_their_way_before_a_step_down_are_asked_for_anew() -> None:
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
