"""A machine that throttles is waited for, not for ever, and not again and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from draftd.acceptance.samples import Sample
from draftd.acceptance.sweep.run import Heat
from draftd.acceptance.ticks import Stage


class Machine:
    """A clock that moves when one sleeps on it, and a machine that cools at a given time."""

    def __init__(self, patience: float = 60.0, cools_at: float = float("inf")) -> None:
        self.now, self.cools_at = 0.0, cools_at
        self.said: list[str] = []
        self.heat = Heat(patience, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        if self.now >= self.cools_at:
            self.is_now("moderate")

    def is_now(self, level: str | None) -> None:
        self.heat.observe(Sample(Stage.SWEEP, 1, "", self.now, self.now, thermal=level))

    def wait(self) -> float:
        say: Callable[[str], None] = self.said.append
        return self.heat.wait(say)


@pytest.mark.parametrize("level", [None, "nominal", "moderate"])
def test_a_cool_machine_is_not_waited_for(level: str | None) -> None:
    machine = Machine()
    machine.is_now(level)
    assert machine.wait() == 0
    assert machine.said == []


@pytest.mark.parametrize("level", ["heavy", "trapping", "sleeping"])
def test_a_hot_one_is_waited_for_until_it_is_cooler_and_it_is_said(level: str) -> None:
    machine = Machine(cools_at=17)
    machine.is_now(level)
    assert machine.wait() == 17
    assert machine.said[0] == f"waiting for the machine to cool: thermal level {level}, 60 s at most"
    assert machine.wait() == 0


def test_patience_ends_and_is_not_spent_again_until_it_was_cool_once() -> None:
    machine = Machine(patience=30.5)
    machine.is_now("heavy")
    assert machine.wait() == 30.5
    assert machine.wait() == 0
    machine.is_now("nominal")
    assert machine.wait() == 0
    machine.is_now("heavy")
    assert machine.wait() == 30.5


def test_a_reading_that_is_missing_changes_nothing() -> None:
    machine = Machine(cools_at=5)
    machine.is_now("heavy")
    machine.is_now(None)
    assert machine.wait() == 5


def test_no_patience_is_no_wait() -> None:
    machine = Machine(patience=0)
    machine.is_now("heavy")
    assert machine.wait() == 0
