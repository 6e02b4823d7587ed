"""A run's report, put together: everything derived from its folder, the verdict at the top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from draftd import __version__
from draftd.acceptance.cost import CostRates
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.gate.judge import Verdict
from draftd.acceptance.manifest import Manifest
from draftd.acceptance.quality import quality_result
from draftd.acceptance.report.arms import parse
from draftd.acceptance.report.blocks import Page, Section
from draftd.acceptance.report.evidence import Sweep, rates, sweep
from draftd.acceptance.report.numbers import memory
from draftd.acceptance.report.sections.approaches import approaches
from draftd.acceptance.report.sections.comparison import comparison
from draftd.acceptance.report.sections.concurrency import concurrency
from draftd.acceptance.report.sections.cost import cost
from draftd.acceptance.report.sections.expected import calculator
from draftd.acceptance.report.sections.latency import latency
from draftd.acceptance.report.sections.left_out import left_out
from draftd.acceptance.report.sections.lengths import lengths
from draftd.acceptance.report.sections.manifest import manifest
from draftd.acceptance.report.sections.prompts import prompts
from draftd.acceptance.report.sections.quality import quality
from draftd.acceptance.report.sections.soak import soak
from draftd.acceptance.report.sections.verdict import banner, criteria
from draftd.acceptance.soak.result import soak_result
from draftd.acceptance.sweep.result import knee
from draftd.acceptance.ticks import Arm, Stage


def page(
    folder: RunFolder, verdict: Verdict, *, other: RunFolder | None = None, prices: CostRates | None = None
) -> Page:
    """`verdict` is of this run. `other` is one to set beside it. `prices`: where the run's own manifest names none.

    Raises RunError where a file cannot be read.
    """
    manifests = folder.manifests()
    last = manifests[max(manifests)] if manifests else None
    swept = sweep(folder)
    chosen = _candidate(verdict, swept)
    sections = [criteria(verdict), *_swept(swept, chosen, manifests, prices)]
    ticks = {stage: folder.ticks(stage) for stage in Stage}
    sections.append(soak(soak_result(folder), ticks[Stage.SOAK], folder.samples(Stage.SOAK)))
    sections.append(quality(quality_result(folder)))
    if other is not None:
        theirs = other.manifests()
        left = theirs[max(theirs)] if theirs else None
        sections.append(comparison(swept, sweep(other), left, last, other.name))
    sections.append(left_out(ticks, {stage: folder.plan(stage) or {} for stage in Stage}))
    sections.append(manifest(manifests))
    return Page(
        _title(folder, last),
        _about(folder, last),
        banner(verdict, swept, chosen),
        tuple(sections),
        f"Made by draftd {__version__} from the raw ticks of the run “{folder.name}”. Nothing here is fetched or runs.",
    )


def _swept(
    swept: Sweep | None, chosen: Arm | None, manifests: Mapping[int, Manifest], prices: CostRates | None
) -> Iterator[Section]:
    if swept is None:
        yield Section("approaches", "Every approach", "Not measured: this run has no sweep. draftd sweep adds one.")
        return
    last = manifests[max(manifests)] if manifests else None
    watts = None if chosen is None else swept.summaries[chosen].watts
    known = rates(manifests, watts) or (None if prices is None else prices.measuring(watts))
    found = knee(swept.ticks)
    yield approaches(swept, chosen, None if found is None else found.block_length, known)
    yield lengths(swept, found)
    if chosen is not None and chosen.baseline in swept.arms:
        yield latency(swept, chosen)
        yield prompts(swept, chosen)
    if (several := concurrency(swept)) is not None:
        yield several
    if (worth := calculator(swept, chosen)) is not None:
        yield worth
    if chosen is not None:
        yield cost(swept, chosen, known, None if last is None else last.load_seconds)


def _candidate(verdict: Verdict, swept: Sweep | None) -> Arm | None:
    """The one that was judged; where none was, the one that decodes fastest of those that draft."""
    if swept is None:
        return None
    judged = parse(verdict.candidate) if verdict.candidate else None
    if judged in swept.arms:
        return judged
    gains = [(gain.estimate, arm) for arm in swept.lengths if (gain := swept.gains.get(arm)) is not None]
    return max(gains, key=lambda pair: pair[0])[1] if gains else None


def _title(folder: RunFolder, last: Manifest | None) -> str:
    if last is None or "target" not in last.models:
        return folder.name
    target, draft = last.models["target"].name, last.models.get("draft")
    return target if draft is None else f"{target} with {draft.name}"


def _about(folder: RunFolder, last: Manifest | None) -> tuple[str, ...]:
    if last is None:
        return (f"Run {folder.name}",)
    day = datetime.fromisoformat(last.created)
    return (
        f"{last.device}, {memory(last.memory_bytes)}",
        last.backend,
        f"{day.day} {day:%B %Y}",
        f"draftd {last.draftd}",
        f"Run {folder.name}",
    )
