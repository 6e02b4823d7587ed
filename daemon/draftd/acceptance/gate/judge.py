"""From what was measured to what came of it, one criterion at a time."""

from __future__ import annotations

from dataclasses import dataclass

from draftd.acceptance.arms import Arm
from draftd.acceptance.gate.evidence import Evidence
from draftd.acceptance.gate.metrics import METRICS
from draftd.acceptance.gate.reading import Lack, Metric, Moves, Reading, Scope
from draftd.acceptance.gate.spec import Against, By, Candidate, Comparison, Criterion, Unreadable
from draftd.acceptance.gate.verdict import Judgement, Outcome
from draftd.acceptance.sweep.knee import knee
from draftd.acceptance.ticks import Stage
from draftd.core import DrafterKind


@dataclass(frozen=True, slots=True)
class Chosen:
    """The candidate as it stands. `block_length` is None where the sweep does not show it."""

    block_length: int | None
    drafter: DrafterKind
    note: str = ""

    @property
    def id(self) -> str:
        """Of its arm; empty where there is none."""
        return Arm(self.block_length, self.drafter).id if self.block_length else ""

    def arm(self, criterion: Criterion) -> Arm | None:
        """The one that the criterion is about."""
        length = self.block_length if criterion.block_length is None else criterion.block_length
        if length is None:
            return None
        return Arm(length, self.drafter if length else None, criterion.temperature, criterion.concurrency)


def choose(candidate: Candidate, run: Evidence) -> Chosen:
    """Where the knee lies at 0 the best block length that does draft is judged: the figures then say by how much it
    falls short."""
    if candidate.block_length != "knee":
        return Chosen(candidate.block_length, candidate.drafter)
    found = knee(run.sweep, candidate.drafter)
    if found is None:
        return Chosen(None, candidate.drafter)
    if found.block_length:
        return Chosen(found.block_length, candidate.drafter, found.sentence)
    drafting = {length: ratio.estimate for length, ratio in found.curve if length}
    if not drafting:
        return Chosen(None, candidate.drafter, found.sentence)
    best = max(drafting, key=lambda length: drafting[length])
    return Chosen(best, candidate.drafter, f"{found.sentence} Judged are blocks of {best}, the fastest that draft.")


def judge(criterion: Criterion, chosen: Chosen, run: Evidence, baseline: Evidence | None) -> Judgement:
    """`baseline` is another run, for criteria that are against it."""
    metric = METRICS[criterion.metric]
    swept = metric.stage is Stage.SWEEP
    arm = chosen.arm(criterion) if swept else None
    scope = Scope(arm, criterion.group, criterion.workload, criterion.against is Against.AUTOREGRESSIVE)
    reading = metric.read(run, scope, baseline if criterion.against is Against.BASELINE else None)
    outcome, reason = weigh(criterion, reading, metric)
    return Judgement(criterion, arm.id if arm is not None else "", reading, outcome, reason)


def weigh(criterion: Criterion, reading: Reading, metric: Metric) -> tuple[Outcome, str]:
    """What comes of a reading, and why. Few samples are enough where more of them cannot mend what they show."""
    few = f"{reading.samples} of at least {criterion.min_samples} {metric.counted}"
    if reading.value is None:
        if reading.lack is Lack.TOO_FEW:
            return Outcome.TOO_FEW_SAMPLES, f"{few}: {reading.reason}"
        excused = reading.lack is Lack.UNREADABLE and criterion.unreadable is Unreadable.EXCUSE
        return (Outcome.EXCUSED if excused else Outcome.NOT_MEASURED), reading.reason
    holds = criterion.comparison.holds(_decides(criterion, reading, reading.value), criterion.threshold)
    if reading.samples < criterion.min_samples and (holds or not _lasts(criterion, reading.value, metric)):
        return Outcome.TOO_FEW_SAMPLES, few
    return (Outcome.PASSED, "") if holds else (Outcome.FAILED, reading.reason)


def _lasts(criterion: Criterion, value: float, metric: Metric) -> bool:
    """Whether a value that does not hold cannot come to hold any more."""
    if criterion.against is not None:
        return False
    match criterion.comparison:
        case Comparison.AT_LEAST | Comparison.ABOVE:
            return metric.moves is Moves.DOWN
        case Comparison.AT_MOST | Comparison.BELOW:
            return metric.moves is Moves.UP
        case Comparison.EQUAL:
            return metric.moves is (Moves.UP if value > criterion.threshold else Moves.DOWN)


def _decides(criterion: Criterion, reading: Reading, value: float) -> float:
    """The figure that has to pass."""
    if criterion.judge is By.ESTIMATE or reading.low is None or reading.high is None:
        return value
    match criterion.comparison:
        case Comparison.AT_LEAST | Comparison.ABOVE:
            return reading.low
        case Comparison.AT_MOST | Comparison.BELOW:
            return reading.high
        case Comparison.EQUAL:
            return max(reading.low, reading.high, key=lambda end: abs(end - criterion.threshold))
