"""Does speculation change what a task comes to? The quality canaries are asked both ways in turn.

The texts are kept; the checks are applied to them whenever the result is read, and are checked themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftd.acceptance.folder import RunError, RunFolder
from draftd.acceptance.options import QualityOptions
from draftd.acceptance.session import Advance, Progress, Session, ask_for, capture
from draftd.acceptance.statistics import Interval, bootstrap
from draftd.acceptance.ticks import Arm, Stage, Tick, usable
from draftd.canaries.prompts import Canary, FrozenPrompts, Messages
from draftd.canaries.selftest import Fault, complaint, faults
from draftd.client.prompts import Prompt
from draftd.errors import DraftdError

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

GROUP = "quality"
MOST_ERRORS = 20  # in a row
_ANSWER_SECONDS = 300.0
_REFUSED = "INVALID_ARGUMENT"  # among others of a template that takes no system message
TOLERANCE = 0.005
"""How far the share that passes with drafts may lie below the other."""
_EXACT = 1e-9  # 0.995 - 0.99 is a little less than 0.005


class QualityStopped(DraftdError):
    """Too many requests failed one after another. What was measured is kept."""

    status = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class _Step:
    arm: Arm
    repetition: int
    prompt: Prompt

    @property
    def key(self) -> tuple[str, int, str]:
        return self.arm.id, self.repetition, self.prompt.name


def quality_prompts() -> tuple[Prompt, ...]:
    """The canaries', as a client asks them."""
    return tuple(
        Prompt(one.prompt.id, one.prompt.messages, one.prompt.workload, one.prompt.max_tokens, GROUP)
        for one in FrozenPrompts.shipped().canaries
    )


def quality_complete(folder: RunFolder) -> bool:
    """Whether every prompt was answered in every way that was asked. False where it was not begun."""
    plan = folder.plan(Stage.QUALITY)
    return plan is not None and not _missing(folder, QualityOptions.from_plan(plan))


def run_quality(session: Session, options: QualityOptions, model: pb.GetModelResponse, progress: Progress) -> None:
    """What is missing of it. Raises RunError where the run began with another plan, OptionError,
    QualityStopped."""
    options = options.settled(model)
    session.folder.freeze_plan(Stage.QUALITY, options.plan())
    missing = _missing(session.folder, options)
    total = len(list(_steps(options)))
    asker = _Asker(session, model.chat_template, options.seed)
    took = 0.0
    with session.sampler(Stage.QUALITY) as sampler:
        for at, step in enumerate(missing):
            left = took / at * (len(missing) - at) if at else None
            doing = f"{step.arm.id} · {step.prompt.name}"
            progress(Advance(Stage.QUALITY, total - len(missing) + at, total, left, doing))
            sampler.mark(step.arm.id)
            took += asker.ask(step).ended
            sampler.mark("")
    progress(Advance(Stage.QUALITY, total, total, 0.0, "done"))


def _steps(options: QualityOptions) -> Iterator[_Step]:
    """Prompt by prompt, both ways in an order drawn by the seed."""
    drawn = random.Random(options.seed)
    for arms in options.arms:
        for repetition in range(1, options.repeats + 1 if arms[1].temperature else 2):
            for prompt in quality_prompts():
                yield from (_Step(arm, repetition, prompt) for arm in drawn.sample(arms, len(arms)))


def _missing(folder: RunFolder, options: QualityOptions) -> Sequence[_Step]:
    places = (tick.place for tick in folder.ticks(Stage.QUALITY) if not tick.error)
    done = {(place.arm, place.repetition, place.prompt) for place in places}
    return [step for step in _steps(options) if step.key not in done]


class _Asker:
    """Asks, and finds out in which form this model's template takes a system message."""

    def __init__(self, session: Session, chat: bool, seed: int) -> None:
        self._session, self._chat, self._seed = session, chat, seed
        self._folded = not chat
        self._in_a_row = 0

    def ask(self, step: _Step) -> Tick:
        """Keeps a tick. Raises QualityStopped."""
        tick = self._tick(step)
        if tick.error.startswith(_REFUSED) and not self._folded and _folded(step.prompt.messages) is not None:
            again = self._tick(step, folded=True)
            if not again.error:
                self._folded, tick = True, again
        self._session.folder.keep_tick(tick)
        self._in_a_row = self._in_a_row + 1 if tick.error else 0
        if self._in_a_row >= MOST_ERRORS:
            raise QualityStopped(
                f"{MOST_ERRORS} requests failed in a row, the last with: {tick.error}; what was measured is kept, and "
                "the run can be resumed"
            )
        return tick

    def _tick(self, step: _Step, *, folded: bool = False) -> Tick:
        prompt = step.prompt
        if folded or self._folded:
            prompt = replace(prompt, messages=_folded(prompt.messages) or prompt.messages)
        ask = ask_for(prompt, step.arm, chat=self._chat, seed=self._seed, repetition=step.repetition)
        taken = capture(self._session.client, ask, timeout=_ANSWER_SECONDS)
        place = self._session.place(Stage.QUALITY, step.arm, prompt, step.repetition)
        return self._session.tick(taken, step.arm, place, keep_text=True)


def _folded(messages: Messages) -> Messages | None:
    """With what the system says before the user's own; None where it says nothing."""
    system = "\n\n".join(said for role, said in messages if role == "system")
    if not system:
        return None
    rest = [(role, said) for role, said in messages if role != "system"]
    return ((rest[0][0], f"{system}\n\n{rest[0][1]}"), *rest[1:])


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt both ways. The complaint is the first answer's that failed; empty where all passed. `identical`: the
    greedy texts are the same; None where they are not greedy, or one is missing."""

    prompt: str
    autoregressive_asked: int
    autoregressive_passed: int
    autoregressive_complaint: str
    speculative_asked: int
    speculative_passed: int
    speculative_complaint: str
    identical: bool | None

    @property
    def complete(self) -> bool:
        return self.autoregressive_asked > 0 and self.speculative_asked > 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Shares that passed at one temperature. `difference` is speculative less autoregressive, paired by prompt."""

    temperature: float
    prompts: tuple[PromptResult, ...]
    autoregressive: float | None
    speculative: float | None
    difference: Interval | None


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
    def prompts(self) -> tuple[PromptResult, ...]:
        return self.greedy.prompts

    @property
    def autoregressive_success(self) -> float | None:
        return self.greedy.autoregressive

    @property
    def speculative_success(self) -> float | None:
        return self.greedy.speculative

    @property
    def difference(self) -> Interval | None:
        return self.greedy.difference

    @property
    def checkers_sound(self) -> bool:
        return not self.faults

    @property
    def missing(self) -> tuple[str, ...]:
        """Prompts that were not answered both ways."""
        return tuple(one.prompt for one in self.prompts if not one.complete)

    @property
    def identical(self) -> int:
        """Prompts whose greedy texts are the same both ways."""
        return sum(one.identical is True for one in self.prompts)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why it failed, each in a sentence; empty where it did not."""
        said: list[str] = []
        if self.faults:
            first = self.faults[0]
            said.append(
                f"a checker is broken, so that nothing is shown: that of {first.prompt}: {first.what}, on"
                f" {first.answer!r} ({len(self.faults)} faults in all)"
            )
        if self.missing:
            said.append(f"{len(self.missing)} of {len(self.prompts)} prompts were not answered both ways")
        plain, drafted = self.autoregressive_success, self.speculative_success
        if plain is None or drafted is None:
            return tuple(said)
        if not plain:
            said.append("no prompt passes its check even without drafts: there is nothing to compare with")
        if plain - drafted > TOLERANCE + _EXACT:
            said.append(f"{drafted:.1%} pass with drafts, {plain:.1%} without; allowed: {TOLERANCE:.1%} fewer")
        return tuple(said)


def quality_result(folder: RunFolder, canaries: Sequence[Canary] | None = None) -> QualityResult | None:
    """None where nothing was asked. Raises RunError for lines that cannot be read, or a prompt that there is not."""
    ticks = folder.ticks(Stage.QUALITY)
    if not ticks:
        return None
    canaries = FrozenPrompts.shipped().canaries if canaries is None else canaries
    names = {canary.prompt.id for canary in canaries}
    for tick in ticks:
        if tick.place.prompt not in names:
            raise RunError("quality: prompt", tick.place.prompt, "one of the quality canaries of this draftd")
    failed = [tick.error for tick in ticks if tick.error]
    temperatures = sorted({_temperature(tick) for tick in ticks if _temperature(tick)})
    return QualityResult(
        greedy=_comparison(canaries, ticks, 0.0),
        sampled=_comparison(canaries, ticks, temperatures[0]) if temperatures else None,
        requests=len(ticks),
        errors=len(failed),
        error_examples=tuple(dict.fromkeys(failed))[:5],
        faults=faults(canaries),
    )


def _comparison(canaries: Sequence[Canary], ticks: Sequence[Tick], temperature: float) -> Comparison:
    answers: dict[tuple[str, bool], dict[int, Tick]] = {}
    for tick in ticks:
        if usable(tick) and tick.text is not None and _temperature(tick) == temperature:
            way = answers.setdefault((tick.place.prompt, _speculative(tick)), {})
            way[tick.place.repetition] = tick
    prompts = tuple(_prompt(canary, answers, greedy=not temperature) for canary in canaries)
    both = [one for one in prompts if one.complete]
    plain = [one.autoregressive_passed / one.autoregressive_asked for one in both]
    drafted = [one.speculative_passed / one.speculative_asked for one in both]
    return Comparison(
        temperature,
        prompts,
        sum(plain) / len(plain) if plain else None,
        sum(drafted) / len(drafted) if drafted else None,
        bootstrap([[after - before] for before, after in zip(plain, drafted, strict=True)], "mean"),
    )


def _prompt(canary: Canary, answers: Mapping[tuple[str, bool], Mapping[int, Tick]], *, greedy: bool) -> PromptResult:
    plain, drafted = (tuple(answers.get((canary.prompt.id, way), {}).values()) for way in (False, True))
    said = [[complaint(canary.check, tick.text or "") for tick in way] for way in (plain, drafted)]
    return PromptResult(
        canary.prompt.id,
        len(plain),
        sum(not one for one in said[0]),
        next(filter(None, said[0]), ""),
        len(drafted),
        sum(not one for one in said[1]),
        next(filter(None, said[1]), ""),
        len({tick.digest for tick in (*plain, *drafted)}) == 1 if greedy and plain and drafted else None,
    )


def _temperature(tick: Tick) -> float:
    return Arm.parse(tick.place.arm).temperature


def _speculative(tick: Tick) -> bool:
    return Arm.parse(tick.place.arm).speculative
