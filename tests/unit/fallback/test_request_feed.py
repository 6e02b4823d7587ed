"""The requests that reach the guard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DepthMode, DrafterName, FinishReason, LadderLevel, Origin
from draftd.counts import DraftCounts, StepCounts
from draftd.fallback.signal_feed import FinishedRequest, RequestFeed
from draftd.outcome import Outcome, RequestStats
from tests.unit.fallback.controlled import LADDER, WINDOW, Controlled, a_request

LOOKUP = PROMPT_LOOKUP
DRAFTED = DraftCounts(steps=10, drafts=10, accepted=20, rollbacks=5, break_even_tokens=5.0)


def ended(counts: DraftCounts = DRAFTED, lowered: str = "") -> Outcome:
    return Outcome(FinishReason.STOP, RequestStats(1, 0.0, counts=counts), lowered=lowered)


def requests(intake: RequestFeed) -> list[FinishedRequest]:
    return [one for one in intake.take() if isinstance(one, FinishedRequest)]


def test_request_feed_yields_a_finished_request_once_with_plan_and_counts() -> None:
    intake = RequestFeed(clock=lambda: 7.0)
    request = a_request(arrival=3.0)
    intake.on_finish(request, ended())
    plan = request.plan
    expected = FinishedRequest(7.0, 3.0, plan.level, plan.max_draft_tokens, DRAFT_MODEL, request.workload, DRAFTED)
    assert intake.take() == [expected]
    assert intake.take() == []


def drafted(accepted: int, drafter: DrafterName = DRAFT_MODEL) -> StepCounts:
    return StepCounts(4, accepted, accepted + 1, 4, 0.001, 0.004, 1.5, drafter=drafter)


def test_request_feed_splits_counts_of_one_request_by_drafter() -> None:
    intake = RequestFeed(clock=lambda: 7.0)
    asked = a_request(arrival=3.0)
    plan = replace(asked.plan, depth_mode=DepthMode.AUTOMATIC, alternatives=frozenset({LOOKUP}))
    request = replace(asked, plan=plan)
    counts = DraftCounts()
    for drafter, accepted in ((DRAFT_MODEL, 3), (LOOKUP, 0), (DRAFT_MODEL, 4), (LOOKUP, 1)):
        intake.on_step(request, drafted(accepted, drafter), None)
        counts.add(drafted(accepted))
    intake.on_step(request, StepCounts(0, 0, 1, 0, 0.0, 0.004, parked=True, drafter=LOOKUP), None)
    intake.on_finish(request, ended(counts))
    samples = requests(intake)
    counts_by_drafter = {drafter_counts.drafter: drafter_counts.counts for drafter_counts in samples}
    for drafter, sums in ((plan.drafter, (7, 1, 2, 3.0)), (LOOKUP, (1, 2, 2, 3.0))):
        drafter_counts = counts_by_drafter[drafter]
        assert (
            drafter_counts.accepted,
            drafter_counts.rollbacks,
            drafter_counts.drafts,
            drafter_counts.break_even_tokens,
        ) == sums
    assert all(
        (drafter_counts.level, drafter_counts.max_draft_tokens) == (plan.level, plan.max_draft_tokens)
        for drafter_counts in samples
    )
    intake.on_finish(request, ended(counts))  # another request of the same id: nothing is left of the first
    assert [(drafter_counts.counts.drafts, drafter_counts.counts.accepted) for drafter_counts in requests(intake)] == [
        (4, 8)
    ]


def test_request_feed_uses_final_counts_of_a_request_with_a_single_drafter() -> None:
    intake = RequestFeed()
    request = a_request()
    intake.on_step(request, drafted(4), None)
    intake.on_finish(request, ended())
    assert [one.counts.accepted for one in requests(intake)] == [20]


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
def test_request_feed_skips_probes_canaries_undrafted_requests_and_plans_lowered_midway(
    origin: Origin, outcome: Outcome
) -> None:
    intake = RequestFeed()
    intake.on_finish(a_request(origin=origin), outcome)
    assert intake.take() == []


@pytest.mark.parametrize(
    ("planned", "arrival", "counts"),
    [
        (LADDER[1], 100.0, True),
        (LADDER[2], 100.0, True),  # of the same kind: a client may ask for less
        (LADDER[0], 100.0, False),
        (LADDER[-2], 100.0, False),
        (replace(LADDER[1], max_draft_tokens=LADDER[1].max_draft_tokens + 1), 100.0, False),
        (LADDER[1], 99.0, False),
    ],
    ids=["of the level", "a shorter block", "the top", "a lighter drafter", "a longer block", "begun before the step"],
)
def test_acceptance_floor_counts_only_requests_begun_and_planned_at_the_current_level(
    planned: LadderLevel, arrival: float, counts: bool
) -> None:
    controlled = Controlled(window_seconds=10 * WINDOW)  # of twenty requests
    controlled.at(100.0)
    controlled.controller.hold(LADDER[1].kind, None)
    poor = DraftCounts(steps=10, drafts=10, accepted=2, rollbacks=18, break_even_tokens=1.0)
    for _ in range(70):
        controlled.requests.on_finish(a_request(planned, arrival=arrival), ended(poor))
        controlled.at(controlled.now + 20.0)
    assert ("acceptance_floor" in controlled.asked_for()) is counts
