"""The price of a plain round is kept up to date while everybody drafts, at next to no cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import RoundResult
from draftd.engine.depth.explorer import Exploration
from draftd.engine.observer import NullObserver
from draftd.engine.scripted import scripted_models
from tests.rig import Rig, request, speculative

STEP = 0.004


class Rounds(NullObserver):
    def __init__(self) -> None:
        self.heard: list[RoundResult] = []

    def on_round(self, request: object, result: RoundResult, gap: float | None) -> None:
        self.heard.append(result)

    @property
    def plain(self) -> int:
        """Rounds without a draft, but for the prefill's."""
        return sum(not r.drafted for r in self.heard) - 1


def run(exploration: Exploration, **more: object) -> tuple[list[int], Rounds, Rig]:
    heard = Rounds()
    rig = Rig(scripted_models(0.6, step_seconds=STEP), observer=heard, exploration=exploration)
    (sink,) = rig.run([replace(request([1, 2, 3], speculative(3), max_tokens=120), **more)])  # type: ignore[arg-type]
    return sink.tokens, heard, rig


def test_a_few_rounds_are_plain_each_time_that_much_was_drafted_and_the_text_is_the_same() -> None:
    never, quiet, _ = run(Exploration(1e9))
    often, heard, _ = run(Exploration(10 * STEP))
    assert often == never
    assert quiet.plain <= 1  # the last token is never drafted
    assert heard.plain >= 6
    drafted = [r for r in heard.heard if r.drafted]
    assert len(drafted) > heard.plain, "drafting is the rule"


def test_what_the_target_turned_down_before_a_plain_round_does_not_stay_in_the_drafts_cache() -> None:
    _, quiet, _ = run(Exploration(1e9))
    _, heard, _ = run(Exploration(5 * STEP))
    assert heard.plain >= 12

    def acceptance(rounds: Rounds) -> float:
        return sum(r.accepted for r in rounds.heard) / sum(r.drafted for r in rounds.heard)

    assert acceptance(heard) > 0.7 * acceptance(quiet)  # a stale entry makes all that it drafts from there on wrong


def test_the_price_follows_a_machine_that_has_become_slower_while_all_draft() -> None:
    _, _, rig = run(Exploration(1e9))
    costs = rig.scheduler.depth.costs
    for _ in range(60):
        costs.learn(None, 1, 0, STEP / 4)  # what it was before
    stale = costs.autoregressive(1)
    assert stale == pytest.approx(STEP / 4, rel=0.2)
    rig.scheduler.depth._plain_rounds = Exploration(5 * STEP)
    for _ in range(6):
        rig.run([request([1, 2, 3], speculative(3), max_tokens=120)])
    found = costs.autoregressive(1)
    assert found is not None
    assert found > 0.8 * STEP


def test_a_plain_round_that_is_not_pipelined_is_no_measure() -> None:
    one = Exploration(1.0)
    assert not one.told(2.0, drafting=True, pipelined=False)
    assert one.plain([], pending=False)
    assert not one.told(0.1, drafting=True, pipelined=False)
    assert not one.plain([], pending=False), "it is given up, and comes again in its time"


def test_rounds_that_are_plain_anyway_are_measure_enough() -> None:
    one = Exploration(1.0)
    one.told(5.0, drafting=True, pipelined=False)
    assert one.told(0.1, drafting=False, pipelined=True)
    assert not one.plain([], pending=False)
