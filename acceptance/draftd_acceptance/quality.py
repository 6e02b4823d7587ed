"""Measures whether speculation changes the results of tasks. The quality canaries are asked with and without drafts;
those for JSON once more with their schema, when the answer must also be valid.

The texts are kept. Each reading of the result checks them again, and tests the checkers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from draftd.canaries.prompts import MOST_TOKENS, Canary, FrozenPrompts, fold_system
from draftd.canaries.schemas import Schema, mismatch, schema_of
from draftd.canaries.selftest import Fault, faults
from draftd.client.client import ModelReply
from draftd.client.prompts import Prompt
from draftd.core import FinishReason
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.options import QualityOptions
from draftd_acceptance.session import Advance, ErrorLimit, Progress, Session, SessionStep, sampling
from draftd_acceptance.statistics import Interval, bootstrap
from draftd_acceptance.sweep.plan import key_of, measured_keys, pending
from draftd_acceptance.ticks import Arm, Stage, Tick, usable

GROUP = "quality"
SCHEMAS = "quality under a schema"
"""The group of prompts that are asked with a schema."""
_REFUSED = "INVALID_ARGUMENT"  # also the error of a template that takes no system message
_NO_SCHEMAS = f"{_REFUSED}: response_format"
TOLERANCE = 0.005
"""The share that passes may be lower with drafts by at most this."""
_EXACT = 1e-9  # 0.995 - 0.99 is a little less than 0.005


def quality_prompts(schemas: bool = True) -> tuple[Prompt, ...]:
    """Returns the canaries' prompts, as a client sends them; with `schemas`, also those asked with a schema."""
    canaries = FrozenPrompts.of_package().canaries
    plain = tuple(Prompt(one.id, one.chat, one.workload, one.max_tokens, GROUP) for one in canaries)
    under = {one.id for one in canaries if schemas and schema_of(one.check) is not None}
    return plain + tuple(replace(one, max_tokens=MOST_TOKENS, group=SCHEMAS) for one in plain if one.name in under)


def quality_complete(folder: RunFolder) -> bool:
    """Whether every prompt was answered in every arm; False if the stage was not begun. Raises OptionError for an
    incomplete plan."""
    plan = folder.plan(Stage.QUALITY)
    return plan is not None and not _missing(QualityOptions.from_plan(plan), folder.ticks(Stage.QUALITY))


def run_quality(session: Session, options: QualityOptions, model: ModelReply, progress: Progress) -> None:
    """Measures the missing answers. Raises RunError if the run began with another plan, OptionError,
    MeasurementStopped."""
    options = options.settle(model)
    session.folder.freeze_plan(Stage.QUALITY, options.frozen())
    missing, total = _missing(options, session.folder.ticks(Stage.QUALITY)), len(list(_steps(options)))
    ask = partial(session.measure, options=options, chat=model.chat_template, keep_text=True)
    schemas = {one.id: json.dumps(schema_of(one.check)) for one in FrozenPrompts.of_package().canaries}
    errors, folding, refused, took = ErrorLimit(), not model.chat_template, False, 0.0
    with sampling(session, Stage.QUALITY, session.folder.keep_sample):
        for at, step in enumerate(missing):
            (prompt,) = step.prompts
            if refused and prompt.group == SCHEMAS:
                continue
            left = took / at * (len(missing) - at) if at else None
            progress(Advance(Stage.QUALITY, total - len(missing) + at, total, left, f"{step.arm.id} · {prompt.name}"))
            schema = schemas[prompt.name] if prompt.group == SCHEMAS else ""
            other = replace(step, prompts=(replace(prompt, messages=fold_system(prompt.messages)),))
            (tick,) = ask(other if folding else step, json_schema=schema)
            refused = refused or _refusal(tick) != ""
            if tick.error.startswith(_REFUSED) and not refused and not folding and other != step:
                (again,) = ask(other, json_schema=schema)
                if not again.error:  # the template takes no system message: fold it from now on
                    folding, tick = True, again
            session.folder.keep_tick(tick)
            errors.count(step.arm, [] if refused and schema else [tick])
            took += tick.ended
    progress(Advance(Stage.QUALITY, total, total, 0.0, "done"))


def _missing(options: QualityOptions, ticks: Sequence[Tick]) -> list[SessionStep]:
    """Returns the remaining steps; none with a schema once the daemon has refused schemas."""
    steps = pending(_steps(options), measured_keys(ticks))
    refused = any(map(_refusal, ticks))
    return [step for step in steps if not (refused and step.prompts[0].group == SCHEMAS)]


def _refusal(tick: Tick) -> str:
    """Returns the daemon's reason for refusing schemas; empty if this tick shows no refusal."""
    if tick.place.group != SCHEMAS or not tick.error.startswith(_NO_SCHEMAS):
        return ""
    return tick.error.partition("allowed: ")[2].partition(": ")[2] or tick.error


def _steps(options: QualityOptions) -> Iterator[SessionStep]:
    """Yields each prompt both ways, in an order drawn by the seed."""
    drawn = random.Random(options.seed)
    for arms in options.arms:
        for repetition in range(1, options.repeats + 1 if arms[1].temperature else 2):
            for prompt in quality_prompts(options.schemas):
                yield from (SessionStep(arm, (prompt,), repetition) for arm in drawn.sample(arms, len(arms)))


@dataclass(frozen=True, slots=True)
class ModeAnswers:
    """A prompt's answers in one mode. The complaint is the first failed answer's; empty if all passed."""

    total: int
    passed: int
    complaint: str

    @property
    def all_passed(self) -> bool:
        return self.passed == self.total


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt in both modes. `identical`: the greedy texts are the same; None if sampled, or if one is missing."""

    prompt: str
    autoregressive: ModeAnswers
    speculative: ModeAnswers
    identical: bool | None

    @property
    def complete(self) -> bool:
        return self.autoregressive.total > 0 and self.speculative.total > 0


@dataclass(frozen=True, slots=True)
class QualityComparison:
    """Shares that passed at one temperature. `difference` is speculative minus autoregressive, paired by prompt."""

    temperature: float
    prompts: tuple[PromptResult, ...]
    autoregressive: float | None
    speculative: float | None
    difference: Interval | None

    @property
    def missing(self) -> tuple[str, ...]:
        """Prompts without an answer in both modes."""
        return tuple(one.prompt for one in self.prompts if not one.complete)

    @property
    def identical(self) -> int:
        """The number of prompts whose greedy texts are the same in both modes."""
        return sum(one.identical is True for one in self.prompts)


@dataclass(frozen=True, slots=True)
class InvalidAnswer:
    """An answer that does not match its schema: its arm, and the fault."""

    prompt: str
    arm: str  # Arm.id
    what: str

    def __str__(self) -> str:
        return f"{self.prompt} ({self.arm}): {self.what}"


@dataclass(frozen=True, slots=True)
class UnderSchemas:
    """Results of the prompts with a schema. All answers must be valid, sampled ones too. `refused` is the daemon's
    reason if it refused schemas; empty otherwise."""

    greedy: QualityComparison
    sampled: QualityComparison | None
    answers: int
    invalid: tuple[InvalidAnswer, ...]
    refused: str

    @property
    def valid_share(self) -> float | None:
        return (self.answers - len(self.invalid)) / self.answers if self.answers else None

    @property
    def complaints(self) -> Iterator[str]:
        if self.refused:
            return
        if self.invalid:
            yield f"{len(self.invalid)} of {self.answers} answers under a schema are not valid: {self.invalid[0]}"
        yield from _shortfalls(self.greedy, " under a schema")


@dataclass(frozen=True, slots=True)
class QualityResult:
    """`greedy` is judged. `sampled` is reported only, because its texts differ by chance. `schemas`: the same with a
    schema; None if no prompt was asked so."""

    greedy: QualityComparison
    sampled: QualityComparison | None
    schemas: UnderSchemas | None
    requests: int
    errors: int
    error_examples: tuple[str, ...]
    faults: tuple[Fault, ...]  # of the checkers

    @property
    def complaints(self) -> tuple[str, ...]:
        """The reasons for a failure, each a sentence; empty if it passed."""
        said: list[str] = []
        if self.faults:
            first = self.faults[0]
            said.append(
                f"nothing is shown, because the checker of {first.prompt} is broken: {first.what}, on {first.answer!r}"
                f" ({len(self.faults)} faults in all)"
            )
        said += _shortfalls(self.greedy)
        if self.greedy.autoregressive == 0:
            said.append("no prompt passes its check even without drafts, so that there is nothing to compare")
        return (*said, *(self.schemas.complaints if self.schemas is not None else ()))


def _shortfalls(comparison: QualityComparison, where: str = "") -> Iterator[str]:
    """Yields complaints: missing answers, and a share that is too low with drafts."""
    if missing := comparison.missing:
        whole = len(comparison.prompts)
        yield f"{len(missing)} of {whole} prompts were not answered{where} both with and without drafts"
    plain, drafted = comparison.autoregressive, comparison.speculative
    if plain is not None and drafted is not None and plain - drafted > TOLERANCE + _EXACT:
        shares = f"{drafted:.1%} pass{where} with drafts, and {plain:.1%} without"
        yield f"{shares}; at most {TOLERANCE:.1%} less is allowed"


def quality_result(folder: RunFolder, canaries: Sequence[Canary] | None = None) -> QualityResult | None:
    """Returns the result; None if no prompt was asked. Raises RunError for unreadable lines or an unknown prompt."""
    ticks = folder.ticks(Stage.QUALITY)
    if not ticks:
        return None
    canaries = FrozenPrompts.of_package().canaries if canaries is None else canaries
    schemas = {one.id: schema for one in canaries if (schema := schema_of(one.check)) is not None}
    names = {canary.id for canary in canaries}
    for tick in ticks:
        if tick.place.prompt not in (schemas if tick.place.group == SCHEMAS else names):
            raise RunError("quality: prompt", tick.place.prompt, "one of the quality canaries of this draftd")
    failed = [tick.error for tick in ticks if tick.error and not _refusal(tick)]
    under = [tick for tick in ticks if tick.place.group == SCHEMAS]
    greedy, sampled = _comparisons(canaries, [tick for tick in ticks if tick.place.group != SCHEMAS])
    return QualityResult(
        greedy=greedy,
        sampled=sampled,
        schemas=_under_schemas([one for one in canaries if one.id in schemas], under, schemas) if under else None,
        requests=len(ticks) - sum(map(bool, map(_refusal, ticks))),
        errors=len(failed),
        error_examples=tuple(dict.fromkeys(failed))[:5],
        faults=faults(canaries),
    )


def _under_schemas(canaries: Sequence[Canary], ticks: Sequence[Tick], schemas: Mapping[str, Schema]) -> UnderSchemas:
    answers = {key_of(tick): tick for tick in ticks if _counts(tick)}.values()
    checked = ((tick.place, _invalid(tick, schemas[tick.place.prompt])) for tick in answers)
    invalid = tuple(InvalidAnswer(place.prompt, place.arm, what) for place, what in checked if what)
    refused = "" if answers else next(filter(None, map(_refusal, ticks)), "")
    return UnderSchemas(*_comparisons(canaries, ticks), len(answers), invalid, refused)


def _invalid(tick: Tick, schema: Schema) -> str:
    """Returns the fault of an answer with a schema; empty if it is valid."""
    if tick.finish_reason is not FinishReason.STOP:
        return f"not complete after {tick.output_tokens} tokens"
    return mismatch(tick.text or "", schema)


def _comparisons(
    canaries: Sequence[Canary], ticks: Sequence[Tick]
) -> tuple[QualityComparison, QualityComparison | None]:
    """Returns the greedy comparison, and the sampled one if there are sampled answers."""
    arms = {Arm.parse(tick.place.arm) for tick in ticks}
    sampled = sorted({arm.temperature for arm in arms if arm is not None} - {0.0})
    return _comparison(canaries, ticks, 0.0), _comparison(canaries, ticks, sampled[0]) if sampled else None


def _counts(tick: Tick) -> bool:
    return usable(tick) and tick.text is not None


def _comparison(canaries: Sequence[Canary], ticks: Sequence[Tick], temperature: float) -> QualityComparison:
    answers: dict[tuple[str, bool], dict[int, Tick]] = {}
    for tick in ticks:
        arm = Arm.parse(tick.place.arm)
        if arm is not None and arm.temperature == temperature and _counts(tick):
            answers.setdefault((tick.place.prompt, arm.speculative), {})[tick.place.repetition] = tick
    prompts = tuple(_prompt(canary, answers, greedy=not temperature) for canary in canaries)
    both = [one for one in prompts if one.complete]
    plain = [one.autoregressive.passed / one.autoregressive.total for one in both]
    drafted = [one.speculative.passed / one.speculative.total for one in both]
    return QualityComparison(
        temperature,
        prompts,
        sum(plain) / len(plain) if plain else None,
        sum(drafted) / len(drafted) if drafted else None,
        bootstrap([[after - before] for before, after in zip(plain, drafted, strict=True)], "mean"),
    )


def _prompt(canary: Canary, answers: Mapping[tuple[str, bool], Mapping[int, Tick]], *, greedy: bool) -> PromptResult:
    plain, drafted = (tuple(answers.get((canary.id, way), {}).values()) for way in (False, True))
    same = len({tick.digest for tick in (*plain, *drafted)}) == 1 if greedy and plain and drafted else None
    return PromptResult(canary.id, _mode_answers(canary, plain), _mode_answers(canary, drafted), same)


def _mode_answers(canary: Canary, ticks: Sequence[Tick]) -> ModeAnswers:
    said = [canary.check.complaint(tick.text or "") for tick in ticks]
    return ModeAnswers(len(said), sum(not one for one in said), next(filter(None, said), ""))
