"""Each signal leads to its step, and back up again when it is gone and a probe is good."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodeMode, DrafterName, Origin
from draftd.errors import NotServing
from draftd.fallback.leases import Applied
from draftd.fallback.reports import CanaryReport, Verdict
from draftd.hardware.sample import MemoryPressure, ThermalLevel
from tests.unit.control.steered import (
    BOTTOM,
    DWELL,
    FULL,
    LADDER,
    LIGHT,
    LIGHT_DRAFT,
    PLAIN,
    SHORT,
    SHORT_BLOCK,
    SHORTER,
    START,
    TOP,
    WINDOW,
    Steered,
    a_request,
    wait_for,
)
from tests.unit.control.told import GOOD, POOR, Machine, fail, hold, notice, release, tell, tell_and_resolve

Sense = Callable[[Steered], None]


def test_nothing_moves_while_acceptance_is_good() -> None:
    steered = Steered()
    assert steered.traffic(20 * DWELL, GOOD) == TOP
    assert steered.told == []


def test_poor_acceptance_leads_to_the_shortest_block_a_rung_a_dwell_and_good_probes_lead_back() -> None:
    steered = Steered()
    steered.traffic(10 * DWELL, GOOD)  # the baseline is learnt
    began = steered.now
    while steered.rung == TOP:
        steered.traffic(steered.now + WINDOW / 5, POOR)
    assert steered.rung == SHORT
    fell = steered.now
    assert fell - began < 3 * WINDOW
    while steered.rung == SHORT:
        steered.traffic(steered.now + WINDOW / 5, POOR)
    assert steered.rung == SHORTER
    assert steered.now - fell >= DWELL
    assert steered.traffic(steered.now + 10 * DWELL, POOR) == SHORTER
    assert steered.engine.lowered == []
    assert steered.traffic(steered.now + 6 * DWELL, GOOD) == TOP
    assert [(previous, current) for previous, current, _ in steered.told] == [
        ("full", "short_block 3"),
        ("short_block 3", "short_block 2"),
        ("short_block 2", "short_block 3"),
        ("short_block 3", "full"),
    ]
    up = steered.journal.latest(1)[0]
    assert (up.cause, up.evidence) == ("recovered", "probe of full: as told")
    down = steered.journal.latest(4)[0]
    assert down.cause.startswith("acceptance")
    assert "acceptance 0.20" in down.evidence


def test_requests_that_do_not_pay_lead_to_autoregressive_decoding() -> None:
    steered = Steered()
    while steered.now < 12 * DWELL and steered.rung != BOTTOM:
        steered.traffic(steered.now + WINDOW / 5, GOOD, break_even=200.0)
    assert steered.rung == BOTTOM
    assert {cause for _, _, cause in steered.told} == {"break_even"}


@pytest.mark.parametrize(
    ("observed", "rung", "signal", "lowered"),
    [
        ("on_verifier_error", BOTTOM, "verifier_errors", (0, frozenset[DrafterName]())),
        ("on_drafter_error", LIGHT, "drafter_errors", (2, frozenset({PROMPT_LOOKUP}))),
    ],
)
def test_repeated_errors_are_obeyed_at_once_by_running_requests_too(
    observed: str, rung: int, signal: str, lowered: tuple[int, frozenset[DrafterName]]
) -> None:
    steered = Steered()
    fail(steered, observed, 2)
    assert steered.at(1) == TOP
    fail(steered, observed, 1)
    assert steered.at(2) == rung
    assert steered.told[-1][2] == signal
    assert steered.engine.lowered == [(*lowered, f"ladder: {signal}")]


def test_the_rows_of_one_failed_round_are_one_failure() -> None:
    steered = Steered()
    for n in range(8):
        steered.intake.on_verifier_error(dataclasses.replace(a_request(), id=f"row {n}"), "out of memory")
    assert steered.at(1) == TOP
    for _ in range(2):  # the same rows, twice more
        steered.intake.on_verifier_error(dataclasses.replace(a_request(), id="row 0"), "out of memory")
    assert steered.at(2) == BOTTOM


def test_memory_that_stays_critical_is_obeyed_at_once_and_its_end_lets_the_ladder_up() -> None:
    machine = Machine()
    steered = Steered(hardware=machine, critical_seconds=10)
    for at in (0, 5, 9):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        assert steered.at(at) == TOP
    machine.reads(10, memory_pressure=MemoryPressure.CRITICAL)
    assert steered.at(10) == BOTTOM
    assert steered.told[-1][2] == "memory"
    assert steered.engine.held == frozenset()
    for at in range(11, 1000, 7):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        steered.at(at)
    assert steered.rung == BOTTOM
    assert steered.examiner.probed == []  # a probe would need the weights
    machine.reads(1001, memory_pressure=MemoryPressure.NORMAL)
    assert steered.until(1001 + 6 * DWELL) == TOP
    assert steered.engine.held == {DRAFT_MODEL}


def test_a_probe_does_not_keep_weights_in_memory_that_is_critically_short() -> None:
    machine = Machine()
    steered = Steered(hardware=machine, critical_seconds=0)
    hold(steered, PLAIN)
    with steered.residency.borrow(DRAFT_MODEL):
        assert steered.engine.held == {DRAFT_MODEL}
        release(steered)
        hold(steered, LIGHT_DRAFT, 1.0)
        machine.reads(5, memory_pressure=MemoryPressure.CRITICAL)
        assert steered.at(5) == BOTTOM
        assert steered.engine.held == frozenset()


def test_a_machine_that_is_not_read_any_more_is_not_critical_for_ever() -> None:
    machine = Machine()
    steered = Steered(hardware=machine, critical_seconds=10)
    for at in (0, 5, 10):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        steered.at(at)
    assert steered.until(60) == BOTTOM
    assert steered.controller.readings().demands == {"memory": PLAIN}
    steered.at(71)
    assert steered.controller.readings().demands == {}


def test_heat_leads_to_shorter_blocks_and_swapping_to_the_light_drafter() -> None:
    machine = Machine()
    steered = Steered(hardware=machine, thermal_seconds=60, swap_bytes=1000)
    for at in range(0, 301, 10):
        machine.reads(at, thermal_level=ThermalLevel.HEAVY)
        steered.at(at)
    assert steered.rung == SHORTER
    assert steered.told[-1][2] == "thermal"
    machine.reads(301, thermal_level=ThermalLevel.NOMINAL, swap_ins=0)
    steered.at(301)
    machine.reads(311, thermal_level=ThermalLevel.NOMINAL, swap_ins=2000)
    assert steered.at(311) == LIGHT
    assert steered.told[-1][2] == "swap"


def test_bad_canaries_are_obeyed_at_once_and_only_good_ones_take_it_back() -> None:
    steered = Steered(canary_period_seconds=50)
    steered.examiner.quality = Verdict.BAD
    assert steered.until(49) == TOP
    steered.until(52)
    assert steered.rung == BOTTOM
    assert steered.told[-1][2] == "quality"
    assert steered.until(1000) == BOTTOM
    assert steered.examiner.probed == []
    runs = steered.examiner.tested
    assert 3 <= runs <= 10  # a run each wait, not more
    steered.examiner.quality = Verdict.GOOD
    assert steered.until(1000 + 6 * DWELL) == TOP


def test_bad_canaries_are_not_run_again_while_memory_is_critical() -> None:
    machine = Machine()
    steered = Steered(hardware=machine, critical_seconds=10, canary_period_seconds=50)
    steered.examiner.quality = Verdict.BAD
    steered.until(52)
    runs = steered.examiner.tested
    for at in range(53, 1000, 7):
        machine.reads(at, memory_pressure=MemoryPressure.CRITICAL)
        steered.at(at)
    assert steered.examiner.tested == runs
    machine.reads(1001, memory_pressure=MemoryPressure.NORMAL)
    steered.until(1010)
    assert steered.examiner.tested == runs + 1


def test_canaries_run_on_schedule_only_while_something_is_drafted() -> None:
    steered = Steered(canary_period_seconds=50)
    tell(steered, notice(PLAIN, hard=True))
    steered.until(500)
    assert steered.rung == BOTTOM
    assert steered.examiner.tested == 0
    steered = Steered(canary_period_seconds=50)
    steered.until(501)
    assert steered.examiner.tested == 10 - 1


def test_an_alert_leads_down_and_its_resolve_makes_no_step() -> None:
    steered = Steered()
    assert tell(steered, notice(LIGHT_DRAFT)) == [Applied.ACCEPTED]
    assert steered.rung == SHORT
    assert steered.told == [("full", "short_block 3", "alert")]
    assert tell(steered, notice(LIGHT_DRAFT)) == [Applied.DUPLICATE]
    steered.until(2 * DWELL + 5)
    assert steered.rung == LIGHT
    assert steered.until(900) == LIGHT
    steered.examiner.verdict = Verdict.BAD
    assert tell(steered, notice(LIGHT_DRAFT, firing=False)) == [Applied.RESOLVED]
    assert steered.until(1500) == LIGHT
    assert steered.examiner.probed
    steered.examiner.verdict = Verdict.GOOD
    assert steered.until(1500 + 6 * DWELL) == TOP


def test_a_critical_alert_binds_running_requests_and_runs_out_where_it_is_not_repeated() -> None:
    steered = Steered()
    tell(steered, notice(PLAIN, hard=True))
    assert steered.rung == BOTTOM
    assert [lowered[0] for lowered in steered.engine.lowered] == [0]
    steered.until(999)
    assert len(steered.controller.state().leases) == 1
    steered.at(1001)
    assert steered.controller.state().leases == ()
    assert steered.rung == BOTTOM


def test_the_alert_source_ends_what_it_lists_no_more() -> None:
    steered = Steered()
    steered.controller.polled([notice(PLAIN)])
    steered.at(1)
    assert [lease.notice.name for lease in steered.controller.state().leases] == ["DraftdSomething"]
    steered.controller.polled([])
    steered.at(2)
    assert steered.controller.state().leases == ()


def test_canaries_on_demand_count_like_those_on_schedule() -> None:
    steered = Steered()
    steered.examiner.quality = Verdict.BAD
    asked = steered.controller.canaries()
    wait_for([asked], steered)
    report = asked.result(0)
    assert isinstance(report, CanaryReport)
    steered.at(2)
    assert steered.rung == BOTTOM
    scores = steered.controller.readings().canary_scores
    assert scores == {DecodeMode.AUTOREGRESSIVE: 1.0, DecodeMode.SPECULATIVE: 0.0}


def test_probes_and_canaries_are_no_evidence_and_neither_is_what_drafted_nothing() -> None:
    steered = Steered()
    for at in range(0, 2000, 10):
        for origin in (Origin.PROBE, Origin.CANARY):
            steered.request(1, 99, origin=origin)
            steered.intake.on_verifier_error(a_request(origin=origin), "broken")
        steered.request(0, 0, drafts=0)
        steered.at(at)
    assert steered.told == []


def test_without_the_guard_only_alerts_and_canaries_move_it() -> None:
    steered = Steered(guard=False)
    steered.traffic(10 * DWELL, GOOD)
    steered.traffic(20 * DWELL, POOR)
    fail(steered, "on_verifier_error")
    steered.at(steered.now + 1)
    assert steered.told == []
    tell(steered, notice(SHORT_BLOCK))
    assert steered.rung == SHORT


def test_while_the_engine_loads_nothing_is_tried_and_its_weights_are_asked_for_afterwards() -> None:
    steered = Steered()
    tell_and_resolve(steered, PLAIN, hard=True)
    steered.engine.not_serving = NotServing("loading")
    steered.engine.held = frozenset({DRAFT_MODEL})
    hold(steered, LIGHT_DRAFT)
    steered.until(50)
    assert (steered.rung, steered.examiner.probed) == (BOTTOM, [])
    steered.engine.not_serving = None
    assert steered.until(52) == LIGHT
    assert steered.engine.held == {PROMPT_LOOKUP}


def test_a_flood_of_ended_requests_is_bounded() -> None:
    steered = Steered()
    for _ in range(10_000):
        steered.request()
    assert len(steered.intake.take()) == 4096


def test_what_is_shown_is_what_is() -> None:
    steered = Steered()
    tell(steered, notice(LIGHT_DRAFT, hard=True))
    state = steered.controller.state()
    assert (state.ladder, state.rung, state.since) == (LADDER, LIGHT, START)
    assert state.cause.startswith("alert: DraftdSomething fires since")
    assert (state.wait, state.relapses, state.state_file) == (2 * DWELL, 0, None)
    assert state.loaded_drafters == {PROMPT_LOOKUP}
    assert [demand.level for demand in state.demands] == [LIGHT_DRAFT]
    readings = steered.controller.readings()
    assert (readings.level, readings.rung, readings.held, readings.leases) == (LIGHT_DRAFT, LIGHT, False, 1)
    assert readings.demands == {"alert": LIGHT_DRAFT}
    assert steered.telemetry.transitions == [(FULL, LIGHT_DRAFT, "alert")]
