"""A ladder whose drafters cannot all be had: nothing is tried out that cannot be, and nothing bars the way up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import BUILT_IN_DRAFTERS, DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.errors import NotNow, NotServing
from draftd.fallback.reports import Verdict
from tests.answering import INFO, Answering
from tests.unit.control.examined import FULL, SOON, Standing, examining
from tests.unit.control.examined import LIGHT as LOOKUP
from tests.unit.control.examined import PLAIN as NOTHING
from tests.unit.control.steered import BOTTOM, DWELL, LADDER, LIGHT, LIGHT_DRAFT, PLAIN, TOP, Steered

WHY = "no draft model is loaded"
LOOKUP_ALONE = replace(INFO, drafters=(PROMPT_LOOKUP,), speculation_reason=WHY)
NONE_AT_ALL = replace(INFO, drafters=(), speculation_reason=WHY)


def without_draft(*drafters: DrafterName, **settings: object) -> Steered:
    steered = Steered(**settings)
    steered.engine.drafters, steered.examiner.known = drafters, set()
    return steered


def hold(steered: Steered, level: object, seconds: float) -> None:
    steered.controller._inbox.ask(lambda now: steered.controller._steering.hold(level, seconds, now))  # type: ignore[arg-type]
    steered.controller.tick()


def test_what_cannot_be_drafted_is_not_tried_and_the_model_says_why() -> None:
    with examining(Answering(info=LOOKUP_ALONE)) as (examiner, told):
        for ask in (lambda: examiner.probe(FULL), lambda: examiner.learn(FULL), examiner.canaries):
            with pytest.raises(NotNow, match=f"nothing is drafted at full: {WHY}"):
                ask()
        assert examiner.probe(LOOKUP).result(SOON).verdict is not Verdict.FAILED
    assert [level for level, *_ in told.probes] == [LOOKUP.level]
    assert told.runs == []


def test_from_the_bottom_the_canaries_run_where_something_can_be_drafted() -> None:
    only_draft = replace(INFO, drafters=(DRAFT_MODEL,))
    with examining(Answering(info=only_draft), stands=Standing(NOTHING)) as (examiner, told):
        assert examiner.canaries().result(SOON).verdict is Verdict.GOOD
    assert [level for level, *_ in told.runs] == [LADDER[1].level]
    none = examining(Answering(info=NONE_AT_ALL), stands=Standing(NOTHING))
    with none as (examiner, _), pytest.raises(NotNow, match="prompt_lookup is not configured"):
        examiner.canaries()


def test_nothing_is_tried_unasked_where_nothing_is_drafted() -> None:
    steered = without_draft(PROMPT_LOOKUP, canary_period_seconds=DWELL)
    assert steered.until(10 * DWELL) == TOP
    assert (steered.examiner.probed, steered.examiner.learnt, steered.examiner.tested) == ([], [], 0)
    steered.engine.drafters = tuple(BUILT_IN_DRAFTERS)
    steered.until(12 * DWELL)
    assert steered.examiner.learnt
    assert steered.examiner.tested


@pytest.mark.parametrize("drafters", [(), (PROMPT_LOOKUP,)], ids=["none", "lookup alone"])
def test_a_rung_whose_drafter_cannot_be_had_bars_nobodys_way_up(drafters: tuple[DrafterName, ...]) -> None:
    steered = without_draft(*drafters)
    hold(steered, PLAIN, 10.0)
    assert steered.rung == BOTTOM
    assert steered.until(20 * DWELL) == TOP
    assert steered.examiner.probed == [LADDER[LIGHT]] * len(drafters)
    last = steered.journal.latest(1)[0]
    assert (last.cause, last.evidence) == ("recovered", f"nothing is drafted there ({WHY})")
    assert WHY in steered.controller.state().cause


def test_such_a_rung_is_climbed_to_no_sooner_and_not_while_something_asks_for_less() -> None:
    steered = without_draft(PROMPT_LOOKUP)
    hold(steered, LIGHT_DRAFT, 10.0)
    assert steered.rung == LIGHT
    assert steered.until(2 * DWELL) == LIGHT
    assert steered.until(2 * DWELL + 15) == LIGHT - 1
    assert steered.examiner.probed == []


def test_a_probe_on_demand_is_of_a_rung_that_can_be_had_or_says_why_not() -> None:
    steered = without_draft(PROMPT_LOOKUP)
    hold(steered, PLAIN, 1000.0)
    asked = steered.controller.probe()
    steered.controller.tick()
    steered.controller.tick()
    assert asked.result(0).rung == LADDER[LIGHT]


def test_what_is_absent_is_shown_and_nothing_is_while_nobody_knows() -> None:
    steered = without_draft(PROMPT_LOOKUP)
    steered.at(1)
    assert steered.controller.state().absent == {DRAFT_MODEL: WHY}
    steered.engine.not_serving = NotServing("the model is being loaded", retry_after=1.0)
    steered.at(2)
    assert steered.controller.state().absent == {}
