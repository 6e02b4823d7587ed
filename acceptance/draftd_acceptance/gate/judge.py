"""Judges a run: first whether it can be judged at all, then each criterion, then the verdict.

A run and its baseline can be compared if their manifests agree in all relevant fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, product
from pathlib import Path

from draftd_acceptance import summary
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.gate.metrics import METRICS, TOTAL_THROUGHPUT, GateEvidence, GateMetric, MetricReading
from draftd_acceptance.gate.spec import Criterion, PromotionCandidate, Spec
from draftd_acceptance.manifest import Difference, Manifest, differences
from draftd_acceptance.sweep.result import knee, swept_drafter
from draftd_acceptance.ticks import Arm, Stage, Tick


class CriterionOutcome(StrEnum):
    """Too few samples and no measurement are failures to prove, distinct from a criterion that was disproven."""

    PASSED = "passed"
    FAILED = "failed"
    TOO_FEW_SAMPLES = "too_few_samples"
    NOT_MEASURED = "not_measured"
    EXCUSED = "excused"  # this machine or model cannot show it, and the spec excuses that

    @property
    def good(self) -> bool:
        return self in (CriterionOutcome.PASSED, CriterionOutcome.EXCUSED)


class Decision(StrEnum):
    """`not_judged`: run and criteria, or run and baseline, cannot be compared; any verdict would mislead."""

    PROMOTED = "promoted"
    NOT_PROMOTED = "not_promoted"
    NOT_JUDGED = "not_judged"

    @property
    def exit_code(self) -> int:
        return {Decision.PROMOTED: 0, Decision.NOT_PROMOTED: 1, Decision.NOT_JUDGED: 2}[self]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of one criterion. `arm` is the sweep's arm that was read; empty for other stages."""

    criterion: Criterion
    arm: str
    reading: MetricReading
    outcome: CriterionOutcome
    reason: str = ""  # why, where it neither passed nor plainly failed


@dataclass(frozen=True, slots=True)
class GateDecision:
    """`candidate` is the arm that was judged. `reasons` say why the run was not judged; `notes` are further remarks."""

    decision: Decision
    spec: str
    run: str
    baseline: str = ""
    candidate: str = ""
    judgements: tuple[Judgement, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unproven(self) -> tuple[Judgement, ...]:
        """The criteria that prevent promotion."""
        return tuple(one for one in self.judgements if not one.outcome.good)

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.decision is Decision.NOT_JUDGED:
            more = len(self.reasons) - 1
            return f"not judged: {self.reasons[0]}" + (f" (and {more} more reason{'s' * (more > 1)})" if more else "")
        proven = len(self.judgements) - len(self.unproven)
        counted = f"{self.candidate or 'the run'} meets {proven} of {len(self.judgements)} criteria of {self.spec!r}"
        if self.decision is Decision.PROMOTED:
            return f"promoted: {counted}"
        missed: dict[str, list[str]] = {"it fails": [], "it does not prove": []}
        for judgement in self.unproven:
            how = "it fails" if judgement.outcome is CriterionOutcome.FAILED else "it does not prove"
            missed[how].append(f"“{judgement.criterion.name}”")
        return f"not promoted: {counted}; " + "; ".join(f"{how} {', '.join(of)}" for how, of in missed.items() if of)


def hindrances(
    run: GateEvidence, baseline: GateEvidence | None, may_differ: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Returns the differences that prevent a verdict, and those that `may_differ` allows: dotted fields or prefixes in
    which a run may differ from its baseline. The sessions of one run may never differ. Each line names the field and
    both values."""
    refused = [*_session_hindrances(run)]
    allowed: list[str] = []
    if baseline is not None:
        refused += _session_hindrances(baseline)
        for entry, _, _ in _differing_fields(product(baseline.manifests.items(), run.manifests.items())):
            line = f"{entry.field} is {entry.right} in this run, and {entry.left} in the baseline {baseline.name}"
            may = any(f"{entry.field}.".startswith(f"{prefix}.") for prefix in may_differ)
            (allowed if may else refused).append(line)
    return refused, allowed


def _session_hindrances(run: GateEvidence) -> Iterator[str]:
    """Yields what prevents a verdict within one run: no session, changed files, or sessions that differ."""
    if not run.manifests:
        yield f"nothing was measured in {run.name}"
    for number, manifest in run.manifests.items():
        for role, model in manifest.models.items():
            if model.changed_since_load:
                gone = "the files are no longer what was loaded"
                yield f"models.{role}.changed_since_load is true in session {number} of {run.name}: {gone}"
    # Compare all pairs: two sessions may share prompts that the first one lacks.
    for entry, first, second in _differing_fields(combinations(run.manifests.items(), 2)):
        yield f"{entry.field} is {entry.left} in session {first} of {run.name}, and {entry.right} in session {second}"


_Session = tuple[int, Manifest]


def _differing_fields(pairs: Iterable[tuple[_Session, _Session]]) -> Iterator[tuple[Difference, int, int]]:
    """Yields each relevant field that differs once, with the first two sessions in which it does."""
    said: set[str] = set()
    for (first, left), (second, right) in pairs:
        for entry in differences(left, right):
            if entry.matters and entry.field not in said:
                said.add(entry.field)
                yield entry, first, second


def choose(candidate: PromotionCandidate, run: GateEvidence) -> tuple[PromotionCandidate, str]:
    """Returns the candidate with the swept drafter, unless it names one, and with the knee's block length if it asks
    for the knee; also a note on the knee. If the knee is at 0, the best block length that drafts is judged: the figures
    then say by how much it falls short."""
    if "drafter" not in candidate.model_fields_set:
        arms = map(Arm.parse, dict.fromkeys(tick.place.arm for tick in run.sweep))
        candidate = candidate.model_copy(update={"drafter": swept_drafter(arm for arm in arms if arm is not None)})
    best_found = knee(run.sweep, candidate.drafter) if candidate.block_length == "knee" else None
    if best_found is None:
        return candidate, ""
    best, note = best_found.block_length, best_found.sentence
    if not best:
        best, _ = max((one for one in best_found.curve if one[0]), key=lambda one: one[1].estimate)
        note += f" Blocks of {best} are judged, because they are the fastest."
    return candidate.model_copy(update={"block_length": best}), note


def judge(
    criterion: Criterion, candidate: PromotionCandidate, run: GateEvidence, baseline: GateEvidence | None
) -> Judgement:
    """Judges one criterion. `baseline` is another run, for criteria against it."""
    metric = METRICS[criterion.metric]
    arm = _arm(criterion, candidate) if metric.stage is Stage.SWEEP else None
    reading = read_metric(criterion, arm, run, baseline if criterion.against == "baseline" else None)
    outcome, reason = weigh(criterion, reading, metric)
    return Judgement(criterion, arm.id if arm is not None else "", reading, outcome, reason)


def _arm(criterion: Criterion, candidate: PromotionCandidate) -> Arm | None:
    """Returns the criterion's arm; None if the candidate's block length is unknown."""
    length = candidate.block_length if criterion.block_length is None else criterion.block_length
    if length == "knee":
        return None
    return Arm(length, candidate.drafter if length else None, criterion.temperature, criterion.concurrency)


def read_metric(
    criterion: Criterion, arm: Arm | None, run: GateEvidence, baseline: GateEvidence | None = None
) -> MetricReading:
    """Returns the value of the criterion's metric in a run, for a sweep's metric that of `arm`. With a `baseline`,
    another run, it is the ratio to the value there."""
    metric = METRICS[criterion.metric]
    if not getattr(run, metric.stage):
        return MetricReading.none(f"the run has no {metric.stage}")
    if metric.read is None:
        return _sweep_reading(criterion, arm, run, baseline)
    ours = metric.read(getattr(run, metric.stage))
    if baseline is None or ours.value is None:
        return ours
    if not getattr(baseline, metric.stage):
        return MetricReading.none(f"the baseline has no {metric.stage}")
    theirs = metric.read(getattr(baseline, metric.stage))
    if theirs.value is None:
        return theirs
    if not theirs.value:
        return MetricReading.none("it is 0 in the baseline")
    return MetricReading(ours.value / theirs.value, samples=min(ours.samples, theirs.samples))


def _sweep_reading(
    criterion: Criterion, arm: Arm | None, run: GateEvidence, baseline: GateEvidence | None
) -> MetricReading:
    """Returns an arm's figure: by itself, over its autoregressive arm, or over the same arm of another run."""
    if arm is None:
        return MetricReading.none("the candidate's block length is not known: the sweep shows no knee")
    name, group, workload, whose = criterion.metric, criterion.group, criterion.workload, arm.id

    def narrow(ticks: Iterable[Tick]) -> list[Tick]:
        return [one for one in ticks if group in (None, one.place.group) and workload in (None, one.place.workload)]

    ticks = narrow(run.sweep)
    if name == TOTAL_THROUGHPUT:
        interval = summary.total_throughput(ticks, arm.id)
    elif criterion.against == "autoregressive":
        interval = summary.against(ticks, arm.id, arm.baseline.id, name)
        whose += f" and {arm.baseline.id}"
    elif baseline is not None:
        interval = summary.against(ticks, arm.id, arm.id, name, narrow(baseline.sweep))
    else:
        interval = summary.measure(summary.select(ticks, arm=arm.id), name)
    if interval is None:
        both = " in both runs" if baseline is not None else ""
        return MetricReading.none(
            f"no prompt was answered{both} by {' in '.join(filter(None, (whose, group, workload)))}"
        )
    return MetricReading.of(interval)


def weigh(criterion: Criterion, reading: MetricReading, metric: GateMetric) -> tuple[CriterionOutcome, str]:
    """Returns a reading's outcome and the reason. Few samples suffice to fail if more could not improve the value."""
    few = f"{reading.samples} of at least {criterion.min_samples} {metric.counted}"
    if reading.value is None:
        if reading.lack == "too_few":
            short = reading.samples < criterion.min_samples
            return CriterionOutcome.TOO_FEW_SAMPLES, f"{few}: {reading.reason}" if short else reading.reason
        excused = reading.lack == "unreadable" and criterion.unreadable == "excuse"
        return (CriterionOutcome.EXCUSED if excused else CriterionOutcome.NOT_MEASURED), reading.reason
    holds = criterion.comparison.holds(_deciding_figure(criterion, reading, reading.value), criterion.threshold)
    if reading.samples < criterion.min_samples and (holds or not _cannot_recover(criterion, reading.value, metric)):
        return CriterionOutcome.TOO_FEW_SAMPLES, few
    return (CriterionOutcome.PASSED, "") if holds else (CriterionOutcome.FAILED, reading.reason)


def _cannot_recover(criterion: Criterion, value: float, metric: GateMetric) -> bool:
    """Whether a value that fails now must fail for the rest of the run."""
    wanted = criterion.comparison.direction or (1 if value < criterion.threshold else -1)
    return criterion.against is None and metric.moves == ("down" if wanted > 0 else "up")


def _deciding_figure(criterion: Criterion, reading: MetricReading, value: float) -> float:
    """Returns the figure that is compared with the threshold: the estimate, or the worse end of the interval."""
    if criterion.judge == "estimate" or reading.low is None or reading.high is None:
        return value
    ends = {1: (reading.low,), -1: (reading.high,), 0: (reading.low, reading.high)}[criterion.comparison.direction]
    return max(ends, key=lambda end: abs(end - criterion.threshold))


def judge_run(path: Path, spec: Spec, *, baseline: Path | None = None, may_differ: Sequence[str] = ()) -> GateDecision:
    """Returns the verdict; a run that cannot be judged gets `not_judged`, no error. `may_differ` as in `hindrances`."""
    needing = [one.name for one in spec.criterion if one.against == "baseline" and baseline is None]
    run = f"{needing[0]!r} needs a baseline, and none is given" if needing else _read(path)
    if isinstance(run, str):
        return not_judged(run, spec=spec.name, run=path.resolve().name)
    other = _read(baseline) if baseline is not None else None
    if isinstance(other, str):
        return not_judged(f"the baseline: {other}", spec=spec.name, run=run.name)
    refused, allowed = hindrances(run, other, may_differ)
    beside = other.name if other is not None else ""
    if refused:
        return not_judged(*refused, spec=spec.name, run=run.name, baseline=beside)
    candidate, note = choose(spec.candidate, run)
    judgements = tuple(judge(criterion, candidate, run, other) for criterion in spec.criterion)
    good = all(one.outcome.good for one in judgements)
    return GateDecision(
        decision=Decision.PROMOTED if good else Decision.NOT_PROMOTED,
        spec=spec.name,
        run=run.name,
        baseline=beside,
        candidate=candidate.id,
        judgements=judgements,
        notes=(*filter(None, [note]), *_notes(run, candidate.id), *(f"allowed: {one}" for one in allowed)),
    )


def _read(path: Path) -> GateEvidence | str:
    """Returns a run's evidence, or the reason why it cannot be read."""
    try:
        return GateEvidence.read(RunFolder.open(path))
    except RunError as error:
        return error.message
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _notes(run: GateEvidence, candidate: str) -> Iterator[str]:
    if run.missing:
        yield f"The sweep is not complete: {run.missing} requests are still to be measured."
    for stage in (Stage.SOAK, Stage.QUALITY):
        # Temperature and concurrency of an arm may differ from the candidate's.
        arms = run.arms.get(stage, ())
        if arms and candidate and not any(arm.split("-t")[0].split("-x")[0] == candidate for arm in arms):
            yield f"The candidate is {candidate}, but the {stage} stage measured {', '.join(arms)}."


def not_judged(*reasons: str, spec: str = "", run: str = "", baseline: str = "") -> GateDecision:
    return GateDecision(Decision.NOT_JUDGED, spec, run, baseline, reasons=reasons)
