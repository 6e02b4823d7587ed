"""End to end: a draft goes bad under traffic; the daemon steps down, stays down while it is bad, and comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.stack.falling import Falling, alerted, falling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

DOWN = ["full", "short_block 3", "short_block 2", "light_draft light_draft_model", "autoregressive"]
_PATIENCE = 120.0
_QUIET_SECONDS = 5.0
_STAYS_SECONDS = 12.0


def comes_and_goes(of: Falling) -> list[str]:
    """Good, bad, and good again: what is promised of it, whoever noticed. The cause of each step."""
    of.until_at("full", _PATIENCE)
    time.sleep(_QUIET_SECONDS)
    assert of.rungs == ["full"], "nothing moves while the draft is good"

    of.swap(good=False)
    of.until_at("autoregressive", _PATIENCE)
    assert of.rungs == DOWN, "through each level"
    time.sleep(_STAYS_SECONDS)
    assert of.rungs == DOWN, "and down while it is bad, though nothing is drafted that could be judged"

    of.swap(good=True)
    of.until_at("full", _PATIENCE)
    up, steps = of.rungs[len(DOWN) :], of.told()
    # The light draft pays on no CPU: it may be passed over once a probe has said so.
    assert [name for name in up if "light" not in name] == ["short_block 2", "short_block 3", "full"], steps
    assert up == sorted(up, key=DOWN.index, reverse=True), steps
    assert {answer.level for answer in of.clients.answered} >= {"full", "short_block", "autoregressive"}
    return [t.cause for t in of.client.transitions()]


def nothing_was_lost(of: Falling) -> None:
    assert of.clients.wrong == [], "no request failed, and every greedy text is the target's own"
    assert len(of.clients.answered) > 30


def test_alerts_step_it_down_through_each_level_and_probes_bring_it_back(tmp_path: Path) -> None:
    with alerted(tmp_path) as running:
        causes = comes_and_goes(running)
    nothing_was_lost(running)
    down, up = causes[:4], causes[4:]
    assert set(down) == {"alert"}, causes
    assert set(up) == {"recovered"}, causes


def test_its_own_guard_does_the_same_with_no_collector_no_prometheus_and_no_webhook(tmp_path: Path) -> None:
    with falling(tmp_path, {"DRAFTD_WEBHOOK__TOKEN": "", "DRAFTD_WEBHOOK__SECRET": ""}) as running:
        causes = comes_and_goes(running)
    nothing_was_lost(running)
    down, up = causes[:4], causes[4:]
    assert set(down) <= {"acceptance_floor", "acceptance_drift", "break_even"}, causes
    assert set(up) == {"recovered"}, causes
