"""The level that the daemon's own signals ask for, and when they stop."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel, WorkloadClass
from draftd.counts import DraftCounts
from draftd.fallback.drift import Baseline, StreamKey
from draftd.fallback.ladder import Cause
from draftd.fallback.probes import CanaryReport, ProbeVerdict
from draftd.fallback.signals import LEVELS, MachineReading, SignalState
from draftd.settings import FallbackSettings

SETTINGS = FallbackSettings()
CODE: StreamKey = (DRAFT_MODEL, WorkloadClass.CODE)
CHAT: StreamKey = (DRAFT_MODEL, WorkloadClass.CHAT)
LOOKUP: StreamKey = (PROMPT_LOOKUP, WorkloadClass.CODE)
KNOWN = {CODE: Baseline(0.8, 0.2), CHAT: Baseline(0.6, 0.2)}
WINDOW = SETTINGS.window_seconds


def counts(drafts: int, accepted: int, rollbacks: int, break_even: float = 0.0, cut: int = 0) -> DraftCounts:
    return DraftCounts(drafts=drafts, accepted=accepted, cut=cut, rollbacks=rollbacks, break_even_tokens=break_even)


@dataclass
class Watched:
    """A guard over time. Each request reaches 100 drafted tokens in 40 steps, and pays by default."""

    guard: SignalState = field(default_factory=lambda: SignalState.new(SETTINGS, KNOWN))
    now: float = 0.0

    def requests(
        self,
        count: int,
        acceptance: float,
        kind: StreamKey = CODE,
        *,
        seconds: float = 10.0,
        costs: float = 0.0,
        cut: int = 0,
    ) -> Watched:
        for _ in range(count):
            self.now += seconds
            accepted = round(100 * acceptance)
            self.guard = self.guard.add_request(self.now, *kind, counts(40, accepted, 100 - accepted, costs, cut))
        return self

    def read(self, count: int, reading: MachineReading, *, seconds: float = 5.0) -> Watched:
        for _ in range(count):
            self.now += seconds
            self.guard = self.guard.machine(reading, self.now)
        return self

    def asked(self) -> dict[Cause, FallbackLevel]:
        return {signal.cause: signal.asks_for for signal in self.guard.signals(self.now)}

    def evidence(self, cause: Cause) -> str:
        return next(signal.evidence for signal in self.guard.signals(self.now) if signal.cause is cause)

    def hard(self, cause: Cause) -> bool:
        return next(signal.hard for signal in self.guard.signals(self.now) if signal.cause is cause)


def test_fallback_guard_without_evidence_asks_for_no_level() -> None:
    assert SignalState.new(SETTINGS, {}).signals(1e9) == ()
    assert Watched().requests(100, 0.8).asked() == {}


def test_acceptance_drop_below_baseline_asks_for_short_block_and_names_the_workload() -> None:
    watched = Watched().requests(30, 0.55)
    assert watched.asked() == {Cause.ACCEPTANCE_DRIFT: FallbackLevel.SHORT_BLOCK}
    assert watched.evidence(Cause.ACCEPTANCE_DRIFT) == (
        "code by draft_model: acceptance 0.55 in 30 requests over 290 s, baseline 0.80; CUSUM 16.0, limit 8"
    )
    assert not watched.hard(Cause.ACCEPTANCE_DRIFT)
    assert watched.guard.drift() == {"code": pytest.approx(2.0), "chat": 0.0}


def test_acceptance_baselines_are_per_workload_so_a_changed_mix_is_no_drift() -> None:
    assert Watched().requests(100, 0.8, CODE).requests(100, 0.6, CHAT).asked() == {}
    assert Cause.ACCEPTANCE_DRIFT in Watched().requests(100, 0.6, CODE).asked()


def test_drift_signal_of_a_workload_ends_two_windows_after_its_last_request() -> None:
    watched = Watched().requests(30, 0.55)
    watched.now += 2 * SETTINGS.window_seconds
    assert Cause.ACCEPTANCE_DRIFT in watched.asked()
    watched.now += 1
    assert watched.asked() == {}


def test_draft_model_acceptance_baseline_is_measured_only_at_top_level() -> None:
    low = Watched(SignalState.new(SETTINGS, {}, position=2)).requests(100, 0.7, CODE)
    assert low.guard.learnt() == {}
    lookup = Watched(SignalState.new(SETTINGS, {}, position=4)).requests(100, 0.3, LOOKUP)
    assert lookup.guard.learnt()[LOOKUP].mean == pytest.approx(0.3)
    top = Watched(SignalState.new(SETTINGS, {})).requests(100, 0.7)
    assert top.guard.learnt()[CODE].mean == pytest.approx(0.7)
    assert top.guard.drift() == {"code": 0.0}


def test_draft_head_is_held_to_the_floor_and_learns_its_baseline_only_at_the_top_like_a_draft_model() -> None:
    head: StreamKey = (DRAFT_HEAD, WorkloadClass.CODE)
    low = Watched(SignalState.new(SETTINGS, {})).requests(70, 0.2, head)
    assert low.asked()[Cause.ACCEPTANCE_FLOOR] is FallbackLevel.SHORT_BLOCK
    below = Watched(SignalState.new(SETTINGS, {}, position=1)).requests(200, 0.8, head)
    assert head not in below.guard.learnt()
    assert head in Watched(SignalState.new(SETTINGS, {})).requests(200, 0.8, head).guard.learnt()


def test_acceptance_below_the_floor_in_two_windows_asks_for_short_block() -> None:
    watched = Watched(SignalState.new(SETTINGS, {})).requests(45, 0.39)  # a window and a half
    assert watched.asked() == {}
    watched.requests(16, 0.39)
    assert watched.asked() == {Cause.ACCEPTANCE_FLOOR: FallbackLevel.SHORT_BLOCK}
    assert watched.evidence(Cause.ACCEPTANCE_FLOOR) == (
        "acceptance 0.39 of 30 requests, floor 0.40, in 2 windows of 300 s in a row"
    )


def test_prompt_lookup_is_lowered_for_low_speedup_but_not_for_low_acceptance() -> None:
    watched = Watched(SignalState.new(SETTINGS, {}, position=4)).requests(100, 0.1, LOOKUP)
    assert watched.asked() == {}
    assert Watched(SignalState.new(SETTINGS, {}, position=4)).requests(100, 0.1, LOOKUP, costs=40.0).asked() == {
        Cause.BREAK_EVEN: FallbackLevel.AUTOREGRESSIVE
    }


def test_two_windows_below_break_even_ask_for_the_autoregressive_level() -> None:
    watched = Watched().requests(30, 0.8, costs=90.0)
    assert watched.asked() == {}, "one window"
    watched.requests(35, 0.8, costs=90.0)
    assert watched.asked() == {Cause.BREAK_EVEN: FallbackLevel.AUTOREGRESSIVE}
    assert watched.evidence(Cause.BREAK_EVEN) == (
        "speed-up 0.92 over autoregressive decoding in 30 requests, minimum 1, in 2 windows of 300 s in a row"
    )
    assert watched.requests(35, 0.8, costs=70.0).asked() == {}, "120 tokens in the time of 110"
    watched.requests(65, 0.8, costs=70.0, cut=20)
    assert watched.asked() == {Cause.BREAK_EVEN: FallbackLevel.AUTOREGRESSIVE}, "100 that the texts had room for"


def test_drafts_without_a_measured_cost_do_not_count_in_the_speedup() -> None:
    guard = Watched().guard
    unpriced = counts(20, 16, 4)
    unpriced.unpriced_drafts = 20
    assert guard.add_request(1.0, *CODE, unpriced).speed == guard.advance(1.0).speed


def test_windows_with_too_few_requests_raise_no_fallback_signal() -> None:
    watched = Watched().requests(20, 0.8, costs=200.0, seconds=WINDOW / 9)
    assert watched.asked() == {}


def test_request_without_drafts_leaves_the_fallback_guard_unchanged() -> None:
    before = Watched().guard
    assert before.add_request(1.0, *CODE, counts(0, 0, 0)) is before


def test_level_change_clears_request_and_error_signals_and_keeps_acceptance_baselines() -> None:
    watched = Watched().requests(100, 0.3, costs=90.0)
    for _ in range(3):
        watched.guard = watched.guard.add_failure(Cause.VERIFIER_ERRORS, watched.now).add_failure(
            Cause.DRAFTER_ERRORS, watched.now
        )
    assert len(watched.asked()) == 5
    watched.guard = watched.guard.on_step(watched.now, 1)
    assert watched.asked() == {}
    assert watched.guard.learnt() == KNOWN
    assert Cause.ACCEPTANCE_DRIFT in watched.requests(100, 0.3).asked()


@pytest.mark.parametrize(
    ("cause", "level"),
    [
        (Cause.VERIFIER_ERRORS, FallbackLevel.AUTOREGRESSIVE),
        (Cause.DRAFTER_ERRORS, FallbackLevel.LIGHT_DRAFT),
    ],
)
def test_three_decode_errors_within_a_window_raise_a_hard_signal_that_expires(
    cause: Cause, level: FallbackLevel
) -> None:
    watched = Watched()
    for at in (0.0, 299.0):
        watched.guard = watched.guard.add_failure(cause, at)
    watched.now = 299.0
    assert watched.asked() == {}
    watched.now = 310.0
    watched.guard = watched.guard.add_failure(cause, 310.0)
    assert watched.asked() == {}, "the first is a window ago"
    watched.guard = watched.guard.add_failure(cause, 310.0)
    assert watched.asked() == {cause: level}
    assert watched.hard(cause)
    assert watched.evidence(cause).startswith("3 failed ")
    watched.now = 600.0
    assert watched.asked() == {}


def test_critical_memory_raises_a_hard_signal_after_its_minimum_duration() -> None:
    watched = Watched().read(2, MachineReading(True, None, None))
    assert watched.asked() == {}
    watched.read(1, MachineReading(True, None, None))
    assert watched.asked() == {Cause.MEMORY: FallbackLevel.AUTOREGRESSIVE}
    assert watched.hard(Cause.MEMORY)
    assert watched.evidence(Cause.MEMORY) == "memory pressure critical for 10 s, limit 10 s"
    assert watched.read(1, MachineReading(False, None, None)).asked() == {}


def test_unknown_thermal_reading_neither_starts_nor_ends_a_thermal_signal() -> None:
    watched = Watched().read(1, MachineReading(None, True, None)).read(20, MachineReading(None, None, None))
    assert watched.asked() == {}
    watched.read(1, MachineReading(None, True, None))
    assert watched.asked() == {Cause.THERMAL: FallbackLevel.SHORT_BLOCK}
    assert not watched.hard(Cause.THERMAL)
    assert watched.read(20, MachineReading(None, None, None)).asked() == {Cause.THERMAL: FallbackLevel.SHORT_BLOCK}
    assert watched.read(1, MachineReading(None, False, None)).asked() == {}


def test_level_change_keeps_the_memory_signal_and_clears_the_swap_signal() -> None:
    watched = Watched()
    for read in range(5):
        watched.read(1, MachineReading(True, None, read * 64 * 2**20))
    assert watched.asked() == {Cause.MEMORY: FallbackLevel.AUTOREGRESSIVE, Cause.SWAP: FallbackLevel.LIGHT_DRAFT}
    watched.guard = watched.guard.on_step(watched.now, 1)
    assert watched.asked() == {Cause.MEMORY: FallbackLevel.AUTOREGRESSIVE}


def test_swap_signal_depends_on_swap_in_growth_within_a_window() -> None:
    mega = 2**20
    slow, fast = Watched(), Watched()
    for read in range(400):
        slow.read(1, MachineReading(None, None, read * mega // 4), seconds=1.0)
        fast.read(1, MachineReading(None, None, read * mega), seconds=1.0)
    assert slow.asked() == {}
    assert fast.asked() == {Cause.SWAP: FallbackLevel.LIGHT_DRAFT}
    assert len(fast.guard.swap.marks) <= 12
    fast.now += 2 * WINDOW
    assert fast.asked() == {}, "nothing grew since"
    assert Watched().read(1, MachineReading(None, None, 10**12)).asked() == {}, "what was there before is no growth"
    assert fast.read(1, MachineReading(None, None, 5)).asked() == {}, "a counter that begins anew"
    again = Watched().read(1, MachineReading(None, None, 10**12)).read(1, MachineReading(None, None, 0))
    assert again.read(1, MachineReading(None, None, 200 * mega)).asked() == {Cause.SWAP: FallbackLevel.LIGHT_DRAFT}


def test_bad_canary_signal_asks_for_autoregressive_level_until_good_canaries() -> None:
    watched = Watched(SignalState.new(SETTINGS, {}, quality="17 of 20 canaries passed"))
    for verdict in (None, ProbeVerdict.FAILED, ProbeVerdict.TOO_FEW_SAMPLES):
        if verdict is not None:
            watched.guard = watched.guard.canaries(CanaryReport(verdict, "busy"))
        watched.guard = watched.guard.on_step(1.0, 5)
        watched.now += 1e6
        assert watched.asked() == {Cause.QUALITY: FallbackLevel.AUTOREGRESSIVE}
        assert watched.hard(Cause.QUALITY)
        assert watched.evidence(Cause.QUALITY) == "17 of 20 canaries passed"
    watched.guard = watched.guard.canaries(CanaryReport(ProbeVerdict.GOOD, "all"))
    assert watched.asked() == {}
    watched.guard = watched.guard.canaries(CanaryReport(ProbeVerdict.BAD, "worse"))
    assert watched.evidence(Cause.QUALITY) == "worse"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["request", "verifier", "drafter", "machine", "step", "advance"]),
        st.floats(-100, 1000),
        st.integers(0, 60),
        st.integers(0, 60),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_each_fallback_signal_asks_for_its_causes_level_and_has_evidence_for_any_events(
    events: list[tuple[str, float, int, int]],
) -> None:
    guard, now = SignalState.new(SETTINGS, KNOWN), 0.0
    for what, seconds, one, other in events:
        now += seconds
        if what == "request":
            guard = guard.add_request(now, *CODE, counts(one % 5, one, other, other / 2))
        elif what == "verifier":
            guard = guard.add_failure(Cause.VERIFIER_ERRORS, now)
        elif what == "drafter":
            guard = guard.add_failure(Cause.DRAFTER_ERRORS, now)
        elif what == "machine":
            guard = guard.machine(MachineReading(one % 3 == 0, other % 2 == 0 or None, one * 2**23), now)
        elif what == "step":
            guard = guard.on_step(now, one % 2)
        else:
            guard = guard.advance(now)
        for signal in guard.signals(now):
            assert signal.asks_for == LEVELS[signal.cause]
            assert signal.evidence
