"""Each signal leads to its step down, and its end with a good probe to the step back up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from draftd.core import DRAFT_MODEL, GRAMMAR, PROMPT_LOOKUP, DecodeMode, DrafterName, Origin
from draftd.errors import NotServing
from draftd.fallback.leases import Applied
from draftd.fallback.probes import CanaryReport, ProbeVerdict
from draftd.fronts.grpc import reply
from draftd.hardware.state import MemoryPressure, ThermalLevel
from tests.unit.fallback.controlled import (
    BOTTOM,
    COOLDOWN,
    GOOD,
    LADDER,
    LIGHT,
    LIGHT_DRAFT,
    PLAIN,
    POOR,
    SHORT,
    SHORT_BLOCK,
    SHORTER,
    START,
    TOP,
    WINDOW,
    Controlled,
    Machine,
    a_request,
    fail,
    notice,
    tell,
    tell_and_resolve,
    wait_for,
)

Sense = Callable[[Controlled], None]


def test_fallback_level_does_not_move_while_acceptance_is_good() -> None:
    controlled = Controlled()
    assert controlled.traffic(20 * COOLDOWN, GOOD) == TOP
    assert controlled.told == []


def test_poor_acceptance_lowers_fallback_level_once_per_cooldown_and_good_probes_restore_it() -> None:
    controlled = Controlled()
    controlled.traffic(10 * COOLDOWN, GOOD)  # the baseline is learnt
    controlled.runner.verdict = ProbeVerdict.BAD
    began = controlled.now
    while controlled.position == TOP:
        controlled.traffic(controlled.now + WINDOW / 5, POOR)
    assert controlled.position == SHORT
    fell = controlled.now
    assert fell - began < 3 * WINDOW
    while controlled.position == SHORT:
        controlled.traffic(controlled.now + WINDOW / 5, POOR)
    assert controlled.position == SHORTER
    assert controlled.now - fell >= COOLDOWN
    controlled.runner.verdict = ProbeVerdict.GOOD
    assert controlled.traffic(controlled.now + 10 * COOLDOWN, POOR) == SHORTER
    assert controlled.engine.lowered == []
    assert controlled.traffic(controlled.now + 6 * COOLDOWN, GOOD) == TOP
    assert [(previous, current) for previous, current, _ in controlled.told if previous != current] == [
        ("full", "short_block 3"),
        ("short_block 3", "short_block 2"),
        ("short_block 2", "short_block 3"),
        ("short_block 3", "full"),
    ]
    up = controlled.journal.latest(1)[0]
    assert (up.cause, up.evidence) == ("recovered", "probe of full: as set")
    down = controlled.journal.latest(4)[0]
    assert down.cause.startswith("acceptance")
    assert "acceptance 0.20" in down.evidence


def test_drafts_costing_more_than_they_save_lead_to_autoregressive_decoding() -> None:
    controlled = Controlled()
    while controlled.now < 12 * COOLDOWN and controlled.position != BOTTOM:
        controlled.traffic(controlled.now + WINDOW / 5, GOOD, break_even=200.0)
    assert controlled.position == BOTTOM
    assert {cause for _, _, cause in controlled.told} == {"break_even"}


@pytest.mark.parametrize(
    ("observed", "level", "signal", "lowered"),
    [
        ("on_verifier_error", BOTTOM, "verifier_errors", (0, frozenset[DrafterName]())),
        ("on_drafter_error", LIGHT, "drafter_errors", (2, frozenset({PROMPT_LOOKUP, GRAMMAR}))),
    ],
)
def test_repeated_drafter_or_verifier_errors_lower_running_requests_at_once(
    observed: str, level: int, signal: str, lowered: tuple[int, frozenset[DrafterName]]
) -> None:
    controlled = Controlled()
    fail(controlled, observed, 2)
    assert controlled.at(1) == TOP
    fail(controlled, observed, 1)
    assert controlled.at(2) == level
    assert controlled.told[-1][2] == signal
    assert controlled.engine.lowered == [(*lowered, f"ladder: {signal}")]


def test_verifier_errors_of_all_rows_of_one_batch_step_count_as_one_failure() -> None:
    controlled = Controlled()
    for n in range(8):
        controlled.requests.on_verifier_error(dataclasses.replace(a_request(), id=f"row {n}"), "out of memory")
    assert controlled.at(1) == TOP
    for _ in range(2):  # the same rows, twice more
        controlled.requests.on_verifier_error(dataclasses.replace(a_request(), id="row 0"), "out of memory")
    assert controlled.at(2) == BOTTOM


def test_sustained_critical_memory_disables_drafting_until_the_pressure_ends() -> None:
    machine = Machine()
    controlled = Controlled(hardware=machine, critical_seconds=10)
    for at in (0, 5, 9):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        assert controlled.at(at) == TOP
    machine.reads(10, memory_pressure=MemoryPressure.CRITICAL)
    assert controlled.at(10) == BOTTOM
    assert controlled.told[-1][2] == "memory"
    assert controlled.engine.held == frozenset()
    for at in range(11, 1000, 7):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        controlled.at(at)
    assert controlled.position == BOTTOM
    assert controlled.runner.probed == []  # a probe would need the weights
    machine.reads(1001, memory_pressure=MemoryPressure.NORMAL)
    assert controlled.until(1001 + 6 * COOLDOWN) == TOP
    assert controlled.engine.held == {DRAFT_MODEL}


def test_critical_memory_unloads_draft_weights_even_while_borrowed_for_a_probe() -> None:
    machine = Machine()
    controlled = Controlled(hardware=machine, critical_seconds=0)
    controlled.controller.hold(PLAIN, None)
    with controlled.drafters.borrow(DRAFT_MODEL):
        assert controlled.engine.held == {DRAFT_MODEL}
        controlled.controller.release()
        controlled.controller.hold(LIGHT_DRAFT, 1.0)
        machine.reads(5, memory_pressure=MemoryPressure.CRITICAL)
        assert controlled.at(5) == BOTTOM
        assert controlled.engine.held == frozenset()


def test_critical_memory_signal_expires_when_hardware_readings_stop() -> None:
    machine = Machine()
    controlled = Controlled(hardware=machine, critical_seconds=10)
    for at in (0, 5, 10):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        controlled.at(at)
    assert controlled.until(60) == BOTTOM
    assert controlled.asked_for() == {"memory": PLAIN}
    controlled.at(71)
    assert controlled.asked_for() == {}


def test_heat_shortens_draft_blocks_and_swapping_selects_the_light_drafter() -> None:
    machine = Machine()
    controlled = Controlled(hardware=machine, thermal_seconds=60, swap_bytes=1000)
    for at in range(0, 301, 10):
        machine.reads(at, thermal_level=ThermalLevel.HEAVY)
        controlled.at(at)
    assert controlled.position == SHORTER
    assert controlled.told[-1][2] == "thermal"
    machine.reads(301, thermal_level=ThermalLevel.NOMINAL, swap_ins=0)
    controlled.at(301)
    machine.reads(311, thermal_level=ThermalLevel.NOMINAL, swap_ins=2000)
    assert controlled.at(311) == LIGHT
    assert controlled.told[-1][2] == "swap"


def test_bad_canaries_disable_drafting_until_a_good_canary_run() -> None:
    controlled = Controlled(canary_period_seconds=50)
    controlled.runner.quality = ProbeVerdict.BAD
    assert controlled.until(49) == TOP
    controlled.until(52)
    assert controlled.position == BOTTOM
    assert controlled.told[-1][2] == "quality"
    assert controlled.until(1000) == BOTTOM
    assert controlled.runner.probed == []
    runs = controlled.runner.tested
    assert 3 <= runs <= 10  # one run per wait
    controlled.runner.quality = ProbeVerdict.GOOD
    assert controlled.until(1000 + 6 * COOLDOWN) == TOP


def test_bad_canaries_are_not_rerun_while_memory_is_critical() -> None:
    machine = Machine()
    controlled = Controlled(hardware=machine, critical_seconds=10, canary_period_seconds=50)
    controlled.runner.quality = ProbeVerdict.BAD
    controlled.until(52)
    runs = controlled.runner.tested
    for at in range(53, 1000, 7):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        controlled.at(at)
    assert controlled.runner.tested == runs
    machine.reads(1001, memory_pressure=MemoryPressure.NORMAL)
    controlled.until(1010)
    assert controlled.runner.tested == runs + 1


def test_canaries_run_on_schedule_except_at_the_autoregressive_level() -> None:
    controlled = Controlled(canary_period_seconds=50)
    tell(controlled, notice(PLAIN, hard=True))
    controlled.until(500)
    assert controlled.position == BOTTOM
    assert controlled.runner.tested == 0
    controlled = Controlled(canary_period_seconds=50)
    controlled.until(501)
    assert controlled.runner.tested == 10 - 1


def test_firing_alert_lowers_fallback_level_and_resolving_it_alone_does_not_raise_it() -> None:
    controlled = Controlled()
    assert tell(controlled, notice(LIGHT_DRAFT)) == [Applied.ACCEPTED]
    assert controlled.position == SHORT
    assert controlled.told == [("full", "short_block 3", "alert")]
    assert tell(controlled, notice(LIGHT_DRAFT)) == [Applied.DUPLICATE]
    controlled.until(2 * COOLDOWN + 5)
    assert controlled.position == LIGHT
    assert controlled.until(900) == LIGHT
    controlled.runner.verdict = ProbeVerdict.BAD
    assert tell(controlled, notice(LIGHT_DRAFT, firing=False)) == [Applied.RESOLVED]
    assert controlled.until(1500) == LIGHT
    assert controlled.runner.probed
    controlled.runner.verdict = ProbeVerdict.GOOD
    assert controlled.until(1500 + 6 * COOLDOWN) == TOP


def test_critical_alert_lowers_running_requests_and_its_lease_expires_unless_repeated() -> None:
    controlled = Controlled()
    tell(controlled, notice(PLAIN, hard=True))
    assert controlled.position == BOTTOM
    assert [lowered[0] for lowered in controlled.engine.lowered] == [0]
    controlled.until(999)
    assert len(controlled.controller.state().leases) == 1
    controlled.at(1001)
    assert controlled.controller.state().leases == ()
    assert controlled.position == BOTTOM


def test_alert_lease_ends_when_the_polled_alert_list_no_longer_contains_it() -> None:
    controlled = Controlled()
    controlled.controller.apply_poll([notice(PLAIN)])
    controlled.at(1)
    assert [lease.notice.name for lease in controlled.controller.state().leases] == ["DraftdSomething"]
    controlled.controller.apply_poll([])
    controlled.at(2)
    assert controlled.controller.state().leases == ()


def test_bad_canary_run_on_demand_disables_drafting() -> None:
    controlled = Controlled()
    controlled.runner.quality = ProbeVerdict.BAD
    asked = controlled.controller.canaries()
    wait_for([asked], controlled)
    report = asked.result(0)
    assert isinstance(report, CanaryReport)
    controlled.at(2)
    assert controlled.position == BOTTOM
    canaries = controlled.controller.state().canaries
    assert canaries is not None
    assert canaries.scores == {DecodeMode.AUTOREGRESSIVE: 1.0, DecodeMode.SPECULATIVE: 0.0}


def test_probe_canary_and_undrafted_requests_do_not_move_the_fallback_level() -> None:
    controlled = Controlled()
    for at in range(0, 2000, 10):
        for origin in (Origin.PROBE, Origin.CANARY):
            controlled.request(1, 99, origin=origin)
            controlled.requests.on_verifier_error(a_request(origin=origin), "broken")
        controlled.request(0, 0, drafts=0)
        controlled.at(at)
    assert controlled.told == []


def test_fallback_level_with_guard_disabled_ignores_measurements_and_follows_alerts() -> None:
    controlled = Controlled(guard=False)
    controlled.traffic(10 * COOLDOWN, GOOD)
    controlled.traffic(20 * COOLDOWN, POOR)
    fail(controlled, "on_verifier_error")
    controlled.at(controlled.now + 1)
    assert controlled.told == []
    tell(controlled, notice(SHORT_BLOCK))
    assert controlled.position == SHORT


def test_held_fallback_level_takes_effect_only_after_the_engine_has_loaded() -> None:
    controlled = Controlled()
    tell_and_resolve(controlled, PLAIN, hard=True)
    controlled.engine.not_serving = NotServing("loading")
    controlled.engine.held = frozenset({DRAFT_MODEL})
    controlled.controller.hold(LIGHT_DRAFT, None)
    controlled.until(50)
    assert (controlled.position, controlled.runner.probed) == (BOTTOM, [])
    controlled.engine.not_serving = None
    assert controlled.until(52) == LIGHT
    assert controlled.engine.held == {PROMPT_LOOKUP}


def test_request_feed_keeps_at_most_4096_finished_requests() -> None:
    controlled = Controlled()
    for _ in range(10_000):
        controlled.request()
    assert len(controlled.requests.take()) == 4096


def test_fallback_controller_state_reports_level_deciding_signal_and_alert_leases() -> None:
    controlled = Controlled()
    tell(controlled, notice(LIGHT_DRAFT, hard=True))
    state = controlled.controller.state()
    assert (state.ladder, state.position, state.since) == (LADDER, LIGHT, START)
    assert state.signal is not None
    assert state.signal.text.startswith("alert: DraftdSomething has fired since")
    assert (state.wait, state.relapses, state.state_file) == (2 * COOLDOWN, 0, None)
    assert state.loaded_drafters == {PROMPT_LOOKUP}
    assert [signal.asks_for for signal in state.signals] == [LIGHT_DRAFT]
    assert (state.hold, len(state.leases), controlled.asked_for()) == (None, 1, {"alert": LIGHT_DRAFT})
    assert controlled.told == [("full", "light_draft prompt_lookup", "alert")]


def test_fallback_state_reports_loading_until_the_engine_serves() -> None:
    controlled = Controlled()
    controlled.engine.not_serving = NotServing("the model is still loading")
    controlled.at(1)
    state = reply.fallback(controlled.controller.state())
    assert state.loading
    controlled.engine.not_serving = None
    controlled.at(2)
    assert not controlled.controller.state().loading
