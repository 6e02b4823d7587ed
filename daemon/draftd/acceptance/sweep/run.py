"""Measures a sweep, or what is missing of one. Every answer is kept as it comes: it can be stopped at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import SweepOptions
from draftd.acceptance.samples import Sample, sampling
from draftd.acceptance.session import ANSWER_SECONDS, Advance, ErrorLimit, Progress, Session
from draftd.acceptance.sweep.plan import Key, Step, SweepPlan, measured, pending, plan_sweep, schedule
from draftd.acceptance.ticks import Arm, Stage

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

_WARM_UP_TOKENS = 16
_HOT = ("heavy", "trapping", "sleeping")
_LOOK_SECONDS = 1.0


def run_sweep(session: Session, options: SweepOptions, model: pb.GetModelResponse, progress: Progress) -> None:
    """Returns at once where nothing is missing. What failed is asked again by the next session.

    Raises RunError where the run began with another plan, MeasurementStopped, NothingToMeasure.
    """
    plan = plan_sweep(options, model, session.max_batch)
    steps = schedule(plan)
    total = sum(len(step.prompts) for step in steps)
    session.folder.freeze_plan(Stage.SWEEP, plan.frozen(total))
    missing = pending(steps, measured(session.folder.ticks(Stage.SWEEP)))
    if not missing:
        return
    heat, errors = Heat(options.heat_seconds), ErrorLimit()

    def keep(sample: Sample) -> None:
        heat.observe(sample)
        session.folder.keep_sample(sample)

    def ask(step: Step, *, warm_up: bool = False) -> None:
        """Keeps a tick for each request."""
        how: dict[str, Any] = {"chat": model.chat_template, "seed": options.seed, "timeout": ANSWER_SECONDS}
        ticks = session.measure(Stage.SWEEP, step, warm_up=warm_up, **how)
        failed = next((tick.error for tick in ticks if tick.error), "")
        for tick in ticks:
            spoilt = f"one beside it failed: {failed}" if failed else ""
            session.folder.keep_tick(replace(tick, error=tick.error or spoilt))
        errors.count(step.arm, ticks)

    def say(at: int, doing: str) -> None:
        done = total - sum(len(step.prompts) for step in missing[at:])
        remaining = (time.perf_counter() - began) / at * (len(missing) - at) if at else None
        progress(Advance(Stage.SWEEP, done, total, remaining, doing))

    with sampling(session, Stage.SWEEP, keep):
        for arm in dict.fromkeys(step.arm for step in missing):
            say(0, f"warming up: {arm.id}")
            ask(_warm_up(arm, plan), warm_up=True)
        began = time.perf_counter()
        for at, step in enumerate(missing):
            heat.wait(partial(say, at))
            say(at, f"{step.arm.id} · {step.prompts[0].name}" + (" …" if len(step.prompts) > 1 else ""))
            ask(step)
            time.sleep(options.cool_down)
        say(len(missing), "done")


def sweep_complete(folder: RunFolder) -> bool:
    """Whether all that the sweep began with is measured. False where there is none."""
    plan = folder.plan(Stage.SWEEP)
    return plan is not None and missing_requests(plan, measured(folder.ticks(Stage.SWEEP))) == 0


def missing_requests(plan: Mapping[str, Any], done: Collection[Key]) -> int:
    """Of those that the run's plan counts."""
    wanted: int = plan.get("requests", 0)
    return max(0, wanted - len(done))


class Heat:
    """Waits for a machine that throttles: what it measures meanwhile is heat.

    Once a machine did not cool within `patience_seconds`, it is not waited for again until it was cool: a run on a
    machine that is always hot ends too, and its samples show that it was.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._level: str | None = None
        self._given_up = False

    def observe(self, sample: Sample) -> None:
        """On any thread."""
        if sample.thermal is not None:
            self._level = sample.thermal

    def wait(self, say: Callable[[str], None]) -> None:
        """Until the machine is cooler than heavy, or patience ends."""
        ends = time.perf_counter() + (0.0 if self._given_up else self._patience)
        while (level := self._level) in _HOT:
            left = ends - time.perf_counter()
            if left <= 0:
                self._given_up = True
                return
            say(f"waiting for the machine to cool: thermal level {level}, {left:.0f} s at most")
            time.sleep(min(_LOOK_SECONDS, left))
        self._given_up = False


def _warm_up(arm: Arm, plan: SweepPlan) -> Step:
    """Once, and short: it compiles, and fills what is filled once."""
    shortest = sorted(plan.prompts, key=lambda prompt: sum(len(content) for _, content in prompt.messages))
    asked = tuple(replace(prompt, max_tokens=_WARM_UP_TOKENS) for prompt in shortest[: arm.concurrency])
    return Step(arm, asked, 0)
