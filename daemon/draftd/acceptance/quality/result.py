"""What a quality run showed: the checks are applied anew to the texts that were kept, and are checked themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftd.acceptance.arms import Arm
from draftd.acceptance.figures import usable
from draftd.acceptance.folder import RunError, RunFolder
from draftd.acceptance.quality.selftest import Fault, complaint, faults
from draftd.acceptance.statistics import Interval, bootstrap
from draftd.acceptance.ticks import Stage, Tick
from draftd.canaries.prompts import Canary, FrozenPrompts

TOLERANCE = 0.005
"""How far the share that passes with drafts may lie below the other."""

_EXACT = 1e-9  # 0.995 - 0.99 is a little less than 0.005


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
