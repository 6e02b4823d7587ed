"""The ladder, driven by signals and a clock that hypothesis invents."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.daemon import Step
from benchmarks.simulate.outcome import flaps
from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel, LadderLevel
from draftd.fallback.ladder import (
    Cause,
    Hold,
    LadderSettings,
    LadderState,
    Permit,
    Signal,
    highest,
    ladder_levels,
    lowest,
    move,
    to_probe,
)

FULL, SHORT, LIGHT, PLAIN = (
    FallbackLevel.FULL, FallbackLevel.SHORT_BLOCK, FallbackLevel.LIGHT_DRAFT, FallbackLevel.AUTOREGRESSIVE,
)  # fmt: skip
LADDER = ladder_levels(6, (6, 4, 3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))
BOTTOM = len(LADDER) - 1
SETTINGS = LadderSettings(cooldown=100, longest_wait=1000, relapse_within=500, forgiven_after=2000)


def soft(level: FallbackLevel = PLAIN) -> Signal:
    return Signal(Cause.ACCEPTANCE_DRIFT, level, "0.31 of 0.72")


def hard(level: FallbackLevel = PLAIN) -> Signal:
    return Signal(Cause.MEMORY, level, "critical for 30 s", hard=True)


@dataclass
class Climb:
    """A ladder over time."""

    state: LadderState = field(default_factory=LadderState)
    steps: list[Step] = field(default_factory=list)

    def at(self, now: float, *signals: Signal, probe: bool = False) -> int:
        permit = Permit(self.state.position - 1) if probe else None
        before, self.state = self.state, move(self.state, LADDER, signals, permit, SETTINGS, now)
        if (step := Step.between(before, self.state, now)) is not None:
            self.steps.append(step)
        return self.state.position


def test_fallback_ladder_orders_full_shorter_blocks_light_drafter_and_autoregressive() -> None:
    assert (
        LadderLevel(FULL, 6, DRAFT_MODEL),
        LadderLevel(SHORT, 4, DRAFT_MODEL),
        LadderLevel(SHORT, 3, DRAFT_MODEL),
        LadderLevel(SHORT, 2, DRAFT_MODEL),
        LadderLevel(LIGHT, 2, PROMPT_LOOKUP),
        LadderLevel(PLAIN, 0, None),
    ) == LADDER


def test_fallback_ladder_with_zero_draft_tokens_has_a_single_level() -> None:
    ladder = ladder_levels(0, (4,), DRAFT_MODEL, (PROMPT_LOOKUP,))
    assert ladder == (LadderLevel(FULL, 0, DRAFT_MODEL),)
    assert move(LadderState(), ladder, [hard()], None, SETTINGS, 0.0) == LadderState()


@pytest.mark.parametrize(("kind", "position"), [(FULL, 0), (SHORT, 3), (LIGHT, 4), (PLAIN, 5)])
def test_fallback_signal_targets_lowest_ladder_level_of_the_kind_the_signal_asks_for(
    kind: FallbackLevel, position: int
) -> None:
    assert lowest(LADDER, kind) == position


def test_fallback_signal_for_a_missing_level_kind_targets_the_next_lower_level() -> None:
    short = ladder_levels(4, (), DRAFT_MODEL, ())
    assert lowest(short, SHORT) == lowest(short, LIGHT) == 1


def test_operator_hold_targets_highest_ladder_level_of_the_kind_the_operator_named() -> None:
    assert [highest(LADDER, level) for level in (FULL, SHORT, LIGHT, PLAIN)] == [0, 1, 4, 5]
    assert highest(ladder_levels(4, (), DRAFT_MODEL, ()), SHORT) == 1


def test_soft_signal_lowers_the_ladder_one_level_per_cooldown() -> None:
    climb = Climb()
    assert [climb.at(now, soft()) for now in (0, 50, 99, 100, 150, 200, 300, 400, 500, 600)] == [
        1, 1, 1, 2, 2, 3, 4, 5, 5, 5,
    ]  # fmt: skip
    climb = Climb()
    assert [climb.at(now, soft(SHORT)) for now in (0, 100, 200, 300)] == [1, 2, 3, 3]


def test_next_level_to_probe_skips_drafters_with_bad_probes_until_all_were_probed() -> None:
    assert to_probe(LADDER, 0, ()) is None
    assert [to_probe(LADDER, BOTTOM, tried) for tried in ((), {4}, {4, 3})] == [4, 3, 4]
    assert to_probe(LADDER, 3, {2}) == 2, "a longer block of a draft that is bad at a short one is not tried"


def test_ladder_step_up_goes_no_higher_than_the_probed_level() -> None:
    plain = LadderState(BOTTOM, since=0.0, signal=Signal(Cause.BREAK_EVEN, PLAIN))
    state = move(plain, LADDER, (), Permit(3, "it was good"), SETTINGS, 200.0)
    assert (state.position, state.signal) == (3, Signal(Cause.RECOVERED, SHORT, "it was good"))
    for wrong in (BOTTOM, BOTTOM + 3):
        assert move(plain, LADDER, (), Permit(wrong), SETTINGS, 200.0).position == BOTTOM - 1
    assert move(plain, LADDER, [soft(LIGHT)], Permit(3), SETTINGS, 200.0) == plain, "a signal binds"


def test_hard_signal_lowers_the_ladder_at_once() -> None:
    climb = Climb()
    climb.at(0, soft())
    assert climb.at(1, soft(), hard()) == BOTTOM
    assert climb.steps[-1].signal == hard()
    assert hard().text == "memory: critical for 30 s"


def test_lowest_level_among_fallback_signals_wins() -> None:
    climb = Climb()
    assert climb.at(0, hard(SHORT), hard(LIGHT)) == 4


def test_ladder_step_up_needs_elapsed_wait_good_probe_and_no_signal() -> None:
    climb = Climb()
    climb.at(0, hard())
    assert climb.at(199, probe=True) == BOTTOM  # two cooldowns after a step down
    assert climb.at(200) == BOTTOM
    assert climb.at(200, soft(PLAIN), probe=True) == BOTTOM
    assert climb.at(200, soft(LIGHT), probe=True) == BOTTOM - 1  # the level it asks for
    assert climb.at(299, probe=True) == BOTTOM - 1  # one after a step up
    assert climb.at(300, soft(LIGHT), probe=True) == BOTTOM - 1
    assert climb.at(300, probe=True) == BOTTOM - 2


def test_ladder_step_up_wait_doubles_per_relapse_and_halves_after_quiet_time() -> None:
    climb, now = Climb(), 0.0
    waits = []
    for _ in range(6):
        climb.at(now, soft())
        waits.append(climb.state.wait(SETTINGS))
        now += waits[-1]
        assert climb.at(now - 1, probe=True) == 1
        assert climb.at(now, probe=True) == 0
        now += SETTINGS.cooldown
    assert waits == [200, 400, 800, 1000, 1000, 1000]
    before, since = climb.state.relapses, climb.state.since
    for later in (1000, 2000, 3000, 4000):
        climb.at(now + later)
    assert climb.state.relapses == before - 2
    assert climb.state.since == since  # forgiving is no step: the next fault is obeyed at once
    assert climb.at(now + 4001, soft()) == 1


def test_operator_hold_overrides_hard_signals_until_it_expires() -> None:
    climb = Climb(LadderState(hold=Hold(2, until=1000.0)))
    assert climb.at(0, hard()) == 2
    assert climb.at(999) == 2
    climb = Climb(LadderState(hold=Hold(0)))
    assert climb.at(1e9, hard()) == 0


def test_renewed_operator_hold_becomes_the_recorded_cause_of_the_fallback_level() -> None:
    climb = Climb(LadderState(hold=Hold(2)))
    climb.at(0)
    climb.state = replace(climb.state, hold=Hold(2, until=1000.0))
    climb.at(1)
    assert climb.state.signal is not None
    assert climb.state.signal.evidence == Hold(2, until=1000.0).evidence


@pytest.mark.parametrize(
    ("before", "held", "signals", "then"),
    [
        (0, 2, (), 0),  # back to where it was, without a probe
        (1, BOTTOM, (), 1),
        (0, BOTTOM, (soft(SHORT),), lowest(LADDER, SHORT)),  # as far as the present signals allow
        (0, 0, (soft(SHORT),), lowest(LADDER, SHORT)),
        (0, 2, (soft(SHORT), hard()), BOTTOM),
        (3, 0, (), 0),  # it was held higher, and nothing speaks against it
    ],
)
def test_expired_hold_moves_the_ladder_at_once_to_the_level_that_signals_allow(
    before: int, held: int, signals: tuple[Signal, ...], then: int
) -> None:
    climb = Climb(LadderState(before, hold=Hold(held, until=1000.0, before=before)))
    assert climb.at(999, *signals) == held
    assert climb.at(1000, *signals) == then
    assert climb.state.hold is None
    assert climb.state.signal is not None
    assert climb.state.signal.cause is not Cause.HOLD, "it no longer explains the level"
    if then:
        assert climb.at(1199, probe=True) == then, "the next step up has its usual wait"


EVENTS = st.lists(
    st.tuples(
        st.floats(-50, 400),  # seconds since the last; a clock may jump back
        st.lists(
            st.builds(Signal, st.sampled_from(Cause), st.sampled_from(FallbackLevel), st.just("x"), st.booleans()),
            max_size=3,
        ),
        st.booleans(),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_ladder_rises_one_level_after_its_wait_and_falls_at_once_on_hard_signals(
    events: list[tuple[float, list[Signal], bool]],
) -> None:
    climb, now = Climb(), 0.0
    for seconds, signals, probe in events:
        now += seconds
        before = climb.state
        position = climb.at(now, *signals, probe=probe)
        assert 0 <= position <= BOTTOM
        if position < before.position:
            assert position == before.position - 1
            assert probe
            assert now - before.since >= before.wait(SETTINGS)
            assert all(lowest(LADDER, signal.asks_for) <= position for signal in signals)
        if position > before.position:
            assert max(lowest(LADDER, signal.asks_for) for signal in signals) >= position
            urgent = [lowest(LADDER, signal.asks_for) for signal in signals if signal.hard]
            assert position == before.position + 1 or position == max(urgent)
        if any(signal.hard for signal in signals):
            assert position >= max(lowest(LADDER, signal.asks_for) for signal in signals if signal.hard)
        if position != before.position:
            assert climb.state.signal is not None


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_ladder_returns_to_top_level_from_any_state_with_good_probes(
    events: list[tuple[float, list[Signal], bool]],
) -> None:
    """From any state, quiet and good probes lead back to the top in bounded time."""
    climb, now = Climb(), 0.0
    for seconds, signals, probe in events:
        now += seconds
        climb.at(now, *signals, probe=probe)
    for _ in range(BOTTOM):
        now += SETTINGS.longest_wait + 50
        climb.at(now, probe=True)
    assert climb.state.position == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["fine", "soft", "hard"]), min_size=50, max_size=400))
def test_ladder_does_not_flap_under_random_signals_with_good_probes(course: list[str]) -> None:
    """Causes come and go at random, as hard as they like, and probes are always good."""
    causes: dict[str, list[Signal]] = {"fine": [], "soft": [soft(SHORT)], "hard": [hard()]}
    climb = Climb()
    for i, what in enumerate(course):
        climb.at(i * 10.0, *causes[what], probe=True)
    assert flaps(climb.steps, SETTINGS.cooldown) == []


def test_ladder_steps_up_at_growing_intervals_while_a_cause_recurs() -> None:
    climb = Climb()
    for now in range(0, 20_000, 10):
        climb.at(float(now), *([soft(SHORT)] if climb.state.position == 0 else []), probe=True)
    ups = [step.at for step in climb.steps if step.current < step.previous]
    assert [later - earlier for earlier, later in itertools.pairwise(ups)][:4] == [500, 900, 1100, 1100]
