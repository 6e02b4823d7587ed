"""When the controller probes a level, and how the ladder uses the result."""

from __future__ import annotations

import pytest

from draftd.core import FallbackLevel
from draftd.errors import ModelLoadError, NotNow
from draftd.fallback.probes import ProbeVerdict
from tests.unit.fallback.controlled import (
    BOTTOM,
    COOLDOWN,
    FULL,
    GOOD,
    LADDER,
    LIGHT,
    PLAIN,
    POOR,
    SHORT,
    SHORT_BLOCK,
    SHORTER,
    START,
    TOP,
    WINDOW,
    Controlled,
    tell_and_resolve,
    wait_for,
)

FALLEN = 0.55  # well below what was learnt, above the floor


def test_bad_probe_does_not_raise_fallback_level_and_is_repeated_after_a_cooldown() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, SHORT_BLOCK)
    controlled.runner.verdict = ProbeVerdict.BAD
    assert controlled.until(1000) == SHORT
    assert 5 <= len(controlled.runner.probed) <= 10
    assert set(controlled.runner.probed) == {LADDER[TOP]}


def test_fallback_ladder_recovers_past_a_level_whose_drafter_fails_its_probe() -> None:
    controlled = Controlled()
    controlled.runner.verdicts[LADDER[LIGHT]] = ProbeVerdict.BAD
    tell_and_resolve(controlled, PLAIN, hard=True)
    assert controlled.until(8 * COOLDOWN) == TOP
    assert LADDER[LIGHT] in controlled.runner.probed
    assert ("autoregressive", "short_block 2", "recovered") in controlled.told


def test_probing_starts_over_after_every_drafter_had_a_bad_probe() -> None:
    controlled = Controlled()
    controlled.runner.verdict = ProbeVerdict.BAD
    tell_and_resolve(controlled, PLAIN, hard=True)
    controlled.until(12 * COOLDOWN)
    tried = controlled.runner.probed
    assert tried[:4] == [LADDER[LIGHT], LADDER[SHORTER], LADDER[LIGHT], LADDER[SHORTER]]


def test_probes_on_a_busy_daemon_stay_within_the_configured_time_share() -> None:
    controlled = Controlled(probe_share=0.02)
    tell_and_resolve(controlled, SHORT_BLOCK)
    controlled.engine.active = 1
    controlled.runner.verdict = ProbeVerdict.TOO_FEW_SAMPLES
    controlled.runner.slow = True
    for at in range(3000):
        controlled.at(float(at))
        if at % 5 == 0:
            controlled.runner.end(5.0)
    assert 5 <= len(controlled.runner.probed) <= 3000 * 0.02
    never = Controlled(probe_share=0)
    tell_and_resolve(never, SHORT_BLOCK)
    never.engine.active = 1
    never.until(2000)
    assert never.runner.probed == []


def test_good_probe_begun_before_a_step_down_does_not_raise_the_fallback_level() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, SHORT_BLOCK)
    controlled.runner.slow = True
    controlled.until(2 * COOLDOWN - 1)
    assert controlled.runner.busy
    tell_and_resolve(controlled, PLAIN, hard=True, starts_at=START + 1)
    controlled.runner.end()
    controlled.runner.slow = False
    controlled.runner.verdict = ProbeVerdict.BAD
    assert controlled.until(9 * COOLDOWN) == BOTTOM


def test_good_probe_begun_before_draft_reload_does_not_raise_the_fallback_level() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, SHORT_BLOCK)
    controlled.runner.slow = True
    controlled.until(2 * COOLDOWN - 5)
    assert controlled.runner.busy
    controlled.controller.reload_draft()
    controlled.engine.reloads[0].set_result(1)
    controlled.at(2 * COOLDOWN - 4)
    controlled.runner.end()  # a good probe of the old weights
    controlled.runner.slow, controlled.runner.verdict = False, ProbeVerdict.BAD
    assert controlled.until(3 * COOLDOWN) == SHORT


def test_fallback_level_with_a_bad_probe_is_probed_first_again_after_a_level_change() -> None:
    controlled = Controlled()
    controlled.runner.verdicts[LADDER[LIGHT]] = ProbeVerdict.BAD
    controlled.runner.verdict = ProbeVerdict.TOO_FEW_SAMPLES
    tell_and_resolve(controlled, PLAIN, hard=True)
    while not controlled.runner.probed:
        controlled.at(controlled.now + 1)
    controlled.controller.hold(FULL, 1.0)
    controlled.until(controlled.now + 2)
    tell_and_resolve(controlled, PLAIN, hard=True, starts_at=START + 1)
    controlled.until(controlled.now + 2 * COOLDOWN)
    assert controlled.runner.probed[:2] == [LADDER[LIGHT], LADDER[LIGHT]]


def test_fallback_controller_at_top_level_measures_probe_baseline_once() -> None:
    controlled = Controlled()
    controlled.runner.unlearn()
    controlled.until(COOLDOWN - 1)
    assert controlled.runner.learnt == []  # not right after its start
    controlled.until(20 * COOLDOWN)
    assert controlled.runner.learnt == [LADDER[TOP]]
    assert controlled.told == []


def test_baseline_probe_without_a_result_is_repeated_at_growing_intervals() -> None:
    controlled = Controlled(longest_wait_seconds=8 * COOLDOWN)
    controlled.runner.unlearn()
    controlled.runner.teaches = False
    controlled.until(60 * COOLDOWN, every=10)
    assert 8 <= len(controlled.runner.learnt) <= 12


def test_reloaded_draft_is_probed_at_once_and_earlier_requests_do_not_count_against_it() -> None:
    controlled = Controlled()
    controlled.traffic(10 * COOLDOWN, GOOD)
    controlled.runner.verdict = ProbeVerdict.BAD
    controlled.traffic(controlled.now + WINDOW / 5, POOR)
    controlled.traffic(controlled.now + WINDOW / 5, POOR)
    controlled.traffic(controlled.now + WINDOW / 5, POOR)
    controlled.traffic(controlled.now + WINDOW / 5, POOR)
    assert controlled.position == SHORT
    drift = controlled.controller.state().drift
    probes = len(controlled.runner.probed)
    reloading = controlled.controller.reload_draft()
    controlled.controller.tick()
    assert len(controlled.runner.probed) == probes
    controlled.engine.reloads[0].set_result(1234)
    assert not reloading.done()
    controlled.now += 1
    controlled.controller.tick()
    assert reloading.result(0) == 1234
    assert len(controlled.runner.probed) == probes + 1
    assert list(controlled.controller.state().drift) == list(drift)  # the baseline remains
    old = controlled.now - 10
    controlled.now += 1
    for _ in range(50):
        controlled.request(1, 99, arrival=old)  # drafted by the old draft, ended now
    controlled.controller.tick()
    assert controlled.controller.state().drift == {"code": 0.0}


def test_reloaded_draft_is_probed_first_even_on_a_busy_daemon_with_zero_probe_share() -> None:
    controlled = Controlled(probe_share=0)
    tell_and_resolve(controlled, PLAIN, hard=True)
    controlled.engine.active = 1
    assert controlled.until(3 * COOLDOWN) == BOTTOM
    controlled.controller.reload_draft()
    controlled.engine.reloads[0].set_result(1)
    controlled.until(3 * COOLDOWN + 10)
    assert controlled.runner.probed == [LADDER[SHORTER]]
    assert controlled.position == SHORTER


def test_failed_draft_reload_raises_the_load_error_to_its_caller() -> None:
    controlled = Controlled()
    reloading = controlled.controller.reload_draft()
    controlled.engine.reloads[0].set_exception(ModelLoadError("the folder is empty"))
    controlled.at(1)
    with pytest.raises(ModelLoadError, match="empty"):
        reloading.result(0)


def test_probe_on_demand_is_refused_at_top_level_or_while_another_runs() -> None:
    controlled = Controlled()
    with pytest.raises(NotNow, match="no higher level"):
        controlled.controller.probe()
    controlled.controller.hold(PLAIN, None)
    asked = [controlled.controller.probe()]
    wait_for(asked, controlled)
    assert asked[0].result(0).level == LADDER[LIGHT]
    probed = controlled.controller.state().probe
    assert probed is not None
    assert probed.speedup == 1.5
    controlled.runner.slow = True
    first = controlled.controller.probe()
    with pytest.raises(NotNow, match="already running"):
        controlled.controller.canaries()
    controlled.runner.end()
    controlled.at(4)
    assert first.result(0).verdict is ProbeVerdict.GOOD


def drifting(controlled: Controlled) -> None:
    """Teaches the draft model's baseline, then lets acceptance fall to above the floor."""
    controlled.traffic(10 * COOLDOWN, GOOD)
    controlled.traffic(controlled.now + 2 * WINDOW, FALLEN)


def test_acceptance_drift_with_a_good_probe_resets_baseline_and_keeps_fallback_level() -> None:
    controlled = Controlled()
    drifting(controlled)
    assert controlled.position == TOP
    assert controlled.runner.probed == [LADDER[TOP]]
    controlled.traffic(controlled.now + 20 * COOLDOWN, FALLEN)  # 100 requests teach the baseline
    assert controlled.runner.probed == [LADDER[TOP]]
    assert controlled.told == [("full", "full", "traffic_changed")]
    said = controlled.journal.latest(1)[0].evidence
    assert said.startswith("code by draft_model: acceptance 0.55 in ")
    assert said.endswith("frozen prompts are accepted as before: the traffic has changed, its baseline is learnt again")
    assert controlled.controller.state().drift == {"code": 0.0}


@pytest.mark.parametrize("verdict", [ProbeVerdict.BAD, ProbeVerdict.FAILED, ProbeVerdict.TOO_FEW_SAMPLES])
def test_acceptance_drift_without_a_good_probe_lowers_the_fallback_level(verdict: ProbeVerdict) -> None:
    controlled = Controlled()
    controlled.runner.verdict = verdict
    drifting(controlled)
    assert controlled.position == SHORT
    assert controlled.told[-1] == ("full", "short_block 3", "acceptance_drift")
    assert controlled.runner.probed[0] == LADDER[TOP]


def test_acceptance_drift_lowers_fallback_level_after_a_cooldown_if_its_probe_hangs() -> None:
    controlled = Controlled()
    controlled.traffic(10 * COOLDOWN, GOOD)
    controlled.runner.slow = True
    while not controlled.runner.probed:
        controlled.traffic(controlled.now + WINDOW / 5, FALLEN)
    began = controlled.now
    while controlled.position == TOP:
        controlled.traffic(controlled.now + WINDOW / 5, FALLEN)
    assert COOLDOWN < controlled.now - began <= COOLDOWN + 2 * WINDOW
    controlled.runner.end()  # good, too late
    controlled.traffic(controlled.now + WINDOW / 5, FALLEN)
    assert controlled.position == SHORT


def test_acceptance_drift_without_a_probe_baseline_lowers_fallback_level_unprobed() -> None:
    controlled = Controlled()
    controlled.runner.unlearn()
    controlled.runner.teaches = False
    drifting(controlled)
    assert controlled.position == SHORT
    assert controlled.runner.probed == []


def test_acceptance_drift_is_not_probed_at_a_held_level_or_with_zero_probe_share() -> None:
    held = Controlled()
    held.traffic(10 * COOLDOWN, GOOD)
    held.controller.hold(FULL, None)
    held.traffic(held.now + 2 * WINDOW, FALLEN)
    assert held.runner.probed == []
    never = Controlled(probe_share=0)
    never.engine.active = 1
    drifting(never)
    assert never.runner.probed == []
    assert never.traffic(never.now + COOLDOWN, FALLEN) == SHORT


def test_acceptance_drift_of_prompt_lookup_resets_the_baseline_without_a_probe() -> None:
    controlled = Controlled()
    controlled.controller.hold(FallbackLevel.LIGHT_DRAFT, None)
    controlled.traffic(10 * COOLDOWN, GOOD)
    controlled.traffic(controlled.now + 2 * WINDOW, FALLEN)
    assert controlled.runner.probed == []
    assert controlled.told[-1] == ("light_draft prompt_lookup", "light_draft prompt_lookup", "traffic_changed")
