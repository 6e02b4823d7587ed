"""End to end: a draft goes bad under traffic; the daemon steps down, stays down while it is bad, and comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.stack.falling import Falling, alerted, falling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

# One of each level: several blocks, one after the other, are gone through in test_fallback_grafana.py.
ONE_BLOCK = {"DRAFTD_FALLBACK__BLOCKS": "2"}
DOWN = ["full", "short_block 2", "light_draft light_draft_model", "autoregressive"]
# By its own judgement the daemon may leave the light draft again, which pays on no CPU.
NOT_LIGHT = {"DRAFTD_FALLBACK__LIGHTER": ""}
UNTOLD = {"DRAFTD_WEBHOOK__TOKEN": "", "DRAFTD_WEBHOOK__SECRET": ""}
_PATIENCE = 240.0  # beside other tests there is less traffic, and what is judged by it takes longer
_QUIET_SECONDS = 5.0
_STAYS_SECONDS = 12.0


def comes_and_goes(of: Falling, down: list[str]) -> tuple[set[str], set[str]]:
    """Good, bad, and good again: what is promised of it, whoever noticed. The causes of the steps down, and up."""
    of.until_at("full", _PATIENCE)
    time.sleep(_QUIET_SECONDS)
    assert of.levels == ["full"], "nothing moves while the draft is good"

    of.swap(good=False)
    of.until_at("autoregressive", _PATIENCE)
    assert of.levels == down, "through each level"
    time.sleep(_STAYS_SECONDS)
    assert of.levels == down, "and down while it is bad, though nothing is drafted that could be judged"

    of.busy(False)
    of.swap(good=True)
    of.until_at("full", _PATIENCE)
    up, steps = of.levels[len(down) :], of.told()
    # The light draft may be passed over once a probe has said that it does not pay.
    assert [name for name in up if "light" not in name] == ["short_block 2", "full"], steps
    assert up == sorted(up, key=down.index, reverse=True), steps
    assert {answer.level for answer in of.clients.answered} >= {"full", "short_block", "autoregressive"}
    causes = [t.cause for t in of.client.transitions()]
    return set(causes[: len(down) - 1]), set(causes[len(down) - 1 :])


def nothing_was_lost(of: Falling) -> None:
    assert of.clients.wrong == [], "no request failed, and every greedy text is the target's own"
    assert len(of.clients.answered) > 30


def test_alerts_step_it_down_through_each_level_and_probes_bring_it_back(tmp_path: Path) -> None:
    with alerted(tmp_path, ONE_BLOCK) as running:
        down, up = comes_and_goes(running, DOWN)
    nothing_was_lost(running)
    assert (down, up) == ({"alert"}, {"recovered"})


def test_its_own_guard_does_the_same_with_no_collector_no_prometheus_and_no_webhook(tmp_path: Path) -> None:
    with falling(tmp_path, ONE_BLOCK | NOT_LIGHT | UNTOLD) as running:
        down, up = comes_and_goes(running, [level for level in DOWN if "light" not in level])
    nothing_was_lost(running)
    assert down <= {"acceptance_floor", "acceptance_drift", "break_even"}
    assert up == {"recovered"}
