"""Measures a sweep, or what is missing of one. Every answer is kept as it comes: it can be stopped at any time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from draftd.acceptance.arms import Arm
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.samples import Sample, Sampler
from draftd.acceptance.session import ANSWER_SECONDS, Advance, Progress, Session
from draftd.acceptance.sweep.asking import all_at_once, ask_for, departure
from draftd.acceptance.sweep.heat import Heat
from draftd.acceptance.sweep.options import SweepOptions
from draftd.acceptance.sweep.plan import SweepPlan, plan_sweep
from draftd.acceptance.sweep.remaining import Remaining
from draftd.acceptance.sweep.schedule import Key, Step, key_of, measured, pending, schedule
from draftd.acceptance.ticks import Place, Stage, Tick
from draftd.errors import DraftdError

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

MOST_ERRORS = 20  # in a row, of one arm or of all: then something is wrong that going on does not mend
_WARM_UP_TOKENS = 16


class SweepStopped(DraftdError):
    """Too many requests failed one after another. What was measured is kept."""

    status = "FAILED_PRECONDITION"


def run_sweep(
    session: Session,
    options: SweepOptions,
    model: pb.GetModelResponse,
    progress: Progress,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    answer_seconds: float = ANSWER_SECONDS,
) -> None:
    """Returns at once where nothing is missing. What failed is asked again by the next session.

    Raises RunError where the run began with another plan, SweepStopped, NothingToMeasure.
    """
    plan = plan_sweep(options, model, session.max_batch)
    steps = schedule(plan)
    session.folder.freeze_plan(Stage.SWEEP, plan.frozen(sum(len(step.prompts) for step in steps)))
    ticks = session.folder.ticks(Stage.SWEEP)
    missing = pending(steps, measured(ticks))
    if not missing:
        return
    heat = Heat(options.heat_seconds, clock=clock, sleep=sleep)

    def keep(sample: Sample) -> None:
        heat.heard(sample)
        session.folder.keep_sample(sample)

    with Sampler(session.client, Stage.SWEEP, session.number, session.began, keep) as sampler:
        asker = _Asker(session, plan, model.chat_template, sampler, answer_seconds)
        remaining = Remaining(options.cool_down)
        _remember(remaining, steps, ticks)
        total = sum(len(step.prompts) for step in steps)

        def say(at: int, doing: str) -> None:
            left = missing[at:]
            done = total - sum(len(step.prompts) for step in left)
            progress(Advance(Stage.SWEEP, done, total, remaining.of(left), doing))

        for arm in dict.fromkeys(step.arm for step in missing):
            say(0, f"warming up: {arm.id}")
            asker.ask(_warm_up(arm, plan), warm_up=True)
        for at, step in enumerate(missing):
            heat.wait(lambda doing, at=at: say(at, doing))  # type: ignore[misc]
            say(at, f"{step.arm.id} · {step.prompts[0].name}" + (" …" if len(step.prompts) > 1 else ""))
            began = clock()
            asker.ask(step)
            remaining.took(step, clock() - began)
            sleep(options.cool_down)
        say(len(missing), "done")


def sweep_complete(folder: RunFolder) -> bool:
    """Whether all that the sweep began with is measured. False where there is none."""
    plan = folder.plan(Stage.SWEEP)
    return plan is not None and missing_requests(plan, measured(folder.ticks(Stage.SWEEP))) == 0


def missing_requests(plan: dict[str, object], done: Collection[Key]) -> int:
    """Of those that the run's plan counts."""
    wanted = plan.get("requests")
    return max(0, wanted - len(done)) if isinstance(wanted, int) else 0


class _Asker:
    """Asks step by step, and gives up when it makes no sense to go on."""

    def __init__(self, session: Session, plan: SweepPlan, chat: bool, sampler: Sampler, timeout: float) -> None:
        self._session, self._plan, self._chat = session, plan, chat
        self._sampler, self._timeout = sampler, timeout
        self._in_a_row = 0
        self._of_arm: Counter[str] = Counter()

    def ask(self, step: Step, *, warm_up: bool = False) -> None:
        """Keeps a tick for each request. Raises SweepStopped."""
        arm, seed = step.arm, self._plan.options.seed
        asks = [ask_for(prompt, arm, chat=self._chat, seed=seed, repetition=step.repetition) for prompt in step.prompts]
        self._sampler.mark(arm.id)
        taken = all_at_once(self._session.client, asks, timeout=self._timeout)
        self._sampler.mark("")
        ticks = []
        for prompt, one in zip(step.prompts, taken, strict=True):
            place = Place(
                Stage.SWEEP,
                self._session.number,
                arm.id,
                step.repetition,
                prompt.name,
                prompt.group,
                prompt.workload,
                warm_up,
            )
            tick = one.tick(place, self._session.began)
            ticks.append(replace(tick, error=tick.error or departure(tick, arm)))
        failed = [tick for tick in ticks if tick.error]
        for tick in ticks:
            if failed and not tick.error:
                tick = replace(tick, error=f"one beside it failed: {failed[0].error}")
            self._session.folder.keep_tick(tick)
        self._count(arm.id, failed)

    def _count(self, arm: str, failed: list[Tick]) -> None:
        if not failed:
            self._in_a_row = self._of_arm[arm] = 0
            return
        self._in_a_row += len(failed)
        self._of_arm[arm] += len(failed)
        whose = "" if self._in_a_row >= MOST_ERRORS else f" of {arm}"
        if max(self._in_a_row, self._of_arm[arm]) >= MOST_ERRORS:
            raise SweepStopped(
                f"{MOST_ERRORS} requests{whose} failed in a row, the last with: {failed[-1].error}; what was measured "
                "is kept, and the run can be gone on with"
            )


def _warm_up(arm: Arm, plan: SweepPlan) -> Step:
    """Once, and short: it compiles, and fills what is filled once."""
    shortest = sorted(plan.prompts, key=lambda prompt: sum(len(content) for _, content in prompt.messages))
    asked = tuple(replace(prompt, max_tokens=_WARM_UP_TOKENS) for prompt in shortest[: arm.concurrency])
    return Step(arm, asked, 0)


def _remember(remaining: Remaining, steps: list[Step], ticks: list[Tick]) -> None:
    """What earlier sessions took."""
    took = {key_of(tick): tick.ended for tick in ticks if not tick.error}
    for step in steps:
        found = [took[key] for key in step.keys if key in took]
        if len(found) == len(step.keys):
            remaining.took(step, max(found))
