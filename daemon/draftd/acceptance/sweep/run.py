"""Measures a sweep, or what is missing of one. Every answer is kept as it comes: it can be stopped at any time."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from statistics import mean, median
from typing import TYPE_CHECKING

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import SweepOptions
from draftd.acceptance.samples import Sample, Sampler
from draftd.acceptance.session import ANSWER_SECONDS, Advance, Progress, Session, all_at_once, ask_for
from draftd.acceptance.sweep.plan import Key, Step, SweepPlan, key_of, measured, pending, plan_sweep, schedule
from draftd.acceptance.ticks import Arm, Stage, Tick
from draftd.errors import DraftdError

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

MOST_ERRORS = 20  # in a row, of one arm or of all: then something is wrong that going on does not mend
_WARM_UP_TOKENS = 16
_HOT = ("heavy", "trapping", "sleeping")
_LOOK_SECONDS = 1.0


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


def missing_requests(plan: dict[str, object], done: Collection[Key]) -> int:
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
        self._session, self._plan, self._chat = session, plan, chat
        self._sampler, self._timeout = sampler, timeout
        self._in_a_row = 0
        self._of_arm: Counter[str] = Counter()

    def ask(self, step: Step, *, warm_up: bool = False) -> None:
        """Keeps a tick for each request. Raises SweepStopped."""
        session, arm, seed, repetition = self._session, step.arm, self._plan.options.seed, step.repetition
        asks = [ask_for(prompt, arm, chat=self._chat, seed=seed, repetition=repetition) for prompt in step.prompts]
        self._sampler.mark(arm.id)
        taken = all_at_once(session.client, asks, timeout=self._timeout)
        self._sampler.mark("")
        ticks = [
            session.tick(one, arm, session.place(Stage.SWEEP, arm, prompt, repetition, warm_up=warm_up))
            for prompt, one in zip(step.prompts, taken, strict=True)
        ]
        failed = [tick for tick in ticks if tick.error]
        for tick in ticks:
            if failed and not tick.error:
                tick = replace(tick, error=f"one beside it failed: {failed[0].error}")
            session.folder.keep_tick(tick)
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
                "is kept, and the run can be resumed"
            )


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
