"""Which requests the guard hears of."""

from __future__ import annotations

import pytest

from draftd.control.intake import Ended, Intake
from draftd.core import DraftCounts, FinishReason, Origin, Outcome, RequestStats
from tests.unit.control.steered import a_request

DRAFTED = DraftCounts(rounds=10, drafts=10, accepted=20, rollbacks=5, break_even_tokens=5.0)


def ended(counts: DraftCounts = DRAFTED, lowered: str = "") -> Outcome:
    return Outcome(FinishReason.STOP, RequestStats(1, 0.0, counts=counts), lowered=lowered)


def test_a_request_that_drafted_by_its_plan_is_heard_of() -> None:
    intake = Intake(clock=lambda: 7.0)
    request = a_request(arrival=3.0)
    intake.on_finish(request, ended())
    assert intake.take() == [Ended(7.0, 3.0, request.plan, request.workload, 20, 5, 10, 5.0)]
    assert intake.take() == []


@pytest.mark.parametrize(
    ("origin", "outcome"),
    [
        (Origin.CLIENT, ended(lowered="ladder: memory")),
        (Origin.CLIENT, ended(DraftCounts())),
        (Origin.PROBE, ended()),
        (Origin.CANARY, ended()),
    ],
    ids=["lowered on its way", "not drafted", "a probe", "a canary"],
)
def test_one_that_says_nothing_of_its_plans_rung_is_not(origin: Origin, outcome: Outcome) -> None:
    intake = Intake()
    intake.on_finish(a_request(origin=origin), outcome)
    assert intake.take() == []
