"""When a rung is tried out, and what the ladder makes of it."""

from __future__ import annotations

import pytest

from draftd.errors import ModelLoadError, NotNow
from draftd.fallback.reports import Verdict
from tests.unit.control.steered import (
    BOTTOM,
    DWELL,
    FULL,
    LADDER,
    LIGHT,
    PLAIN,
    SHORT,
    SHORT_BLOCK,
    SHORTER,
    START,
    TOP,
    WINDOW,
    Steered,
    wait_for,
)
from tests.unit.control.told import GOOD, POOR, hold, tell_and_resolve


def test_a_probe_that_is_not_good_leaves_the_ladder_and_is_made_again_after_a_dwell() -> None:
    steered = Steered()
    tell_and_resolve(steered, SHORT_BLOCK)
    steered.examiner.verdict = Verdict.BAD
    assert steered.until(1000) == SHORT
    assert 5 <= len(steered.examiner.probed) <= 10
    assert set(steered.examiner.probed) == {LADDER[TOP]}


def test_a_drafter_that_does_not_pay_does_not_bar_the_way_to_one_that_does() -> None:
    steered = Steered()
    steered.examiner.verdicts[LADDER[LIGHT]] = Verdict.BAD
    tell_and_resolve(steered, PLAIN, hard=True)
    assert steered.until(8 * DWELL) == TOP
    assert LADDER[LIGHT] in steered.examiner.probed
    assert ("autoregressive", "short_block 2", "recovered") in steered.told


def test_where_every_drafter_was_bad_all_are_tried_again() -> None:
    steered = Steered()
    steered.examiner.verdict = Verdict.BAD
    tell_and_resolve(steered, PLAIN, hard=True)
    steered.until(12 * DWELL)
    tried = steered.examiner.probed
    assert tried[:4] == [LADDER[LIGHT], LADDER[SHORTER], LADDER[LIGHT], LADDER[SHORTER]]


def test_a_busy_daemon_spends_no_more_than_its_share_on_probes() -> None:
    steered = Steered(probe_share=0.02)
    tell_and_resolve(steered, SHORT_BLOCK)
    steered.engine.active = 1
    steered.examiner.verdict = Verdict.TOO_FEW_SAMPLES
    steered.examiner.slow = True
    for at in range(3000):
        steered.at(float(at))
        if at % 5 == 0:
            steered.examiner.end()  # a probe takes up to five seconds
    assert 5 <= len(steered.examiner.probed) <= 3000 * 0.02
    never = Steered(probe_share=0)
    tell_and_resolve(never, SHORT_BLOCK)
    never.engine.active = 1
    never.until(2000)
    assert never.examiner.probed == []


def test_a_probe_that_a_step_overtook_lets_nothing_up() -> None:
    steered = Steered()
    tell_and_resolve(steered, SHORT_BLOCK)
    steered.examiner.slow = True
    steered.until(2 * DWELL - 1)
    assert steered.examiner.busy
    tell_and_resolve(steered, PLAIN, hard=True, starts_at=START + 1)
    steered.examiner.end()
    steered.examiner.slow = False
    steered.examiner.verdict = Verdict.BAD
    assert steered.until(9 * DWELL) == BOTTOM


def test_a_probe_that_new_weights_overtook_lets_nothing_up() -> None:
    steered = Steered()
    tell_and_resolve(steered, SHORT_BLOCK)
    steered.examiner.slow = True
    steered.until(2 * DWELL - 5)
    assert steered.examiner.busy
    steered.controller.reload_draft()
    steered.engine.reloads[0].set_result(1)
    steered.at(2 * DWELL - 4)
    steered.examiner.end()  # good, but of the old ones
    steered.examiner.slow, steered.examiner.verdict = False, Verdict.BAD
    assert steered.until(3 * DWELL) == SHORT


def test_what_was_tried_in_vain_before_a_step_is_tried_again_after_it() -> None:
    steered = Steered()
    steered.examiner.verdicts[LADDER[LIGHT]] = Verdict.BAD
    steered.examiner.verdict = Verdict.TOO_FEW_SAMPLES
    tell_and_resolve(steered, PLAIN, hard=True)
    while not steered.examiner.probed:
        steered.at(steered.now + 1)
    hold(steered, FULL, 1.0)
    steered.until(steered.now + 2)
    tell_and_resolve(steered, PLAIN, hard=True, starts_at=START + 1)
    steered.until(steered.now + 2 * DWELL)
    assert steered.examiner.probed[:2] == [LADDER[LIGHT], LADDER[LIGHT]]


def test_on_the_top_rung_it_learns_once_what_probes_show_while_all_is_well() -> None:
    steered = Steered()
    steered.examiner.known.clear()
    steered.until(DWELL - 1)
    assert steered.examiner.learnt == []  # not while it has only just started
    steered.until(20 * DWELL)
    assert steered.examiner.learnt == [LADDER[TOP]]
    assert steered.told == []


def test_a_lesson_that_teaches_nothing_is_repeated_ever_more_rarely() -> None:
    steered = Steered(longest_wait_seconds=8 * DWELL)
    steered.examiner.known.clear()
    steered.examiner.teaches = False
    steered.until(60 * DWELL, every=10)
    assert 8 <= len(steered.examiner.learnt) <= 12


def test_a_new_draft_is_probed_at_once_and_what_was_seen_of_the_old_one_is_forgotten() -> None:
    steered = Steered()
    steered.traffic(10 * DWELL, GOOD)
    steered.traffic(steered.now + WINDOW / 5, POOR)
    steered.traffic(steered.now + WINDOW / 5, POOR)
    steered.traffic(steered.now + WINDOW / 5, POOR)
    assert steered.rung == SHORT
    drift = steered.controller.readings().drift
    probes = len(steered.examiner.probed)
    reloading = steered.controller.reload_draft()
    steered.controller.tick()
    assert len(steered.examiner.probed) == probes
    steered.engine.reloads[0].set_result(1234)
    assert not reloading.done()
    steered.now += 1
    steered.controller.tick()
    assert reloading.result(0) == 1234
    assert len(steered.examiner.probed) == probes + 1
    assert list(steered.controller.readings().drift) == list(drift)  # the baseline is there still
    old = steered.now - 10
    steered.now += 1
    for _ in range(50):
        steered.request(1, 99, arrival=old)  # drafted by the old one, ended now
    steered.controller.tick()
    assert steered.controller.readings().drift == {"code": 0.0}


def test_a_new_draft_is_tried_before_what_it_has_not_changed_and_however_busy_the_daemon_is() -> None:
    steered = Steered(probe_share=0)
    tell_and_resolve(steered, PLAIN, hard=True)
    steered.engine.active = 1
    assert steered.until(3 * DWELL) == BOTTOM
    steered.controller.reload_draft()
    steered.engine.reloads[0].set_result(1)
    steered.until(3 * DWELL + 10)
    assert steered.examiner.probed == [LADDER[SHORTER]]
    assert steered.rung == SHORTER


def test_a_draft_that_cannot_be_read_anew_says_so_and_changes_nothing() -> None:
    steered = Steered()
    reloading = steered.controller.reload_draft()
    steered.engine.reloads[0].set_exception(ModelLoadError("the folder is empty"))
    with pytest.raises(ModelLoadError, match="empty"):
        reloading.result(0)


def test_a_probe_on_demand_says_what_it_found_and_there_is_none_above_the_top() -> None:
    steered = Steered()
    top = steered.controller.probe()
    steered.at(1)
    with pytest.raises(NotNow, match="no rung above"):
        top.result(0)
    hold(steered, PLAIN)
    asked = [steered.controller.probe()]
    wait_for(asked, steered)
    assert asked[0].result(0).rung == LADDER[LIGHT]
    assert steered.controller.readings().probe_speedup == 1.5
    steered.examiner.slow = True
    first, second = steered.controller.probe(), steered.controller.canaries()
    steered.at(3)
    with pytest.raises(NotNow, match="under way"):
        second.result(0)
    steered.examiner.end()
    steered.at(4)
    assert first.result(0).verdict is Verdict.GOOD
