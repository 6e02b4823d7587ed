"""What a soak showed: of requests, of the machine beside them, and of drafts window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from draftd.acceptance.gate.reading import Lack, Metric, Moves, Reading, of_stage
from draftd.acceptance.samples import Sample
from draftd.acceptance.soak.growth import Growth
from draftd.acceptance.ticks import Stage

if TYPE_CHECKING:
    from draftd.acceptance.gate.evidence import Evidence
    from draftd.acceptance.soak.result import SoakResult

_WINDOWS = 2  # in a row: one window of harder text is no decline


def metrics() -> Iterator[tuple[str, Metric]]:
    """Named for the stage."""

    def metric(
        unit: str,
        counted: str,
        read: _Read,
        moves: Moves = Moves.BOTH_WAYS,
        *,
        has_interval: bool = False,
        divisible: bool = True,
    ) -> Metric:
        reading = of_stage(Stage.SOAK, read)
        return Metric(Stage.SOAK, unit, counted, reading, has_interval, divisible, moves=moves)

    yield "soak.seconds", metric("s", "sessions", _plain(lambda soak: (soak.seconds, soak.sessions)), Moves.UP)
    yield "soak.requests", metric("", "requests", _plain(lambda soak: (soak.requests, soak.requests)), Moves.UP)
    yield "soak.errors", metric("", "requests", _errors, Moves.UP)
    yield (
        "soak.tokens_per_second",
        metric("tokens/s", "requests", _plain(lambda soak: (soak.tokens_per_second, soak.requests))),
    )
    for name, unit, figure, known, moves in _OF_THE_MACHINE:
        yield f"soak.{name}", metric(unit, "readings", _of_the_machine(name, figure, known), moves)
    for name, which, known in (("resident", _of_resident, _resident), ("mlx", _of_mlx, _mlx)):
        growth = _growth(which, known)
        yield f"soak.{name}_growth", metric("By/s", "readings", growth, has_interval=True, divisible=False)
    yield "soak.days_to_exhaustion", metric("d", "readings", _days, divisible=False)
    yield "soak.acceptance_held", metric("1", "windows", _held, Moves.DOWN)


_Read = Callable[["Evidence"], Reading]
_Known = Callable[[Sample], object]
_Figure = Callable[["SoakResult"], float | None]


def _resident(sample: Sample) -> int | None:
    return sample.resident


def _of_resident(soak: SoakResult) -> Growth | None:
    return soak.resident


def _of_mlx(soak: SoakResult) -> Growth | None:
    return soak.mlx


def _mlx(sample: Sample) -> int | None:
    return sample.mlx_active


_OF_THE_MACHINE: tuple[tuple[str, str, _Figure, _Known, Moves], ...] = (
    ("peak_resident", "By", lambda soak: soak.peak_resident, _resident, Moves.UP),
    ("headroom", "By", lambda soak: soak.least_headroom, lambda sample: sample.headroom, Moves.DOWN),
    ("critical_seconds", "s", lambda soak: soak.longest_critical, lambda sample: sample.pressure, Moves.UP),
    ("swap_in", "By", lambda soak: soak.swap_in, lambda sample: sample.swap_in, Moves.UP),
    ("throttles", "", lambda soak: soak.throttles, lambda sample: sample.throttles, Moves.UP),
)


def _plain(figure: Callable[[SoakResult], tuple[float | None, int]]) -> _Read:
    def read(run: Evidence) -> Reading:
        assert run.soak is not None
        value, samples = figure(run.soak)
        return Reading.none("nothing came of it") if value is None else Reading(value, samples=samples)

    return read


def _errors(run: Evidence) -> Reading:
    assert run.soak is not None
    return Reading(run.soak.errors, samples=run.soak.requests, reason="; ".join(run.soak.error_examples[:1]))


def _of_the_machine(name: str, figure: _Figure, known: _Known) -> _Read:
    def read(run: Evidence) -> Reading:
        assert run.soak is not None
        value, readings = figure(run.soak), _readings(run, known)
        return _unknown(run, name, readings) if value is None else Reading(value, samples=readings)

    return read


def _growth(which: Callable[[SoakResult], Growth | None], known: _Known) -> _Read:
    def read(run: Evidence) -> Reading:
        assert run.soak is not None
        found, readings = which(run.soak), _readings(run, known)
        if found is None:
            return _unknown(run, "memory", readings)
        return Reading(found.slope.estimate, found.slope.low, found.slope.high, readings)

    return read


def _days(run: Evidence) -> Reading:
    assert run.soak is not None
    value, readings = run.soak.days_to_exhaustion, max(_readings(run, _resident), _readings(run, _mlx))
    if value is None:
        return _unknown(run, "memory", readings)
    return Reading(value, samples=readings, reason=run.soak.complaints[0] if run.soak.grows_without_bound else "")


def _held(run: Evidence) -> Reading:
    assert run.soak is not None
    value, judged = run.soak.sustained_acceptance(_WINDOWS), len(run.soak.judged_windows)
    if value is None:
        return Reading.none(f"{judged} of {len(run.soak.windows)} windows had drafts enough", Lack.TOO_FEW, judged)
    return Reading(value, samples=judged)


def _readings(run: Evidence, known: _Known) -> int:
    return sum(known(sample) is not None for sample in run.soak_samples)


def _unknown(run: Evidence, name: str, readings: int) -> Reading:
    if readings:
        return Reading.none(f"{readings} readings are too few to tell", Lack.TOO_FEW, readings)
    if not run.soak_samples:
        return Reading.none("the machine was not asked while it was soaked")
    return Reading.none(f"{name.replace('_', ' ')} cannot be read on this machine", Lack.UNREADABLE)
