"""Results and verdicts of probes and canaries, as values; nothing here runs.

A probe measures a level: how many drafted tokens are accepted, how fast it is, and whether the text is still the
target's own. The canaries compare the quality of what is served with autoregressive decoding.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftd.core import PROMPT_LOOKUP, DecodeMode, LadderLevel
from draftd.counts import DraftCounts
from draftd.fallback.drift import AcceptanceSample, Baseline
from draftd.fallback.ladder import LadderSettings, LadderState

_EXACT = 1e-9  # float error: 0.995 - 0.99 is a little less than 0.005

# In standard deviations of the baseline between prompts, half of what the CUSUM tolerates: a level that would drift
# again must not pass here.
_FALL = 0.25
_LEAST_REACHED = 40  # drafted tokens required for a verdict

_GPUS = ("metal", "cuda")  # their kernels for one row and for several rows differ in the last bits
NEAR_TIE = 0.5
"""Logits. Four steps of bfloat16 where logits lie between 16 and 32; the ties that were seen to flip were one apart."""


class ProbeVerdict(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"
    TOO_FEW_SAMPLES = "too_few_samples"
    FAILED = "failed"  # could not run: no statement about the draft


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of one probe of `level`. `acceptance`: accepted / (accepted + rollbacks); `speedup`: over
    autoregressive decoding; both None if nothing was drafted. `reason`: what the verdict rests on. `as_ever`: the probe
    is good, and acceptance equals the baseline except for chance. Seconds are wall time."""

    level: LadderLevel
    verdict: ProbeVerdict
    reason: str
    acceptance: float | None = None
    speedup: float | None = None
    seconds: float = 0.0
    as_ever: bool = False


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of a greedy speculative text from the autoregressive one, at token `at`, counted from 0.
    `logit_gap`: the target's logit of the autoregressive token minus that of the other; None if it could not be
    measured."""

    at: int
    logit_gap: float | None

    def broken(self, tolerated: float | None) -> bool:
        """Whether it is an error. With `tolerated` None every divergence is, also one with an unknown gap."""
        if tolerated is None:
            return True
        return self.logit_gap is not None and abs(self.logit_gap) > tolerated

    def __str__(self) -> str:
        gap = "not measured" if self.logit_gap is None else f"{self.logit_gap:.3g}"
        return f"leaves the autoregressive text at token {self.at}, logit gap {gap}"


def tolerated_gap(backend: str) -> float | None:
    """Returns the largest logit gap that is no error on a backend, named as in ModelInfo; None if every divergence is
    one."""
    return NEAR_TIE if backend in _GPUS else None


@dataclass(frozen=True, slots=True)
class ProbedPrompt:
    """One prompt of a probe with its results: `reference` and `drafted` are token ids without and with drafts."""

    id: str
    counts: DraftCounts
    divergence: Divergence | None = None
    reference: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()


def judge_probe(
    level: LadderLevel,
    prompts: Sequence[ProbedPrompt],
    ended: str,
    baseline: Baseline | None,
    tolerated: float | None,
    floor: float,
) -> ProbeReport:
    """Returns the report without its seconds. `ended`: why the probe ended early, empty if it did not; the prompts so
    far are judged if they are enough. `floor`: the least acceptance.

    `baseline`: the same prompts' result while nothing was wrong, None if unknown; the traffic's baseline says nothing
    about them. Since the prompts are the same, only the error of counting few tokens is left to chance. Prompt lookup
    is judged by speed alone."""
    if not prompts:
        return ProbeReport(level, ProbeVerdict.FAILED, ended or "there is nothing to probe")
    report = _figures(level, prompts, baseline, floor)
    for prompt in prompts:
        if prompt.divergence is not None and prompt.divergence.broken(tolerated):
            reason = f"{prompt.id} {prompt.divergence}; {report.reason}"
            return replace(report, verdict=ProbeVerdict.BAD, reason=reason, as_ever=False)
    return replace(report, reason=f"{report.reason}; {ended}") if ended else report


def _figures(
    level: LadderLevel, prompts: Sequence[ProbedPrompt], baseline: Baseline | None, floor: float
) -> ProbeReport:
    drafting = [prompt.counts for prompt in prompts if prompt.counts.drafts]
    drafts = sum(counts.drafts for counts in drafting)
    whole = AcceptanceSample(
        sum(prompt.counts.accepted for prompt in prompts), sum(prompt.counts.rollbacks for prompt in prompts)
    )
    if whole.reached < _LEAST_REACHED or not drafts:
        few = f"{whole.reached} drafted tokens reached in {len(prompts)} prompts, {_LEAST_REACHED} needed"
        return ProbeReport(level, ProbeVerdict.TOO_FEW_SAMPLES, few)
    costs = [counts.draft_cost for counts in drafting if counts.draft_cost is not None]
    if not costs:
        unknown = "the speed-up is not known: no step without a draft was measured"
        return ProbeReport(level, ProbeVerdict.TOO_FEW_SAMPLES, unknown, whole.acceptance)
    # The cost of a draft is the median over prompts, so that a stall in one of them does not count.
    speedup = sum(counts.gained for counts in drafting) / (drafts * statistics.median(costs))
    bad = [] if level.drafter == PROMPT_LOOKUP else _acceptance(whole, baseline, floor)
    if speedup < 1.0:
        bad.append(f"speed-up {speedup:.2f}, minimum 1")
    figures = f"acceptance {whole.acceptance:.2f}, speed-up {speedup:.2f} in {len(prompts)} prompts"
    verdict = ProbeVerdict.BAD if bad else ProbeVerdict.GOOD
    as_ever = not bad and baseline is not None and baseline.mean - whole.acceptance <= _chance(baseline, whole)
    return ProbeReport(level, verdict, "; ".join(bad) or figures, whole.acceptance, speedup, as_ever=as_ever)


def permits(
    report: ProbeReport,
    probed_at: float,
    state: LadderState,
    ladder: Sequence[LadderLevel],
    settings: LadderSettings,
    now: float,
) -> bool:
    """Whether a probe that ended at `probed_at` permits a step up: a good one, of a level above, since the last step.
    It counts for one cooldown, because a level that was good may not stay so through a long wait."""
    return (
        report.verdict is ProbeVerdict.GOOD
        and report.level in ladder[: state.position]
        and probed_at > state.since
        and now - probed_at <= settings.cooldown
    )


def _acceptance(whole: AcceptanceSample, baseline: Baseline | None, floor: float) -> list[str]:
    if whole.acceptance < floor:
        return [f"acceptance {whole.acceptance:.2f}, floor {floor:.2f}"]
    if baseline is None:
        return []
    most = _FALL * baseline.spread + 2 * _chance(baseline, whole)
    if baseline.mean - whole.acceptance <= most:
        return []
    return [f"acceptance {whole.acceptance:.2f}, baseline {baseline.mean:.2f}, at most {most:.2f} less"]


def _chance(baseline: Baseline, whole: AcceptanceSample) -> float:
    """Returns the standard error of an acceptance, from its judged tokens."""
    return math.sqrt(baseline.mean * (1 - baseline.mean) / whole.reached)


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    """One canary, run with and without drafts. `complaint`: the check that failed, empty if none did."""

    id: str
    passed_autoregressive: bool
    passed_speculative: bool
    divergence: Divergence | None = None
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """The result of one run of all canaries."""

    verdict: ProbeVerdict
    reason: str
    outcomes: tuple[CanaryOutcome, ...] = ()
    seconds: float = 0.0

    @property
    def score_autoregressive(self) -> float | None:
        """The share that passed; None if none ran."""
        return statistics.fmean(o.passed_autoregressive for o in self.outcomes) if self.outcomes else None

    @property
    def score_speculative(self) -> float | None:
        return statistics.fmean(o.passed_speculative for o in self.outcomes) if self.outcomes else None

    @property
    def scores(self) -> dict[str, float | None]:
        """Returns the scores by decode mode."""
        plain, drafted = DecodeMode.AUTOREGRESSIVE.value, DecodeMode.SPECULATIVE.value
        return {plain: self.score_autoregressive, drafted: self.score_speculative}

    @property
    def divergences(self) -> int:
        return sum(o.divergence is not None for o in self.outcomes)


def judge_canaries(
    outcomes: Sequence[CanaryOutcome], ended: str, tolerated: float | None, tolerance: float
) -> CanaryReport:
    """Returns the report without its seconds. A run that ended early may be bad, but not good.

    BAD if the speculative share of passed canaries is below the autoregressive one by more than `tolerance`, or if a
    text differs from the target's own by more than `tolerated` logits. A smaller difference is reported but not bad: on
    some machines two close logits swap with the number of rows."""
    if not outcomes:
        verdict = ProbeVerdict.FAILED if ended else ProbeVerdict.TOO_FEW_SAMPLES
        return CanaryReport(verdict, ended or "no canary was run")
    count = len(outcomes)
    plain = sum(o.passed_autoregressive for o in outcomes)
    drafted = sum(o.passed_speculative for o in outcomes)
    reason = f"{drafted} of {count} canaries passed speculatively, {plain} autoregressively"
    diverged = [(o.id, o.divergence) for o in outcomes if o.divergence is not None]
    if diverged:
        name, first = diverged[0]
        gap = "" if first.logit_gap is None else f", logit gap {first.logit_gap:.3g}"
        reason += f"; {len(diverged)} diverged, {name} at token {first.at}{gap}"
    bad = (plain - drafted) / count > tolerance + _EXACT
    if bad:
        failed = next((o for o in outcomes if o.passed_autoregressive and not o.passed_speculative), None)
        if failed is not None and failed.complaint:
            reason += f"; {failed.id}: {failed.complaint}"
        reason += f"; tolerance {tolerance:.1%}"
    if broken := [(name, divergence) for name, divergence in diverged if divergence.broken(tolerated)]:
        name, first = broken[0]
        reason = f"{len(broken)} of {count} texts are not the target's own: {name} {first}; {reason}"
    elif ended and not bad:
        return CanaryReport(ProbeVerdict.FAILED, f"{ended}; {reason}", tuple(outcomes))
    return CanaryReport(ProbeVerdict.BAD if bad or broken else ProbeVerdict.GOOD, reason, tuple(outcomes))
