"""The remote's level falls with errors, distance and drafts that do not pay, and recovers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import FinishReason
from draftd.counts import DraftCounts
from draftd.engine.remote.verifier_link import LinkState
from draftd.errors import InvalidRequest
from draftd.fallback.leases import Notice
from draftd.fallback.remote_guard import REMOTE_LADDER
from draftd.journal import Subject
from draftd.outcome import Outcome, RequestStats
from draftd.strategies import RemoteCounts, RemoteLevel, Strategy
from tests.unit.fallback.controlled import (
    BOTTOM,
    COOLDOWN,
    FULL,
    PACE,
    START,
    TOP,
    WINDOW,
    Controlled,
    MemoryStore,
    a_request,
    tell,
)

LOCAL, STREAMING, SPECULATIVE = RemoteLevel
LINK = LinkState(up=True, round_trip=0.015, connections=1)


def lately(controlled: Controlled) -> list[tuple[str, str, str]]:
    """Returns the changes of the remote's level, oldest first."""
    kept = controlled.journal.latest(100)
    return [(one.previous, one.current, one.cause) for one in kept if one.subject is Subject.REMOTE]


def answer(controlled: Controlled, speed: float, failed_over: str = "") -> None:
    """Reports a request to the remote's target that ends now, at this ratio to the speed of its own streaming."""
    request = a_request(arrival=controlled.now)
    strategy = Strategy.LOCAL if failed_over else Strategy.SPECULATIVE
    request = replace(request, plan=replace(request.plan, strategy=strategy))
    stats = RequestStats(1, request.arrival, counts=DraftCounts(drafts=50, rollbacks=50, emitted=200))
    stats.first_token, stats.last_token = controlled.now, controlled.now + 200 * PACE / speed
    stats.remote = RemoteCounts(verdicts=80)
    controlled.requests.on_finish(request, Outcome(FinishReason.STOP, stats, failed_over=failed_over))


def traffic(controlled: Controlled, until: float, speed: float) -> RemoteLevel:
    assert controlled.remote is not None
    while controlled.now < until:
        controlled.now = min(controlled.now + WINDOW / 5, until)
        if controlled.remote.level is SPECULATIVE:
            answer(controlled, speed)
            answer(controlled, speed)
        controlled.controller.tick()
    return controlled.remote.level


def test_remote_errors_lower_remote_level_to_local_until_the_link_is_healthy() -> None:
    controlled = Controlled(link=LINK)
    assert controlled.remote is not None
    while controlled.remote.level is SPECULATIVE:
        controlled.at(controlled.now + WINDOW / 5)
        for failed in ("", "", "it does not answer"):
            answer(controlled, 1.1, failed)
        assert controlled.now < 10 * COOLDOWN
    assert controlled.remote.level is LOCAL, "at once"
    assert controlled.now >= 2 * WINDOW
    assert controlled.position == TOP, "drafting for this daemon's own target goes on"
    controlled.link = replace(LINK, up=False)
    controlled.until(controlled.now + 3 * COOLDOWN)
    assert controlled.remote.level is LOCAL, "the link is down"
    controlled.link = LINK
    controlled.until(controlled.now + 3 * COOLDOWN)
    assert controlled.remote.level is SPECULATIVE
    assert lately(controlled) == [
        ("speculative", "local", "remote_errors"),
        ("local", "streaming", "recovered"),
        ("streaming", "speculative", "recovered"),
    ]
    assert "33% failed of" in controlled.journal.latest(3)[0].evidence


def test_short_link_outage_does_not_lower_the_remote_level() -> None:
    controlled = Controlled(link=LINK)
    assert controlled.remote is not None
    traffic(controlled, WINDOW, 1.1)
    for _ in range(8):  # all that were under way
        answer(controlled, 1.1, "the connection was lost")
    controlled.link = replace(LINK, up=False, errors=8)
    controlled.until(controlled.now + WINDOW / 2)
    controlled.link = replace(LINK, errors=8)
    assert traffic(controlled, 4 * COOLDOWN, 1.1) is SPECULATIVE
    assert lately(controlled) == []


def test_long_round_trip_lowers_remote_level_to_streaming_until_short_again() -> None:
    controlled = Controlled(link=LINK)
    assert controlled.remote is not None
    controlled.at(1)
    controlled.link = replace(LINK, round_trip=0.8)
    controlled.until(0.9 * WINDOW)
    assert controlled.remote.level is SPECULATIVE
    controlled.until(5 * COOLDOWN)
    assert controlled.remote.level is STREAMING, "and no lower: it still answers"
    controlled.link = LINK
    controlled.until(9 * COOLDOWN)
    assert controlled.remote.level is SPECULATIVE


def test_remote_level_falls_on_unprofitable_drafts_and_stays_down_longer_after_a_repeat() -> None:
    controlled = Controlled(link=LINK)
    assert controlled.remote is not None
    assert traffic(controlled, 4 * COOLDOWN, 1.1) is SPECULATIVE
    assert controlled.controller.state().remote.speedup == pytest.approx(1.1, rel=0.01)  # type: ignore[union-attr]
    while traffic(controlled, controlled.now + WINDOW, 0.6) is SPECULATIVE:
        assert controlled.now < 8 * COOLDOWN
    fell = controlled.now
    while traffic(controlled, controlled.now + 1, 0.6) is STREAMING:
        assert controlled.now < 20 * COOLDOWN
    first = controlled.now - fell
    while traffic(controlled, controlled.now + 1, 0.6) is SPECULATIVE:
        assert controlled.now < 20 * COOLDOWN
    state = controlled.controller.state().remote
    assert state is not None
    assert state.ladder.relapses == 1
    assert state.wait > first
    assert controlled.position == TOP, "what another target rejects says nothing of this one's draft"


def test_remote_level_lowered_by_alert_or_operator_hold_survives_a_restart() -> None:
    store = MemoryStore()
    controlled = Controlled(store, link=LINK)
    controlled.at(1)
    notice = Notice("DraftdRemoteSlow", "abc", True, START, FULL, remote=STREAMING)
    tell(controlled, notice)
    assert controlled.remote is not None
    assert (controlled.remote.level, controlled.position) == (STREAMING, TOP)
    controlled.controller.hold(LOCAL, None)
    assert controlled.remote.level is LOCAL
    again = Controlled(store, link=LINK, start=START + 10)
    assert again.remote is not None
    assert again.remote.level is LOCAL
    again.until(5 * COOLDOWN)
    assert again.remote.level is LOCAL, "it is held"
    assert again.controller.release()
    assert again.remote.level is STREAMING, "as it was before the hold"
    assert lately(again) == [("local", "local", "released"), ("local", "streaming", "released")]


def test_hold_of_a_remote_level_is_refused_without_a_remote() -> None:
    controlled = Controlled()
    with pytest.raises(InvalidRequest, match="no remote"):
        controlled.controller.hold(LOCAL, None)
    assert controlled.controller.state().remote is None
    assert controlled.position < BOTTOM


@pytest.mark.parametrize("level", RemoteLevel)
def test_remote_ladder_level_caps_strategy_in_order_local_remote_speculative(level: RemoteLevel) -> None:
    allowed = [level.restrict(one) for one in (Strategy.LOCAL, Strategy.REMOTE, Strategy.SPECULATIVE)]
    best = [Strategy.LOCAL, Strategy.REMOTE, Strategy.SPECULATIVE][: level + 1]
    assert allowed == [*best, *[best[-1]] * (2 - level)]
    assert REMOTE_LADDER[2 - level].kind is level
