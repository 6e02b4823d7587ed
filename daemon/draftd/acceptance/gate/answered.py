"""What the frozen prompts showed: is the task done as often with drafts, and are the checks that say so sound?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from draftd.acceptance.gate.reading import Metric, Reading, of_stage
from draftd.acceptance.ticks import Stage

if TYPE_CHECKING:
    from draftd.acceptance.gate.evidence import Evidence
    from draftd.acceptance.quality.result import QualityResult

_Read = Callable[["Evidence"], Reading]


def metrics() -> Iterator[tuple[str, Metric]]:
    """Named for the stage; shares of prompts, greedy."""

    def metric(
        read: _Read, unit: str = "1", counted: str = "prompts", *, has_interval: bool = False, divisible: bool = True
    ) -> Metric:
        return Metric(Stage.QUALITY, unit, counted, of_stage(Stage.QUALITY, read), has_interval, divisible)

    yield "quality.success_autoregressive", metric(_checked(lambda found: found.autoregressive_success))
    yield "quality.success_speculative", metric(_checked(lambda found: found.speculative_success))
    yield "quality.difference", metric(_difference, has_interval=True, divisible=False)
    yield "quality.gap", metric(_checked(_gap), divisible=False)
    yield "quality.identical", metric(_identical)
    yield "quality.errors", metric(_errors, "", "requests")
    yield "quality.checkers_sound", metric(_sound, divisible=False)


def _gap(found: QualityResult) -> float | None:
    """Either way: drafts that make a task succeed more often change answers, too."""
    plain, drafted = found.autoregressive_success, found.speculative_success
    return None if plain is None or drafted is None else abs(drafted - plain)


def _checked(figure: Callable[[QualityResult], float | None]) -> _Read:
    """What rests on the checkers: nothing, where they are broken."""

    def read(run: Evidence) -> Reading:
        found = _result(run)
        if not found.checkers_sound:
            return Reading.none("a checker is broken, so that nothing is shown")
        value = figure(found)
        if value is None:
            return Reading.none("no prompt was answered both ways")
        return Reading(value, samples=_complete(found), reason=_failures(found))

    return read


def _difference(run: Evidence) -> Reading:
    """Speculative less autoregressive."""
    found = _result(run)
    if not found.checkers_sound:
        return Reading.none("a checker is broken, so that nothing is shown")
    if found.difference is None:
        return Reading.none("no prompt was answered both ways")
    return Reading.of(found.difference)


def _identical(run: Evidence) -> Reading:
    found = _result(run)
    compared = [one for one in found.prompts if one.identical is not None]
    if not compared:
        return Reading.none("no prompt was answered both ways")
    return Reading(found.identical / len(compared), samples=len(compared))


def _errors(run: Evidence) -> Reading:
    found = _result(run)
    return Reading(found.errors, samples=found.requests, reason="; ".join(found.error_examples[:1]))


def _sound(run: Evidence) -> Reading:
    found = _result(run)
    if found.checkers_sound:
        return Reading(1.0, samples=len(found.prompts))
    first = found.faults[0]
    return Reading(0.0, samples=len(found.prompts), reason=f"that of {first.prompt} {first.what}")


def _failures(found: QualityResult) -> str:
    """The first prompt that fails with drafts only."""
    for one in found.prompts:
        if one.speculative_complaint and not one.autoregressive_complaint:
            return f"{one.prompt}, with drafts: {one.speculative_complaint}"
    return ""


def _complete(found: QualityResult) -> int:
    return sum(one.complete for one in found.prompts)


def _result(run: Evidence) -> QualityResult:
    assert run.quality is not None
    return run.quality
