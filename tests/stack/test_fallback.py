"""End to end: a draft goes bad under traffic; the daemon steps down, stays down while it is bad, and comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.stack.falling import ALERTING, Falling, alerted, falling, scripted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# One of each level: several blocks, one after the other, are gone through in test_fallback_grafana.py.
ONE_BLOCK = {"DRAFTD_FALLBACK__BLOCKS": "2"}
DOWN = ["full", "short_block 2", "light_draft light_draft_model", "autoregressive"]
UNTOLD = {"DRAFTD_WEBHOOK__TOKEN": "", "DRAFTD_WEBHOOK__SECRET": ""}
_PATIENCE = 240.0  # beside other tests there is less traffic, and what is judged by it takes longer
_ENOUGH_ANSWERS = 20


def comes_and_goes(of: Falling) -> tuple[set[str], set[str]]:
    """Good, bad, and good again: what is promised of it, whoever noticed. The causes of the steps down, and up."""
    of.wait_for(lambda: len(of.clients.answered) >= _ENOUGH_ANSWERS, _PATIENCE, "answers to judge by")
    assert of.levels == ["full"], "nothing moves while the draft is good"

    of.swap(good=False)
    of.until_at("autoregressive", _PATIENCE)
    assert of.levels == DOWN, "through each level"
    of.busy(False)
    of.until_free(_PATIENCE)  # nothing is drafted that could be judged: what asked for the level is silent now
    assert of.probed(_PATIENCE) == "bad"
    assert of.levels == DOWN, "and down while it is bad"

    of.swap(good=True)
    of.until_at("full", _PATIENCE)
    up, steps = of.levels[len(DOWN) :], of.told()
    # The light draft may be passed over once a probe has said that it does not pay.
    assert [name for name in up if "light" not in name] == ["short_block 2", "full"], steps
    assert up == sorted(up, key=DOWN.index, reverse=True), steps
    assert {answer.level for answer in of.clients.answered} >= {"full", "autoregressive"}
    causes = [step.cause for step in of.steps]
    return set(causes[: len(DOWN) - 1]), set(causes[len(DOWN) - 1 :])


def nothing_was_lost(of: Falling) -> None:
    assert of.clients.wrong == [], "no request failed, and every greedy text is the target's own"
    assert len(of.clients.answered) > 30


def test_alerts_lower_the_ladder_for_a_bad_draft_and_probes_restore_it(tmp_path: Path) -> None:
    with alerted(scripted, tmp_path, ONE_BLOCK, replace(ALERTING, speedup_floor=0.9)) as running:
        down, up = comes_and_goes(running)
    nothing_was_lost(running)
    assert (down, up) == ({"alert"}, {"recovered"})


def test_local_guard_lowers_the_ladder_for_a_bad_draft_without_a_collector(tmp_path: Path) -> None:
    with falling(scripted, tmp_path, ONE_BLOCK | UNTOLD) as running:
        down, up = comes_and_goes(running)
    nothing_was_lost(running)
    assert down <= {"acceptance_floor", "acceptance_drift", "break_even"}
    assert up == {"recovered"}
