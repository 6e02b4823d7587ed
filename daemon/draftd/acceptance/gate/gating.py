"""A run before its gate: first whether it can be judged, then each criterion, then the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from draftd.acceptance.folder import RunError, RunFolder
from draftd.acceptance.gate.comparable import hindrances
from draftd.acceptance.gate.evidence import Evidence
from draftd.acceptance.gate.judge import Chosen, choose, judge
from draftd.acceptance.gate.spec import Against, Spec
from draftd.acceptance.gate.verdict import Decision, Verdict
from draftd.acceptance.ticks import Stage


def judge_run(path: Path, spec: Spec, *, baseline: Path | None = None, may_differ: Sequence[str] = ()) -> Verdict:
    """Raises nothing for a run that cannot be judged: that, too, is a verdict.

    `may_differ`: dotted fields of a manifest, or what they begin with, in which the run may differ from its baseline.
    """
    needing = [one.name for one in spec.criterion if one.against is Against.BASELINE]
    if needing and baseline is None:
        reason = f"{needing[0]!r} is against a baseline, and none is given"
        return not_judged(reason, spec=spec.name, run=path.resolve().name)
    run, other = _read(path), _read(baseline) if baseline is not None else None
    if isinstance(run, str):
        return not_judged(run, spec=spec.name, run=path.resolve().name)
    if isinstance(other, str):
        return not_judged(f"the baseline: {other}", spec=spec.name, run=run.name)
    stands, allowed = hindrances(run, other, may_differ)
    if stands:
        return not_judged(*stands, spec=spec.name, run=run.name, baseline=other.name if other is not None else "")
    chosen = choose(spec.candidate, run)
    judgements = tuple(judge(criterion, chosen, run, other) for criterion in spec.criterion)
    good = all(one.outcome.good for one in judgements)
    return Verdict(
        decision=Decision.PROMOTED if good else Decision.NOT_PROMOTED,
        spec=spec.name,
        run=run.name,
        baseline=other.name if other is not None else "",
        candidate=chosen.id,
        judgements=judgements,
        notes=tuple(_notes(run, chosen, allowed)),
    )


def _read(path: Path) -> Evidence | str:
    """What it holds, or why that cannot be known."""
    try:
        return Evidence.read(RunFolder.open(path))
    except RunError as error:
        return error.message
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _notes(run: Evidence, chosen: Chosen, allowed: Sequence[str]) -> Iterator[str]:
    if chosen.note:
        yield chosen.note
    if run.missing:
        yield f"The sweep is not complete: {run.missing} requests are still to be measured."
    for stage in (Stage.SOAK, Stage.QUALITY):
        # Where no arm is the candidate's, whatever its temperature and however many at a time.
        arms = run.arms.get(stage, ())
        if arms and chosen.id and not any(arm.split("-t")[0].split("-x")[0] == chosen.id for arm in arms):
            yield f"The candidate is {chosen.id}; the {stage} was of {', '.join(arms)}."
    yield from (f"allowed: {one}" for one in allowed)


def not_judged(*reasons: str, spec: str = "", run: str = "", baseline: str = "") -> Verdict:
    return Verdict(Decision.NOT_JUDGED, spec, run, baseline, reasons=reasons)
