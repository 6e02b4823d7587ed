"""The price of a plain step is kept up to date while everybody drafts, at next to no cost."""

from __future__ import annotations

import pytest

from draftd.counts import StepCounts
from draftd.engine.depth.costs import Batch
from draftd.engine.depth.explorer import PlainMeasurement
from draftd.engine.observer import EngineObserver
from tests.rig import Rig, request, speculative
from tests.scripted import scripted_models

STEP = 0.004


class Steps(EngineObserver):
    def __init__(self) -> None:
        self.heard: list[StepCounts] = []

    def on_step(self, request: object, result: StepCounts, gap: float | None) -> None:
        self.heard.append(result)

    @property
    def plain(self) -> int:
        """Steps without a draft, but for the prefill's."""
        return sum(not r.drafted for r in self.heard) - 1


class Clock:
    """Time that passes in the target's forwards alone."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tests.scripted.time", clock)
    return clock


def run(clock: Clock, measurement: PlainMeasurement) -> tuple[list[int], Steps, Rig]:
    heard = Steps()
    models = scripted_models(0.6, step_seconds=STEP)
    rig = Rig(models, observer=heard, measurement=measurement, timer=clock.time)
    (sink,) = rig.run([request([1, 2, 3], speculative(3), max_tokens=120)])
    return sink.tokens, heard, rig


def test_periodic_autoregressive_measurement_steps_leave_text_unchanged(clock: Clock) -> None:
    never, quiet, _ = run(clock, PlainMeasurement(1e9))
    often, heard, _ = run(clock, PlainMeasurement(10 * STEP))
    assert often == never
    assert quiet.plain <= 1  # the last token is never drafted
    assert heard.plain >= 6
    drafted = [r for r in heard.heard if r.drafted]
    assert len(drafted) > heard.plain, "drafting is the rule"


def test_autoregressive_measurement_steps_do_not_lower_draft_acceptance(clock: Clock) -> None:
    _, quiet, _ = run(clock, PlainMeasurement(1e9))
    _, heard, _ = run(clock, PlainMeasurement(5 * STEP))
    assert heard.plain >= 12

    def acceptance(steps: Steps) -> float:
        return sum(r.accepted for r in steps.heard) / sum(r.drafted for r in steps.heard)

    assert acceptance(heard) > 0.7 * acceptance(quiet)  # a stale entry makes all that it drafts from there on wrong


def test_autoregressive_step_cost_follows_slower_machine_while_all_requests_draft(clock: Clock) -> None:
    _, _, rig = run(clock, PlainMeasurement(1e9))
    costs = rig.scheduler.local.depth.costs
    for _ in range(60):
        costs.learn(None, Batch(1), 0, STEP / 4)  # what it was before
    assert costs.plain(Batch(1)) == pytest.approx(STEP / 4, rel=0.2)
    rig.scheduler.local.depth._measurement = PlainMeasurement(5 * STEP)
    for _ in range(6):
        rig.run([request([1, 2, 3], speculative(3), max_tokens=120)])
    assert costs.plain(Batch(1)) > 0.8 * STEP


def test_autoregressive_cost_measurement_is_abandoned_when_its_step_is_not_pipelined() -> None:
    one = PlainMeasurement(1.0)
    one.record_step(2.0, drafting=True, pipelined=False)
    assert one.begins([])
    one.record_step(0.1, drafting=True, pipelined=False)
    assert not one.steps_left, "it is given up"
    assert not one.begins([]), "and comes again in its time"


def test_recent_autoregressive_steps_make_a_cost_measurement_unnecessary() -> None:
    one = PlainMeasurement(1.0)
    one.record_step(5.0, drafting=True, pipelined=False)
    one.record_step(0.1, drafting=False, pipelined=True)
    assert not one.begins([])
