"""What a sweep measured of one arm: of itself, over its autoregressive arm, or over the same arm of another run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from draftd.acceptance import summary
from draftd.acceptance.gate.reading import Metric, Reading, Scope
from draftd.acceptance.statistics import Interval
from draftd.acceptance.ticks import Stage

if TYPE_CHECKING:
    from draftd.acceptance.gate.evidence import Evidence

_BASELINE = "baseline"  # no arm is called so
_OF_DRAFTS = ("acceptance", "acceptance_at_position_0", "mean_accepted_length")


def metrics() -> Iterator[tuple[str, Metric]]:
    """Those of summary.METRICS, by their names, and the throughput of requests that run at a time."""
    for name, definition in summary.METRICS.items():
        plain = name not in _OF_DRAFTS
        yield (
            name,
            Metric(Stage.SWEEP, definition.unit, "requests", _swept(name), has_interval=True, autoregressive=plain),
        )
    yield (
        "total_tokens_per_second",
        Metric(Stage.SWEEP, "tokens/s", "groups", _together, has_interval=True, divisible=False),
    )


def _swept(name: str) -> Callable[[Evidence, Scope, Evidence | None], Reading]:
    def read(run: Evidence, scope: Scope, baseline: Evidence | None) -> Reading:
        if (missing := _missing(run, scope)) is not None:
            return missing
        assert scope.arm is not None
        ticks, arm = scope.narrowed(run.sweep), scope.arm.id
        if scope.over_autoregressive:
            found = summary.against(ticks, arm, scope.arm.baseline.id, name)
        elif baseline is None:
            found = summary.measure(summary.select(ticks, arm=arm), name)
        else:
            theirs = [
                replace(tick, place=replace(tick.place, arm=_BASELINE))
                for tick in scope.narrowed(baseline.sweep)
                if tick.place.arm == arm
            ]
            found = summary.against([*ticks, *theirs], arm, _BASELINE, name)
        return _of(found, scope, baseline)

    return read


def _together(run: Evidence, scope: Scope, baseline: Evidence | None) -> Reading:
    if (missing := _missing(run, scope)) is not None:
        return missing
    assert scope.arm is not None
    return _of(summary.total_throughput(scope.narrowed(run.sweep), scope.arm.id), scope, None)


def _missing(run: Evidence, scope: Scope) -> Reading | None:
    if not run.sweep:
        return Reading.none("the run has no sweep")
    if scope.arm is None:
        return Reading.none("the candidate's block length is not known: the sweep shows no knee")
    return None


def _of(found: Interval | None, scope: Scope, baseline: Evidence | None) -> Reading:
    if found is None:
        both = ", in both runs on the same prompts" if baseline is not None else ""
        return Reading.none(f"no answer of {scope}{both}")
    return Reading.of(found)
