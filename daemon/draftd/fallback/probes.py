"""What probes and canaries show, and what it is worth: values and verdicts, nothing that runs.

A probe says whether a level would do: how many drafted tokens are accepted there, how fast that is, and whether the
text is still the target's own. The canaries say whether what is served is as good as it would be autoregressively."""

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

_EXACT = 1e-9  # 0.995 - 0.99 is a little less than 0.005

# Of the baseline's standard deviations between prompts. It is half of what the CUSUM lets pass: what that would call
# drift again must not pass here.
_FALL = 0.25
_LEAST_REACHED = 40  # drafted tokens, for a verdict

_GPUS = ("metal", "cuda")  # their kernels for one row and for several differ in the last bits
NEAR_TIE = 0.5
"""Logits. Four steps of bfloat16 where logits lie between 16 and 32; the ties that were seen to flip were one apart."""


class ProbeVerdict(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"
    TOO_FEW_SAMPLES = "too_few_samples"
    FAILED = "failed"  # it could not be run: no statement about the draft


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """One probe of `level`. `acceptance` is accepted / (accepted + rollbacks), `speedup` over autoregressive decoding;
    None where nothing was drafted. `reason` says what the verdict rests on. `as_ever`: it is good, and as much is
    accepted as while all was well, but for chance. Seconds are wall time."""

    level: LadderLevel
    verdict: ProbeVerdict
    reason: str
    acceptance: float | None = None
    speedup: float | None = None
    seconds: float = 0.0
    as_ever: bool = False


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a greedy speculative text leaves the autoregressive one: `at` counts its tokens from 0. `logit_gap` is the
    target's logit of the autoregressive token there less that of the other; None where it could not be measured."""

    at: int
    logit_gap: float | None

    def broken(self, tolerated: float | None) -> bool:
        """Whether it is an error. Where every divergence is one (`tolerated` None), so is one whose gap is not
        known."""
        if tolerated is None:
            return True
        return self.logit_gap is not None and abs(self.logit_gap) > tolerated

    def __str__(self) -> str:
        gap = "not measured" if self.logit_gap is None else f"{self.logit_gap:.3g}"
        return f"leaves the autoregressive text at token {self.at}, logit gap {gap}"


def tolerated_gap(backend: str) -> float | None:
    """The largest gap that is no error on a backend, as ModelInfo names it; None where every divergence is one."""
    return NEAR_TIE if backend in _GPUS else None


@dataclass(frozen=True, slots=True)
class ProbedPrompt:
    """A prompt of a probe, and what it showed: `reference` and `drafted` are token ids, without and with drafts."""

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
    """The report, but for its seconds. `ended`: why not all prompts were tried, empty where they were; then it is
    judged by what there is, where that is enough. `floor`: the least acceptance.

    `baseline` is what the same prompts showed while all was well, None where that is not known: the traffic's baseline
    says nothing about them. They differ from one another, but each is the same again, so that only counting is left to
    chance. Prompt lookup is judged by speed alone."""
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
    # The cost of a draft is the median over prompts: a stall in one of them is no cost.
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
    """Whether a probe that ended at `probed_at` lets the ladder up: a good one, of a level above, since the last step.
    It counts for one cooldown: a wait may be long, and what was good at its beginning need not be at its end."""
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
    """The standard error of a share, counted over what was reached."""
    return math.sqrt(baseline.mean * (1 - baseline.mean) / whole.reached)


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    """One canary, run both ways. `complaint` says which check was not passed, empty where both were."""

    id: str
    passed_autoregressive: bool
    passed_speculative: bool
    divergence: Divergence | None = None
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """One run of all canaries."""

    verdict: ProbeVerdict
    reason: str
    outcomes: tuple[CanaryOutcome, ...] = ()
    seconds: float = 0.0

    @property
    def score_autoregressive(self) -> float | None:
        """Share that passed; None where none ran."""
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
    """The report, but for its seconds. A run that ended early may be bad by what it saw; it cannot be good.

    BAD where the share that passed speculatively lies below the autoregressive one by more than `tolerance`, or where a
    text leaves the target's own by more than `tolerated` logits. A text that diverges within that and passes is
    reported, and is not bad by itself: on some machines two logits that lie close change places with the number of
    rows."""
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
