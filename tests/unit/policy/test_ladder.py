"""The ladder, driven by demands and a clock that hypothesis invents."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel
from draftd.fallback.ladder import (
    Demand,
    Hold,
    Ladder,
    LadderSettings,
    Rung,
    Signal,
    Step,
    flaps,
    held,
    highest,
    lowest,
    move,
    released,
    rungs,
    to_probe,
)

FULL, SHORT, LIGHT, PLAIN = (
    FallbackLevel.FULL, FallbackLevel.SHORT_BLOCK, FallbackLevel.LIGHT_DRAFT, FallbackLevel.AUTOREGRESSIVE,
)  # fmt: skip
LADDER = rungs(6, (6, 4, 3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))
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
        Rung(FULL, 6, DRAFT_MODEL),
        Rung(SHORT, 4, DRAFT_MODEL),
        Rung(SHORT, 3, DRAFT_MODEL),
        Rung(SHORT, 2, DRAFT_MODEL),
        Rung(LIGHT, 2, PROMPT_LOOKUP),
        Rung(PLAIN, 0, None),
    ) == LADDER


def test_where_nothing_may_be_drafted_there_is_no_way_down() -> None:
    ladder = rungs(0, (4,), DRAFT_MODEL, (PROMPT_LOOKUP,))
    assert ladder == (Rung(FULL, 0, DRAFT_MODEL),)
    assert move(Ladder(), ladder, [hard()], False, SETTINGS, 0.0) == (Ladder(), None)


@pytest.mark.parametrize(("level", "rung"), [(FULL, 0), (SHORT, 3), (LIGHT, 4), (PLAIN, 5)])
def test_a_demand_leads_to_the_last_rung_of_its_level(level: FallbackLevel, rung: int) -> None:
    assert lowest(LADDER, level) == rung


def test_a_level_that_the_ladder_lacks_is_met_by_the_next_lower_one() -> None:
    short = rungs(4, (), DRAFT_MODEL, ())
    assert lowest(short, SHORT) == lowest(short, LIGHT) == 1


def test_a_person_who_names_a_level_gets_the_highest_rung_of_it() -> None:
    assert [highest(LADDER, level) for level in (FULL, SHORT, LIGHT, PLAIN)] == [0, 1, 4, 5]
    assert highest(rungs(4, (), DRAFT_MODEL, ()), SHORT) == 1


def test_a_lasting_soft_demand_goes_down_a_rung_a_dwell_and_no_further_than_it_asks() -> None:
    climb = Climb()
    assert [climb.at(now, soft()) for now in (0, 50, 99, 100, 150, 200, 300, 400, 500, 600)] == [
        1, 1, 1, 2, 2, 3, 4, 5, 5, 5,
    ]  # fmt: skip
    climb = Climb()
    assert [climb.at(now, soft(SHORT)) for now in (0, 100, 200, 300)] == [1, 2, 3, 3]


def test_a_drafter_tried_in_vain_is_passed_over_and_tried_again_when_all_were() -> None:
    assert to_probe(LADDER, 0, ()) is None
    assert [to_probe(LADDER, BOTTOM, tried) for tried in ((), {4}, {4, 3})] == [4, 3, 4]
    assert to_probe(LADDER, 3, {2}) == 2, "a longer block of a draft that is bad at a short one is not tried"


def test_a_step_up_may_pass_over_what_was_found_wanting_and_leads_no_further_than_the_probe() -> None:
    plain = Ladder(rung=BOTTOM, since=0.0, cause="break_even")
    state, step = move(plain, LADDER, (), True, SETTINGS, 200.0, target=3)
    assert step is not None
    assert (step.previous, step.current, state.rung) == (BOTTOM, 3, 3)
    for wrong in (BOTTOM, BOTTOM + 3):
        assert move(plain, LADDER, (), True, SETTINGS, 200.0, target=wrong)[0].rung == BOTTOM - 1
    assert move(plain, LADDER, [soft(LIGHT)], True, SETTINGS, 200.0, target=3)[1] is None, "what is demanded binds"


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
    assert climb.at(199, probe=True) == BOTTOM  # two dwells after a step down
    assert climb.at(200) == BOTTOM
    assert climb.at(200, soft(PLAIN), probe=True) == BOTTOM
    assert climb.at(200, soft(LIGHT), probe=True) == BOTTOM - 1  # which is what it asks for
    assert climb.at(299, probe=True) == BOTTOM - 1  # one after a step up
    assert climb.at(300, soft(LIGHT), probe=True) == BOTTOM - 1
    assert climb.at(300, probe=True) == BOTTOM - 2


def test_each_relapse_doubles_the_wait_up_to_a_limit_and_a_long_good_time_halves_it() -> None:
    climb, now = Climb(), 0.0
    waits = []
    for _ in range(6):
        climb.at(now, soft())
        waits.append(climb.state.wait(SETTINGS))
        now += waits[-1]
        assert climb.at(now - 1, probe=True) == 1
        assert climb.at(now, probe=True) == 0
        now += SETTINGS.dwell
    assert waits == [200, 400, 800, 1000, 1000, 1000]
    before, since = climb.state.relapses, climb.state.since
    for later in (1000, 2000, 3000, 4000):
        climb.at(now + later)
    assert climb.state.relapses == before - 2
    assert climb.state.since == since  # forgiving is no step: what goes wrong now waits for nothing
    assert climb.at(now + 4001, soft()) == 1


def test_a_hold_outranks_everything_until_it_is_over_and_then_nothing_jumps() -> None:
    climb = Climb(Ladder(hold=Hold(2, until=1000.0)))
    assert climb.at(0, hard()) == 2
    assert climb.at(999, probe=True) == 2
    assert climb.at(1000, probe=True) == 2
    assert climb.at(1199, probe=True) == 2
    assert climb.at(1200, probe=True) == 1
    climb = Climb(held(Ladder(), Hold(0)))
    assert climb.at(1e9, hard()) == 0
    climb.state = released(climb.state, 1e9)
    assert climb.at(1e9, hard()) == BOTTOM


EVENTS = st.lists(
    st.tuples(
        st.floats(-50, 400),  # seconds since the last; a clock may jump back
        st.lists(
            st.builds(Demand, st.sampled_from(Signal), st.sampled_from(FallbackLevel), st.just("x"), st.booleans()),
            max_size=3,
        ),
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
        if rung != before.rung:
            assert climb.steps[-1] == Step(before.rung, rung, climb.state.cause, now)
            assert climb.state.cause


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
@given(st.lists(st.sampled_from(["fine", "soft", "hard"]), min_size=50, max_size=400))
def test_nothing_flaps(course: list[str]) -> None:
    """A cause that comes and goes as it likes, as hard as it likes, and a probe that is always good."""
    causes: dict[str, list[Demand]] = {"fine": [], "soft": [soft(SHORT)], "hard": [hard()]}
    climb = Climb()
    for i, what in enumerate(course):
        climb.at(i * 10.0, *causes[what], probe=True)
    assert flaps(climb.steps, SETTINGS.dwell) == []


def test_a_cause_that_comes_back_after_every_step_up_is_let_up_less_and_less_often() -> None:
    climb = Climb()
    for now in range(0, 20_000, 10):
        climb.at(float(now), *([soft(SHORT)] if climb.state.rung == 0 else []), probe=True)
    ups = [step.at for step in climb.steps if step.current < step.previous]
    assert [later - earlier for earlier, later in itertools.pairwise(ups)][:4] == [500, 900, 1100, 1100]
