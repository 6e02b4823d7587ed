"""Each signal leads to its step, and back up again when it is gone and a probe is good."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from draftd.control.journal import Subject
from draftd.core import DecodeMode, DrafterKind, FallbackLevel, Origin
from draftd.errors import ModelLoadError, NotNow, NotServing
from draftd.hardware.sample import HardwareSample, MemoryPressure, ThermalLevel
from draftd.hardware.state import HardwareState
from draftd.policy.leases import Applied, Notice
from draftd.policy.reports import CanaryReport, Verdict
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

GOOD, POOR = 0.8, 0.2
Sense = Callable[[Steered], None]


@dataclasses.dataclass
class Machine:
    """A HardwareView whose readings the test makes."""

    state: HardwareState | None = None
    errors: dict[str, int] = dataclasses.field(default_factory=dict)

    def reads(self, at: float, swap_ins: int | None = None, **sample: object) -> None:
        thermal = sample.get("thermal_level")
        found = HardwareSample(**sample)  # type: ignore[arg-type]
        self.state = HardwareState(found, at, thermal_level=thermal, swap_ins=swap_ins)  # type: ignore[arg-type]


def notice(level: FallbackLevel, *, hard: bool = False, firing: bool = True, starts_at: float = START) -> Notice:
    return Notice("DraftdSomething", "abc", firing, starts_at, level, hard)


def tell(steered: Steered, *notices: Notice) -> list[Applied]:
    """As the webhook does, on this thread."""
    asked = steered.controller._inbox.ask(lambda now: steered.controller._steering.notices(notices, now))
    steered.controller.tick()
    return asked.result(0)


def hold(steered: Steered, level: FallbackLevel, expires_in: float | None = None) -> None:
    steered.controller._inbox.ask(lambda now: steered.controller._steering.hold(level, expires_in, now))
    steered.controller.tick()


def release(steered: Steered) -> bool:
    asked = steered.controller._inbox.ask(steered.controller._steering.release)
    steered.controller.tick()
    return asked.result(0)


def fail(steered: Steered, observed: str, times: int = 3) -> None:
    for n in range(times):
        request = dataclasses.replace(a_request(), id=f"request {n}")
        getattr(steered.intake, observed)(request, "broken")
        steered.request()


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
        ("on_verifier_error", BOTTOM, "verifier_errors", (0, frozenset[DrafterKind]())),
        ("on_drafter_error", LIGHT, "drafter_errors", (2, frozenset({DrafterKind.PROMPT_LOOKUP}))),
    ],
)
def test_repeated_errors_are_obeyed_at_once_by_running_requests_too(
    observed: str, rung: int, signal: str, lowered: tuple[int, frozenset[DrafterKind]]
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
    assert steered.engine.held == {DrafterKind.DRAFT_MODEL}


def test_a_probe_does_not_keep_weights_in_memory_that_is_critically_short() -> None:
    machine = Machine()
    steered = Steered(hardware=machine, critical_seconds=0)
    hold(steered, PLAIN)
    with steered.residency.borrow(DrafterKind.DRAFT_MODEL):
        assert steered.engine.held == {DrafterKind.DRAFT_MODEL}
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


def test_a_probe_that_is_not_good_leaves_the_ladder_and_is_made_again_after_a_dwell() -> None:
    steered = Steered()
    tell(steered, notice(SHORT_BLOCK))
    tell(steered, notice(SHORT_BLOCK, firing=False))
    steered.examiner.verdict = Verdict.BAD
    assert steered.until(1000) == SHORT
    assert 5 <= len(steered.examiner.probed) <= 10
    assert set(steered.examiner.probed) == {LADDER[TOP]}


def test_a_drafter_that_does_not_pay_does_not_bar_the_way_to_one_that_does() -> None:
    steered = Steered()
    steered.examiner.verdicts[LADDER[LIGHT]] = Verdict.BAD
    tell(steered, notice(PLAIN, hard=True))
    tell(steered, notice(PLAIN, hard=True, firing=False))
    assert steered.until(8 * DWELL) == TOP
    assert LADDER[LIGHT] in steered.examiner.probed
    assert ("autoregressive", "short_block 2", "recovered") in steered.told


def test_where_every_drafter_was_bad_all_are_tried_again() -> None:
    steered = Steered()
    steered.examiner.verdict = Verdict.BAD
    tell(steered, notice(PLAIN, hard=True))
    tell(steered, notice(PLAIN, hard=True, firing=False))
    steered.until(12 * DWELL)
    tried = steered.examiner.probed
    assert tried[:4] == [LADDER[LIGHT], LADDER[SHORTER], LADDER[LIGHT], LADDER[SHORTER]]


def test_a_busy_daemon_spends_no_more_than_its_share_on_probes() -> None:
    steered = Steered(probe_share=0.02)
    tell(steered, notice(SHORT_BLOCK))
    tell(steered, notice(SHORT_BLOCK, firing=False))
    steered.engine.active = 1
    steered.examiner.verdict = Verdict.TOO_FEW_SAMPLES
    steered.examiner.slow = True
    for at in range(3000):
        steered.at(float(at))
        if at % 5 == 0:
            steered.examiner.end()  # a probe takes up to five seconds
    assert 5 <= len(steered.examiner.probed) <= 3000 * 0.02
    never = Steered(probe_share=0)
    tell(never, notice(SHORT_BLOCK))
    tell(never, notice(SHORT_BLOCK, firing=False))
    never.engine.active = 1
    never.until(2000)
    assert never.examiner.probed == []


def test_a_probe_that_a_step_overtook_lets_nothing_up() -> None:
    steered = Steered()
    tell(steered, notice(SHORT_BLOCK))
    tell(steered, notice(SHORT_BLOCK, firing=False))
    steered.examiner.slow = True
    steered.until(2 * DWELL - 1)
    assert steered.examiner.busy
    tell(steered, notice(PLAIN, hard=True, starts_at=START + 1))
    tell(steered, notice(PLAIN, hard=True, firing=False, starts_at=START + 1))
    steered.examiner.end()
    steered.examiner.slow = False
    steered.examiner.verdict = Verdict.BAD
    assert steered.until(9 * DWELL) == BOTTOM


def test_a_probe_that_new_weights_overtook_lets_nothing_up() -> None:
    steered = Steered()
    tell(steered, notice(SHORT_BLOCK))
    tell(steered, notice(SHORT_BLOCK, firing=False))
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
    tell(steered, notice(PLAIN, hard=True))
    tell(steered, notice(PLAIN, hard=True, firing=False))
    while not steered.examiner.probed:
        steered.at(steered.now + 1)
    hold(steered, FULL, 1.0)
    steered.until(steered.now + 2)
    tell(steered, notice(PLAIN, hard=True, starts_at=START + 1))
    tell(steered, notice(PLAIN, hard=True, firing=False, starts_at=START + 1))
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


def test_a_hold_outranks_everything_and_its_end_lets_the_ladder_go_on() -> None:
    steered = Steered()
    hold(steered, SHORT_BLOCK, 500.0)
    assert steered.rung == SHORT
    assert steered.engine.lowered == []  # running requests keep their plans
    assert steered.controller.state().hold is not None
    assert steered.controller.readings().held
    assert steered.until(3 * DWELL) == SHORT
    assert steered.examiner.probed == []  # nothing would come of it
    assert tell(steered, notice(PLAIN, hard=True)) == [Applied.ACCEPTED]
    assert steered.until(499) == SHORT
    assert steered.until(501) == BOTTOM
    assert [cause for _, _, cause in steered.told] == ["hold", "release", "alert"]
    assert steered.journal.latest(3)[0].evidence == "an operator's word, until 2027-01-15 08:08:20 UTC"


def test_a_hold_of_a_higher_level_waits_for_the_weights() -> None:
    steered = Steered()
    tell(steered, notice(PLAIN, hard=True))
    assert steered.engine.held == frozenset()
    steered.engine.slow = True
    hold(steered, FULL)
    assert steered.rung == BOTTOM
    steered.engine.load()
    assert steered.at(2) == TOP
    assert steered.told[-1] == ("autoregressive", "full", "hold")
    assert release(steered) is True
    assert steered.rung == BOTTOM  # the alert still fires
    assert release(steered) is False


def test_a_hold_of_the_level_in_force_is_in_the_journal_too() -> None:
    steered = Steered()
    hold(steered, FULL)
    release(steered)
    assert steered.told == [("full", "full", "hold"), ("full", "full", "release")]
    assert steered.telemetry.transitions == []
    assert {transition.subject for transition in steered.journal.latest(2)} == {Subject.LEVEL}


def test_a_drafter_that_cannot_be_loaded_keeps_the_ladder_where_it_is() -> None:
    steered = Steered()
    tell(steered, notice(PLAIN, hard=True))
    tell(steered, notice(PLAIN, hard=True, firing=False))
    steered.engine.failure = ModelLoadError("the folder is empty")
    steered.examiner.verdicts[LADDER[LIGHT]] = Verdict.BAD
    assert steered.until(10 * DWELL) == BOTTOM
    asked = [done for done in steered.trace.done if "draft_model" in done]
    assert 1 <= len(asked) <= 10  # once a dwell
    assert steered.engine.held == frozenset()
    steered.engine.failure = None
    assert steered.until(20 * DWELL) == TOP


def test_weights_that_never_come_are_given_up_and_let_go_of() -> None:
    steered = Steered()
    tell(steered, notice(PLAIN, hard=True))
    tell(steered, notice(PLAIN, hard=True, firing=False))
    steered.engine.slow = True
    hold(steered, FULL)
    steered.until(200)
    assert steered.rung == BOTTOM
    assert steered.trace.done[-1] == "keep "


def test_an_alert_while_the_weights_come_ends_the_climb() -> None:
    steered = Steered()
    tell(steered, notice(LIGHT_DRAFT, hard=True))
    tell(steered, notice(LIGHT_DRAFT, hard=True, firing=False))
    steered.engine.slow = True
    steered.until(2 * DWELL + 5)
    assert steered.rung == LIGHT
    assert steered.trace.done[-1] == "keep draft_model,prompt_lookup"
    tell(steered, notice(LIGHT_DRAFT, starts_at=START + 9))
    assert steered.trace.done[-1] == "keep prompt_lookup"
    steered.engine.load()
    assert steered.until(4 * DWELL) == LIGHT


def test_weights_that_were_on_their_way_before_a_step_down_are_asked_for_anew() -> None:
    steered = Steered()
    tell(steered, notice(LIGHT_DRAFT, hard=True))
    tell(steered, notice(LIGHT_DRAFT, hard=True, firing=False))
    steered.engine.slow = True
    steered.until(2 * DWELL + 5)
    assert steered.trace.done[-1] == "keep draft_model,prompt_lookup"
    tell(steered, notice(PLAIN, hard=True, starts_at=START + 9))
    tell(steered, notice(PLAIN, hard=True, firing=False, starts_at=START + 9))
    steered.engine.load()
    steered.examiner.verdicts[LADDER[LIGHT]] = Verdict.BAD  # so that it climbs to where it was climbing before
    assert steered.until(6 * DWELL) == BOTTOM
    assert steered.trace.done[-1] == "keep draft_model"
    steered.engine.load()
    assert steered.at(steered.now + 1) == SHORTER


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
    tell(steered, notice(PLAIN, hard=True))
    tell(steered, notice(PLAIN, hard=True, firing=False))
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
    tell(steered, notice(PLAIN, hard=True))
    tell(steered, notice(PLAIN, hard=True, firing=False))
    steered.engine.not_serving = NotServing("loading")
    steered.engine.held = frozenset({DrafterKind.DRAFT_MODEL})
    hold(steered, LIGHT_DRAFT)
    steered.until(50)
    assert (steered.rung, steered.examiner.probed) == (BOTTOM, [])
    steered.engine.not_serving = None
    assert steered.until(52) == LIGHT
    assert steered.engine.held == {DrafterKind.PROMPT_LOOKUP}


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
    assert state.loaded_drafters == {DrafterKind.PROMPT_LOOKUP}
    assert [demand.level for demand in state.demands] == [LIGHT_DRAFT]
    readings = steered.controller.readings()
    assert (readings.level, readings.rung, readings.held, readings.leases) == (LIGHT_DRAFT, LIGHT, False, 1)
    assert readings.demands == {"alert": LIGHT_DRAFT}
    assert steered.telemetry.transitions == [(FULL, LIGHT_DRAFT, "alert")]
