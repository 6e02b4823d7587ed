"""The ladder, driven by demands and a clock that hypothesis invents."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DrafterKind, FallbackLevel
from draftd.policy.ladder import Demand, Hold, Ladder, LadderSettings, Rung, Signal, Step, lowest, move, rungs

FULL, SHORT, LIGHT, PLAIN = (
    FallbackLevel.FULL, FallbackLevel.SHORT_BLOCK, FallbackLevel.LIGHT_DRAFT, FallbackLevel.AUTOREGRESSIVE,
)  # fmt: skip
LADDER = rungs(6, (6, 4, 3, 2), DrafterKind.DRAFT_MODEL, (DrafterKind.PROMPT_LOOKUP,))
BOTTOM = len(LADDER) - 1
SETTINGS = LadderSettings(dwell=100, longest_wait=1000, relapse_within=500, forgiven_after=2000)


def soft(level: FallbackLevel = PLAIN) -> Demand:
    return Demand(Signal.ACCEPTANCE_DRIFT, level, "0.31 of 0.72")


def hard(level: FallbackLevel = PLAIN) -> Demand:
    return Demand(Signal.MEMORY, level, "critical for 30 s", hard=True)


@dataclass
class Climb:
    """A ladder over time."""

    state: Ladder = field(default_factory=Ladder)
    steps: list[Step] = field(default_factory=list)

    def at(self, now: float, *demands: Demand, probe: bool = False) -> int:
        self.state, step = move(self.state, LADDER, demands, probe, SETTINGS, now)
        if step is not None:
            self.steps.append(step)
        return self.state.rung


def test_the_rungs_are_full_then_shorter_blocks_then_lighter_drafters_then_none() -> None:
    assert (
        Rung(FULL, 6, DrafterKind.DRAFT_MODEL),
        Rung(SHORT, 4, DrafterKind.DRAFT_MODEL),
        Rung(SHORT, 3, DrafterKind.DRAFT_MODEL),
        Rung(SHORT, 2, DrafterKind.DRAFT_MODEL),
        Rung(LIGHT, 2, DrafterKind.PROMPT_LOOKUP),
        Rung(PLAIN, 0, None),
    ) == LADDER
    assert rungs(0, (4,), DrafterKind.DRAFT_MODEL, ()) == (Rung(PLAIN, 0, None),)


@pytest.mark.parametrize(("level", "rung"), [(FULL, 0), (SHORT, 1), (LIGHT, 4), (PLAIN, 5)])
def test_a_demand_is_content_with_the_highest_rung_of_its_level(level: FallbackLevel, rung: int) -> None:
    assert lowest(LADDER, level) == rung


def test_a_level_that_the_ladder_lacks_is_met_by_the_next_lower_one() -> None:
    short = rungs(4, (), DrafterKind.DRAFT_MODEL, ())
    assert lowest(short, SHORT) == lowest(short, LIGHT) == 1


def test_a_lasting_soft_demand_goes_down_a_rung_a_dwell_and_no_further_than_it_asks() -> None:
    climb = Climb()
    assert [climb.at(now, soft()) for now in (0, 50, 99, 100, 150, 200, 300, 400, 500, 600)] == [
        1, 1, 1, 2, 2, 3, 4, 5, 5, 5,
    ]  # fmt: skip
    climb = Climb()
    assert [climb.at(now, soft(SHORT)) for now in (0, 100, 200, 300)] == [1, 1, 1, 1]


def test_a_hard_demand_is_obeyed_at_once() -> None:
    climb = Climb()
    climb.at(0, soft())
    assert climb.at(1, soft(), hard()) == BOTTOM
    assert climb.steps[-1].cause == "memory: critical for 30 s"


def test_the_lowest_demand_wins() -> None:
    climb = Climb()
    assert climb.at(0, hard(SHORT), hard(LIGHT)) == 4


def test_up_takes_the_wait_a_good_probe_and_nobody_who_objects_and_goes_by_one() -> None:
    climb = Climb()
    climb.at(0, hard())
    assert climb.at(99, probe=True) == BOTTOM
    assert climb.at(100) == BOTTOM
    assert climb.at(100, soft(PLAIN), probe=True) == BOTTOM
    assert climb.at(100, soft(LIGHT), probe=True) == BOTTOM - 1  # which is what it asks for
    assert climb.at(300, soft(LIGHT), probe=True) == BOTTOM - 1
    assert climb.at(300, probe=True) == BOTTOM - 2


def test_each_relapse_doubles_the_wait_up_to_a_limit_and_a_long_good_time_halves_it() -> None:
    climb, now = Climb(), 0.0
    waits = []
    for _ in range(6):
        climb.at(now, hard(SHORT))
        waits.append(climb.state.wait(SETTINGS))
        now += waits[-1]
        assert climb.at(now - 1, probe=True) == 1
        assert climb.at(now, probe=True) == 0
        now += 1
    assert waits == [100, 200, 400, 800, 1000, 1000]
    before = climb.state.relapses
    climb.at(now + 2000)
    assert climb.state.relapses == before - 1


def test_a_hold_outranks_everything_until_it_is_over_and_then_nothing_jumps() -> None:
    climb = Climb(Ladder(hold=Hold(2, until=1000.0)))
    assert climb.at(0, hard()) == 2
    assert climb.at(999, probe=True) == 2
    assert climb.at(1000, probe=True) == 2
    assert climb.at(1099, probe=True) == 2
    assert climb.at(1100, probe=True) == 1
    climb = Climb(Ladder(hold=Hold(0)))
    assert climb.at(1e9, hard()) == 0


EVENTS = st.lists(
    st.tuples(
        st.floats(-50, 400),  # seconds since the last; a clock may jump back
        st.lists(st.builds(Demand, st.sampled_from(Signal), st.sampled_from(FallbackLevel), st.just("x"), st.booleans()),
                 max_size=3),
        st.booleans(),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_whatever_happens_it_climbs_by_one_after_its_wait_and_falls_only_where_asked(
    events: list[tuple[float, list[Demand], bool]],
) -> None:
    climb, now = Climb(), 0.0
    for seconds, demands, probe in events:
        now += seconds
        before = climb.state
        rung = climb.at(now, *demands, probe=probe)
        assert 0 <= rung <= BOTTOM
        if rung < before.rung:
            assert rung == before.rung - 1
            assert probe
            assert now - before.since >= before.wait(SETTINGS)
            assert all(lowest(LADDER, demand.level) <= rung for demand in demands)
        if rung > before.rung:
            assert max(lowest(LADDER, demand.level) for demand in demands) >= rung
            urgent = [lowest(LADDER, demand.level) for demand in demands if demand.hard]
            assert rung == before.rung + 1 or rung == max(urgent)
        if any(demand.hard for demand in demands):
            assert rung >= max(lowest(LADDER, demand.level) for demand in demands if demand.hard)
        assert (rung != before.rung) == (len(climb.steps) > 0 and climb.steps[-1].at == now and bool(climb.state.cause)
                                         and climb.steps[-1].current == rung and climb.steps[-1].previous == before.rung)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_nothing_latches(events: list[tuple[float, list[Demand], bool]]) -> None:
    """From wherever it got to, quiet and good probes bring it back to the top in a time that has a bound."""
    climb, now = Climb(), 0.0
    for seconds, demands, probe in events:
        now += seconds
        climb.at(now, *demands, probe=probe)
    for _ in range(BOTTOM):
        now += SETTINGS.longest_wait + 50
        climb.at(now, probe=True)
    assert climb.state.rung == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=50, max_size=400))
def test_nothing_flaps(good: list[bool]) -> None:
    """A soft signal that comes and goes as it likes, a probe that is always good: between a step up and the next one lies
    at least a wait, so that down-up-down within two dwells happens once in the longest wait at most, and not for ever."""
    climb = Climb()
    for i, fine in enumerate(good):
        climb.at(i * 10.0, *([] if fine else [soft(SHORT)]), probe=True)
    ups = [step.at for step in climb.steps if step.current < step.previous]
    downs = [step.at for step in climb.steps if step.current > step.previous]
    for up, down in zip(ups, downs, strict=False):
        assert up - down >= SETTINGS.dwell
    relapses = [later - earlier for earlier, later in zip(ups, ups[1:], strict=False)]
    expected = [min(SETTINGS.dwell * 2.0 ** (n + 1), SETTINGS.longest_wait) for n in range(len(relapses))]
    assert all(
        took >= wait * 0.99 or took > SETTINGS.relapse_within for took, wait in zip(relapses, expected, strict=True)
    )
