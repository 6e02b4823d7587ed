"""The choice between a draft model and a draft head is as fast as the better of the two, on a machine whose time is
made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, DrafterName, WorkloadClass
from draftd.engine.drafters.base import Draft
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence
from tests.rig import automatic, request
from tests.simulated_machine import Machine, SimulatedDrafter, SimulatedTarget, Simulation

CODE, PROSE = WorkloadClass.CODE, WorkloadClass.PROSE
BOTH = (DRAFT_MODEL, DRAFT_HEAD)
MOST, TOKENS = 6, 80


class NamedDrafter(SimulatedDrafter):
    """A drafter that notes for which sequences it drafted last."""

    def __init__(self, machine: Machine, name: DrafterName, latest: dict[int, DrafterName]) -> None:
        super().__init__(machine)
        self._name, self._latest = name, latest

    def propose(self, rows: Sequence[DecodeSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        self._latest.update((row.id, self._name) for row in rows)
        return super().propose(rows, depths, sampling)


class HeadDrafter(NamedDrafter):
    """A drafter that is fed with the target's states, so that it lags behind no text and takes in no prompt."""

    def prefill(self, row: DecodeSequence, chunk: int) -> bool:
        return True

    def behind(self, row: DecodeSequence) -> int:
        self.held[id(row)] = len(row.tokens) - 1
        return 0


Rates = dict[tuple[DrafterName, WorkloadClass], float]
"""How often the target accepts a drafter's tokens in a workload's texts."""


class Decoding:
    """Answers decoded one after the other by a target with the drafters of these names."""

    def __init__(self, rates: Rates, *names: DrafterName) -> None:
        machine, latest = Machine(dice=random.Random(5)), dict[int, DrafterName]()

        class Target(SimulatedTarget):
            def accepts(self, sequence: int) -> Sequence[float]:
                return [rates[latest[sequence], self.workloads[sequence]]]

        kinds = {DRAFT_MODEL: NamedDrafter, DRAFT_HEAD: HeadDrafter}
        drafters = {name: kinds[name](machine, name, latest) for name in names}
        prices = machine.prices(MOST)
        drafted = {**prices.drafted, DRAFT_HEAD: prices.drafted[DRAFT_MODEL]}
        prices = replace(prices, drafted=drafted, prefill={DRAFT_MODEL: machine.take_in, DRAFT_HEAD: 0.0})
        self._machine, self.drafters = machine, drafters
        self._simulation = Simulation(machine, MOST, prices=prices, target=Target, drafters=drafters)
        self._plan = automatic(MOST, *names)

    def seconds(self, batches: int, rows: int, workload: WorkloadClass, prompt: int = 64) -> float:
        """Returns the seconds that so many batches of `rows` answers take."""
        began = self._machine.now
        for _ in range(batches):
            requests = [request([1] * prompt, self._plan, max_tokens=TOKENS) for _ in range(rows)]
            self._simulation.run([replace(each, workload=workload) for each in requests])
        return self._machine.now - began


def rates_of(model: tuple[float, float], head: tuple[float, float]) -> Rates:
    return {
        (name, workload): rate
        for name, rates in ((DRAFT_MODEL, model), (DRAFT_HEAD, head))
        for workload, rate in zip((CODE, PROSE), rates, strict=True)
    }


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("model", "head"),
    [((0.97, 0.45), (0.7, 0.7)), ((0.9, 0.9), (0.5, 0.5)), ((0.5, 0.5), (0.9, 0.9)), ((0.8, 0.8), (0.75, 0.75))],
    ids=["each for one workload", "draft model", "draft head", "nearly equal"],
)
def test_choice_of_two_drafters_is_as_fast_as_better_one_alone(
    model: tuple[float, float], head: tuple[float, float], rows: int
) -> None:
    """Acceptance alone scatters by some 3 % in these answers."""
    rates = rates_of(model, head)
    both, *alone = (Decoding(rates, *names) for names in (BOTH, *((name,) for name in BOTH)))
    for workload in (CODE, PROSE):
        better = min(one.seconds(5, rows, workload) for one in alone)
        assert better / both.seconds(5, rows, workload) > 0.88, f"the first answers: {workload}"
    for workload in (CODE, PROSE):
        better = min(one.seconds(20, rows, workload) for one in alone)
        assert better / both.seconds(20, rows, workload) > 0.93, workload


def test_choice_follows_drafter_that_becomes_better() -> None:
    rates = rates_of((0.9, 0.9), (0.5, 0.5))
    both = Decoding(rates, *BOTH)
    both.seconds(20, 1, CODE)
    rates |= rates_of((0.3, 0.3), (0.9, 0.9))
    both.seconds(30, 1, CODE)
    head = Decoding(rates, DRAFT_HEAD)
    assert head.seconds(10, 1, CODE) / both.seconds(10, 1, CODE) > 0.9


def test_text_too_long_for_draft_model_to_take_in_leaves_choice_to_head() -> None:
    """The draft model would need as long for the prompt as for 300 tokens of an answer."""
    both = Decoding(rates_of((0.9, 0.9), (0.6, 0.6)), *BOTH)
    both.seconds(5, 1, CODE, prompt=100_000)
    assert both.drafters[DRAFT_MODEL].longest_slice == 0


@pytest.mark.parametrize("rows", [1, 4])
def test_draft_model_drafts_texts_whose_states_head_has_missed(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    rates = rates_of((0.9, 0.9), (0.9, 0.9))
    monkeypatch.setattr(HeadDrafter, "misses", lambda self, row: True)
    both, model = Decoding(rates, *BOTH), Decoding(rates, DRAFT_MODEL)
    assert model.seconds(5, rows, CODE) / both.seconds(5, rows, CODE) > 0.95


def test_draft_model_is_tried_with_long_texts_that_come_together() -> None:
    rates = rates_of((0.95, 0.95), (0.5, 0.5))
    both, model = Decoding(rates, *BOTH), Decoding(rates, DRAFT_MODEL)
    for decoding in (both, model):
        decoding.seconds(4, 4, CODE, prompt=1500)
    assert model.seconds(6, 4, CODE, prompt=1500) / both.seconds(6, 4, CODE, prompt=1500) > 0.9
