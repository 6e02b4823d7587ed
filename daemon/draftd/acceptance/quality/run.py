"""Asks the quality canaries both ways in turn, and keeps what was said: it is judged when it is looked at."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftd.acceptance.arms import Arm
from draftd.acceptance.capture import capture
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.quality.options import QualityOptions
from draftd.acceptance.session import Advance, Progress, Session
from draftd.acceptance.sweep.asking import ask_for, departure
from draftd.acceptance.ticks import Place, Stage, Tick
from draftd.canaries.prompts import FrozenPrompts, Messages
from draftd.client.prompts import Prompt
from draftd.errors import DraftdError

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

GROUP = "quality"
MOST_ERRORS = 20  # in a row
_ANSWER_SECONDS = 300.0
_REFUSED = "INVALID_ARGUMENT"  # among others of a template that takes no system message


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
                "the run can be gone on with"
            )
        return tick

    def _tick(self, step: _Step, *, folded: bool = False) -> Tick:
        prompt = step.prompt
        if folded or self._folded:
            prompt = replace(prompt, messages=_folded(prompt.messages) or prompt.messages)
        ask = ask_for(prompt, step.arm, chat=self._chat, seed=self._seed, repetition=step.repetition)
        place = Place(
            Stage.QUALITY,
            self._session.number,
            step.arm.id,
            step.repetition,
            prompt.name,
            prompt.group,
            prompt.workload,
        )
        tick = capture(self._session.client, ask, timeout=_ANSWER_SECONDS).tick(
            place, self._session.began, keep_text=True
        )
        return replace(tick, error=tick.error or departure(tick, step.arm))


def _folded(messages: Messages) -> Messages | None:
    """With what the system says before the user's own; None where it says nothing."""
    system = "\n\n".join(said for role, said in messages if role == "system")
    if not system:
        return None
    rest = [(role, said) for role, said in messages if role != "system"]
    return ((rest[0][0], f"{system}\n\n{rest[0][1]}"), *rest[1:])
