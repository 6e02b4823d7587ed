"""Measures a sweep, or what is missing of one. Every answer is kept as it comes: it can be stopped at any time."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import SweepOptions
from draftd.acceptance.samples import Sample, Sampler
from draftd.acceptance.session import ANSWER_SECONDS, Advance, ErrorLimit, Progress, Session
from draftd.acceptance.sweep.plan import Key, Step, SweepPlan, key_of, measured, pending, plan_sweep, schedule
from draftd.acceptance.ticks import Arm, Stage, Tick

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

_WARM_UP_TOKENS = 16
_HOT = ("heavy", "trapping", "sleeping")
_LOOK_SECONDS = 1.0


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

    Raises RunError where the run began with another plan, MeasurementStopped, NothingToMeasure.
    """
    plan = plan_sweep(options, model, session.max_batch)
    steps = schedule(plan)
    total = sum(len(step.prompts) for step in steps)
    session.folder.freeze_plan(Stage.SWEEP, plan.frozen(total))
    ticks = session.folder.ticks(Stage.SWEEP)
    missing = pending(steps, measured(ticks))
    if not missing:
        return
    heat = Heat(options.heat_seconds, clock=clock, sleep=sleep)

    def keep(sample: Sample) -> None:
        heat.observe(sample)
        session.folder.keep_sample(sample)

    with Sampler(session.client, Stage.SWEEP, session.number, session.began, keep) as sampler:
        asker = _Asker(session, plan, model.chat_template, sampler, answer_seconds)
        remaining = Remaining(options.cool_down)
        _add_earlier_sessions(remaining, steps, ticks)

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


def missing_requests(plan: Mapping[str, object], done: Collection[Key]) -> int:
    """Of those that the run's plan counts."""
    wanted = plan.get("requests")
    return max(0, wanted - len(done)) if isinstance(wanted, int) else 0


class Heat:
    """Waits for a machine that throttles: what it measures meanwhile is heat.

    Once a machine did not cool within `patience_seconds`, it is not waited for again until it was cool: a run on a
    machine that is always hot ends too, and its samples show that it was.
    """

    def __init__(
        self,
        patience_seconds: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience, self._clock, self._sleep = patience_seconds, clock, sleep
        self._level: str | None = None
        self._given_up = False

    def observe(self, sample: Sample) -> None:
        """On any thread."""
        if sample.thermal is not None:
            self._level = sample.thermal

    def wait(self, say: Callable[[str], None]) -> float:
        """Until the machine is cooler than heavy, or patience ends. Gives how long that took."""
        if self._level not in _HOT:
            self._given_up = False
            return 0.0
        began = self._clock()
        while not self._given_up and (level := self._level) in _HOT:
            waited = self._clock() - began
            if waited >= self._patience:
                self._given_up = True
                break
            say(f"waiting for the machine to cool: thermal level {level}, {self._patience - waited:.0f} s at most")
            self._sleep(min(_LOOK_SECONDS, self._patience - waited))
        return self._clock() - began


class Remaining:
    """How long a sweep still takes: a step as those of its arm and group took, else of its arm, else all."""

    def __init__(self, pause_seconds: float = 0.0) -> None:
        """`pause_seconds` come after each step."""
        self._pause = pause_seconds
        self._like: dict[tuple[str, str], list[float]] = defaultdict(list)

    def took(self, step: Step, seconds: float) -> None:
        """Without the pause after it."""
        self._like[step.arm.id, step.group].append(seconds)

    def of(self, steps: Iterable[Step]) -> float | None:
        """Seconds; None while nothing is known."""
        if not self._like:
            return None
        of_arm: dict[str, list[float]] = defaultdict(list)
        for (arm, _), found in self._like.items():
            of_arm[arm] += found
        by_group = {key: _likely(found) for key, found in self._like.items()}
        by_arm = {arm: _likely(found) for arm, found in of_arm.items()}
        of_any = mean(by_arm.values())
        still = Counter((step.arm.id, step.group) for step in steps)
        return sum(
            count * (self._pause + by_group.get(key, by_arm.get(key[0], of_any))) for key, count in still.items()
        )


def _likely(seconds: list[float]) -> float:
    """The mean, since what is wanted is a sum; one answer that hung counts as four usual ones at most."""
    most = 4 * median(seconds)
    return mean(min(one, most) for one in seconds)


class _Asker:
    """Asks step by step, and gives up when it makes no sense to go on."""

    def __init__(self, session: Session, plan: SweepPlan, chat: bool, sampler: Sampler, timeout: float) -> None:
        self._session, self._sampler, self._errors = session, sampler, ErrorLimit()
        self._how: dict[str, Any] = {"chat": chat, "seed": plan.options.seed, "timeout": timeout}

    def ask(self, step: Step, *, warm_up: bool = False) -> None:
        """Keeps a tick for each request. Raises MeasurementStopped."""
        self._sampler.mark(step.arm.id)
        asked = Stage.SWEEP, step.arm, step.prompts, step.repetition
        ticks = self._session.measure(*asked, warm_up=warm_up, **self._how)
        self._sampler.mark("")
        failed = next((tick.error for tick in ticks if tick.error), "")
        for tick in ticks:
            spoilt = f"one beside it failed: {failed}" if failed else ""
            self._session.folder.keep_tick(replace(tick, error=tick.error or spoilt))
        self._errors.count(step.arm, ticks)


def _warm_up(arm: Arm, plan: SweepPlan) -> Step:
    """Once, and short: it compiles, and fills what is filled once."""
    shortest = sorted(plan.prompts, key=lambda prompt: sum(len(content) for _, content in prompt.messages))
    asked = tuple(replace(prompt, max_tokens=_WARM_UP_TOKENS) for prompt in shortest[: arm.concurrency])
    return Step(arm, asked, 0)


def _add_earlier_sessions(remaining: Remaining, steps: list[Step], ticks: list[Tick]) -> None:
    took = {key_of(tick): tick.ended for tick in ticks if not tick.error}
    for step in steps:
        found = [took[key] for key in step.keys if key in took]
        if len(found) == len(step.keys):
            remaining.took(step, max(found))
