"""Is the rung above good enough to step up to? Judged by what a few prompts showed there, run as a probe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftd.core import PROMPT_LOOKUP, DrafterName
from draftd.fallback.drift import Baseline, Sample
from draftd.fallback.ladder import Ladder, LadderSettings, Rung
from draftd.fallback.reports import ProbeReport, Verdict


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """`fall` is in the baseline's standard deviations between prompts, half of what the CUSUM lets pass: what it would
    call drift again must not pass here."""

    floor: float = 0.40
    speedup_floor: float = 1.0
    fall: float = 0.25
    least_reached: int = 40


@dataclass(frozen=True, slots=True)
class Judgement:
    """`acceptance` and `speedup` as ProbeReport has them."""

    verdict: Verdict
    reason: str
    acceptance: float | None = None
    speedup: float | None = None


def judge(
    samples: Sequence[Sample],
    *,
    drafts: int,
    break_even_tokens: float,
    drafter: DrafterName,
    baseline: Baseline | None,
    settings: ProbeSettings,
) -> Judgement:
    """`samples` has one entry for each prompt; `drafts` and `break_even_tokens` are sums over them, as DraftCounts has
    them. `baseline` is what the same prompts showed while all was well, None where that is not known: the traffic's
    baseline says nothing about them. They differ from one another, but each is the same again, so that only counting is
    left to chance. Prompt lookup is judged by speed alone.
    """
    accepted, rollbacks = sum(s.accepted for s in samples), sum(s.rollbacks for s in samples)
    whole = Sample(accepted, rollbacks)
    if whole.reached < settings.least_reached or not drafts:
        few = f"{whole.reached} drafted tokens reached in {len(samples)} prompts, {settings.least_reached} needed"
        return Judgement(Verdict.TOO_FEW_SAMPLES, few)
    speedup = (drafts + accepted) / (drafts + break_even_tokens)
    bad = []
    if drafter != PROMPT_LOOKUP:
        bad += _acceptance(whole, baseline, settings)
    if speedup < settings.speedup_floor:
        bad.append(f"speed-up {speedup:.2f}, least {settings.speedup_floor:g}")
    figures = f"acceptance {whole.acceptance:.2f}, speed-up {speedup:.2f} in {len(samples)} prompts"
    verdict = Verdict.BAD if bad else Verdict.GOOD
    return Judgement(verdict, "; ".join(bad) or figures, whole.acceptance, speedup)


def permits(
    report: ProbeReport, made: float, state: Ladder, ladder: Sequence[Rung], settings: LadderSettings, now: float
) -> bool:
    """Whether a probe that ended at `made` lets the ladder up: a good one, of a rung above, since the last step. It
    speaks for a dwell: a wait may be long, and what was good at its beginning need not be at its end."""
    return (
        report.verdict is Verdict.GOOD
        and report.rung in ladder[: state.rung]
        and made > state.since
        and now - made <= settings.dwell
    )


def _acceptance(whole: Sample, baseline: Baseline | None, settings: ProbeSettings) -> list[str]:
    if whole.acceptance < settings.floor:
        return [f"acceptance {whole.acceptance:.2f}, floor {settings.floor:.2f}"]
    if baseline is None:
        return []
    chance = math.sqrt(baseline.mean * (1 - baseline.mean) / whole.reached)
    most = settings.fall * baseline.spread + 2 * chance
    if baseline.mean - whole.acceptance <= most:
        return []
    return [f"acceptance {whole.acceptance:.2f}, baseline {baseline.mean:.2f}, at most {most:.2f} less"]
