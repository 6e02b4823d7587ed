"""Does speculation change what a task comes to? The quality canaries are asked both ways in turn.

The texts are kept; the checks are applied to them whenever the result is read, and are checked themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from draftd.acceptance.folder import RunError, RunFolder
from draftd.acceptance.options import QualityOptions
from draftd.acceptance.samples import sampling
from draftd.acceptance.session import Advance, ErrorLimit, Progress, Session
from draftd.acceptance.statistics import Interval, bootstrap
from draftd.acceptance.sweep.plan import Step, measured, pending
from draftd.acceptance.ticks import Arm, Stage, Tick, usable
from draftd.canaries.prompts import Canary, FrozenPrompts, folded
from draftd.canaries.selftest import Fault, faults
from draftd.client.prompts import Prompt

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

GROUP = "quality"
_REFUSED = "INVALID_ARGUMENT"  # among others of a template that takes no system message
TOLERANCE = 0.005
"""How far the share that passes with drafts may lie below the other."""
_EXACT = 1e-9  # 0.995 - 0.99 is a little less than 0.005


def quality_prompts() -> tuple[Prompt, ...]:
    """The canaries', as a client asks them."""
    return tuple(
        Prompt(one.id, one.chat, one.workload, one.max_tokens, GROUP) for one in FrozenPrompts.shipped().canaries
    )


def quality_complete(folder: RunFolder) -> bool:
    """Whether every prompt was answered in every way that was asked. False where it was not begun."""
    plan = folder.plan(Stage.QUALITY)
    asked = () if plan is None else _steps(QualityOptions.from_plan(plan))
    return plan is not None and not pending(asked, measured(folder.ticks(Stage.QUALITY)))


def run_quality(session: Session, options: QualityOptions, model: pb.GetModelResponse, progress: Progress) -> None:
    """What is missing of it. Raises RunError where the run began with another plan, OptionError, MeasurementStopped."""
    options = options.settled(model)
    session.folder.freeze_plan(Stage.QUALITY, options.plan())
    steps = list(_steps(options))
    missing, total = pending(steps, measured(session.folder.ticks(Stage.QUALITY))), len(steps)
    ask = partial(session.measure, options=options, chat=model.chat_template, keep_text=True)
    errors, folding, took = ErrorLimit(), not model.chat_template, 0.0
    with sampling(session, Stage.QUALITY, session.folder.keep_sample):
        for at, step in enumerate(missing):
            left = took / at * (len(missing) - at) if at else None
            doing = f"{step.arm.id} · {step.prompts[0].name}"
            progress(Advance(Stage.QUALITY, total - len(missing) + at, total, left, doing))
            other = replace(step, prompts=tuple(replace(one, messages=folded(one.messages)) for one in step.prompts))
            (tick,) = ask(other if folding else step)
            if tick.error.startswith(_REFUSED) and not folding and other != step:
                (again,) = ask(other)
                if not again.error:  # this model's template takes no system message: so it is asked from here on
                    folding, tick = True, again
            session.folder.keep_tick(tick)
            errors.count(step.arm, [tick])
            took += tick.ended
    progress(Advance(Stage.QUALITY, total, total, 0.0, "done"))


def _steps(options: QualityOptions) -> Iterator[Step]:
    """Prompt by prompt, both ways in an order drawn by the seed."""
    drawn = random.Random(options.seed)
    for arms in options.arms:
        for repetition in range(1, options.repeats + 1 if arms[1].temperature else 2):
            for prompt in quality_prompts():
                yield from (Step(arm, (prompt,), repetition) for arm in drawn.sample(arms, len(arms)))


@dataclass(frozen=True, slots=True)
class Way:
    """A prompt's answers in one way. The complaint is the first one's that failed; empty where all passed."""

    asked: int
    passed: int
    complaint: str

    @property
    def all_passed(self) -> bool:
        return self.passed == self.asked


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt both ways. `identical`: the greedy texts are the same; None where they are not greedy, or one is
    missing."""

    prompt: str
    autoregressive: Way
    speculative: Way
    identical: bool | None

    @property
    def complete(self) -> bool:
        return self.autoregressive.asked > 0 and self.speculative.asked > 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Shares that passed at one temperature. `difference` is speculative less autoregressive, paired by prompt."""

    temperature: float
    prompts: tuple[PromptResult, ...]
    autoregressive: float | None
    speculative: float | None
    difference: Interval | None

    @property
    def missing(self) -> tuple[str, ...]:
        """Prompts that were not answered both ways."""
        return tuple(one.prompt for one in self.prompts if not one.complete)

    @property
    def identical(self) -> int:
        """Prompts whose greedy texts are the same both ways."""
        return sum(one.identical is True for one in self.prompts)


@dataclass(frozen=True, slots=True)
class QualityResult:
    """`greedy` is what is judged. `sampled` is told beside it: there texts differ by chance."""

    greedy: Comparison
    sampled: Comparison | None
    requests: int
    errors: int
    error_examples: tuple[str, ...]
    faults: tuple[Fault, ...]  # of the checkers

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why it failed, each in a sentence; empty where it did not."""
        said: list[str] = []
        if self.faults:
            first = self.faults[0]
            said.append(
                f"nothing is shown, because the checker of {first.prompt} is broken: {first.what}, on {first.answer!r}"
                f" ({len(self.faults)} faults in all)"
            )
        if missing := self.greedy.missing:
            asked = len(self.greedy.prompts)
            said.append(f"{len(missing)} of {asked} prompts were not answered both with and without drafts")
        plain, drafted = self.greedy.autoregressive, self.greedy.speculative
        if plain is None or drafted is None:
            return tuple(said)
        if not plain:
            said.append("no prompt passes its check even without drafts, so that there is nothing to compare")
        if plain - drafted > TOLERANCE + _EXACT:
            said.append(
                f"{drafted:.1%} pass with drafts, and {plain:.1%} without; at most {TOLERANCE:.1%} less is allowed"
            )
        return tuple(said)


def quality_result(folder: RunFolder, canaries: Sequence[Canary] | None = None) -> QualityResult | None:
    """None where nothing was asked. Raises RunError for lines that cannot be read, or a prompt that there is not."""
    ticks = folder.ticks(Stage.QUALITY)
    if not ticks:
        return None
    canaries = FrozenPrompts.shipped().canaries if canaries is None else canaries
    names = {canary.id for canary in canaries}
    for tick in ticks:
        if tick.place.prompt not in names:
            raise RunError("quality: prompt", tick.place.prompt, "one of the quality canaries of this draftd")
    failed = [tick.error for tick in ticks if tick.error]
    arms = {Arm.parse(tick.place.arm) for tick in ticks}
    sampled = sorted({arm.temperature for arm in arms if arm is not None} - {0.0})
    return QualityResult(
        greedy=_comparison(canaries, ticks, 0.0),
        sampled=_comparison(canaries, ticks, sampled[0]) if sampled else None,
        requests=len(ticks),
        errors=len(failed),
        error_examples=tuple(dict.fromkeys(failed))[:5],
        faults=faults(canaries),
    )


def _comparison(canaries: Sequence[Canary], ticks: Sequence[Tick], temperature: float) -> Comparison:
    answers: dict[tuple[str, bool], dict[int, Tick]] = {}
    for tick in ticks:
        arm = Arm.parse(tick.place.arm)
        if arm is not None and arm.temperature == temperature and usable(tick) and tick.text is not None:
            answers.setdefault((tick.place.prompt, arm.speculative), {})[tick.place.repetition] = tick
    prompts = tuple(_prompt(canary, answers, greedy=not temperature) for canary in canaries)
    both = [one for one in prompts if one.complete]
    plain = [one.autoregressive.passed / one.autoregressive.asked for one in both]
    drafted = [one.speculative.passed / one.speculative.asked for one in both]
    return Comparison(
        temperature,
        prompts,
        sum(plain) / len(plain) if plain else None,
        sum(drafted) / len(drafted) if drafted else None,
        bootstrap([[after - before] for before, after in zip(plain, drafted, strict=True)], "mean"),
    )


def _prompt(canary: Canary, answers: Mapping[tuple[str, bool], Mapping[int, Tick]], *, greedy: bool) -> PromptResult:
    plain, drafted = (tuple(answers.get((canary.id, way), {}).values()) for way in (False, True))
    same = len({tick.digest for tick in (*plain, *drafted)}) == 1 if greedy and plain and drafted else None
    return PromptResult(canary.id, _way(canary, plain), _way(canary, drafted), same)


def _way(canary: Canary, ticks: Sequence[Tick]) -> Way:
    said = [canary.check.complaint(tick.text or "") for tick in ticks]
    return Way(len(said), sum(not one for one in said), next(filter(None, said), ""))
