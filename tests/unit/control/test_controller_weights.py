"""Holds, and weights that have to come before a step up: what waits, what is given up."""

from __future__ import annotations

from draftd.errors import ModelLoadError
from draftd.fallback.journal import Subject
from draftd.fallback.leases import Applied
from draftd.fallback.reports import Verdict
from tests.unit.control.steered import (
    BOTTOM,
    DWELL,
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
    Steered,
)
from tests.unit.control.told import hold, notice, release, tell, tell_and_resolve


def test_a_hold_outranks_everything_and_its_end_lets_the_ladder_go_on() -> None:
    steered = Steered()
    hold(steered, SHORT_BLOCK, 500.0)
    assert steered.rung == SHORT
    assert steered.engine.lowered == []  # running requests keep their plans
    assert steered.controller.state().hold is not None
    assert steered.controller.readings().held
    assert steered.until(3 * DWELL) == SHORT
    assert steered.examiner.probed == []  # nothing would come of it
    assert tell(steered, notice(PLAIN, hard=True)) == [Applied.ACCEPTED]
    assert steered.until(499) == SHORT
    assert steered.until(501) == BOTTOM
    assert [cause for _, _, cause in steered.told] == ["hold", "release", "alert"]
    assert steered.journal.latest(3)[0].evidence == "an operator's word, until 2027-01-15 08:08:20 UTC"


def test_a_hold_of_a_higher_level_waits_for_the_weights() -> None:
    steered = Steered()
    tell(steered, notice(PLAIN, hard=True))
    assert steered.engine.held == frozenset()
    steered.engine.slow = True
    hold(steered, FULL)
    assert steered.rung == BOTTOM
    steered.engine.load()
    assert steered.at(2) == TOP
    assert steered.told[-1] == ("autoregressive", "full", "hold")
    assert release(steered) is True
    assert steered.rung == BOTTOM  # the alert still fires
    assert release(steered) is False


def test_a_hold_of_the_level_in_force_is_in_the_journal_too() -> None:
    steered = Steered()
    hold(steered, FULL)
    release(steered)
    assert steered.told == [("full", "full", "hold"), ("full", "full", "release")]
    assert steered.telemetry.transitions == []
    assert {transition.subject for transition in steered.journal.latest(2)} == {Subject.LEVEL}


def test_a_drafter_that_cannot_be_loaded_keeps_the_ladder_where_it_is() -> None:
    steered = Steered()
    tell_and_resolve(steered, PLAIN, hard=True)
    steered.engine.failure = ModelLoadError("the folder is empty")
    steered.examiner.verdicts[LADDER[LIGHT]] = Verdict.BAD
    assert steered.until(10 * DWELL) == BOTTOM
    asked = [done for done in steered.trace.done if "draft_model" in done]
    assert 1 <= len(asked) <= 10  # once a dwell
    assert steered.engine.held == frozenset()
    steered.engine.failure = None
    assert steered.until(20 * DWELL) == TOP


def test_weights_that_never_come_are_given_up_and_let_go_of() -> None:
    steered = Steered()
    tell_and_resolve(steered, PLAIN, hard=True)
    steered.engine.slow = True
    hold(steered, FULL)
    steered.until(200)
    assert steered.rung == BOTTOM
    assert steered.trace.done[-1] == "keep "


def test_an_alert_while_the_weights_come_ends_the_climb() -> None:
    steered = Steered()
    tell_and_resolve(steered, LIGHT_DRAFT, hard=True)
    steered.engine.slow = True
    steered.until(2 * DWELL + 5)
    assert steered.rung == LIGHT
    assert steered.trace.done[-1] == "keep draft_model,prompt_lookup"
    tell(steered, notice(LIGHT_DRAFT, starts_at=START + 9))
    assert steered.trace.done[-1] == "keep prompt_lookup"
    steered.engine.load()
    assert steered.until(4 * DWELL) == LIGHT


def test_weights_that_were_on_their_way_before_a_step_down_are_asked_for_anew() -> None:
    steered = Steered()
    tell_and_resolve(steered, LIGHT_DRAFT, hard=True)
    steered.engine.slow = True
    steered.until(2 * DWELL + 5)
    assert steered.trace.done[-1] == "keep draft_model,prompt_lookup"
    tell_and_resolve(steered, PLAIN, hard=True, starts_at=START + 9)
    steered.engine.load()
    steered.examiner.verdicts[LADDER[LIGHT]] = Verdict.BAD  # so that it climbs to where it was climbing before
    assert steered.until(6 * DWELL) == BOTTOM
    assert steered.trace.done[-1] == "keep draft_model"
    steered.engine.load()
    assert steered.at(steered.now + 1) == SHORTER
