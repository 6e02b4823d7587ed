"""Builds and writes a run's report: everything is derived from its folder, with the verdict at the top.

sections.j2 has the text; report.html.j2 and report.md.j2 have the frames of the two pages.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from draftd import __version__
from draftd.core import DRAFT_HEAD
from draftd_acceptance import cost
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.gate import output as gate
from draftd_acceptance.gate.judge import CriterionOutcome, Decision, GateDecision
from draftd_acceptance.manifest import Manifest, differences
from draftd_acceptance.quality import TOLERANCE, quality_result
from draftd_acceptance.report import figures, stages
from draftd_acceptance.report.charts import PALETTE, Chart, parts
from draftd_acceptance.soak import soak_result
from draftd_acceptance.summary import METRICS
from draftd_acceptance.sweep.result import Sweep
from draftd_acceptance.ticks import Arm, Stage, usable

_TONES: Mapping[Decision | CriterionOutcome, str] = {
    Decision.PROMOTED: "good",
    Decision.NOT_PROMOTED: "bad",
    Decision.NOT_JUDGED: "absent",
    CriterionOutcome.PASSED: "good",
    CriterionOutcome.FAILED: "bad",
    CriterionOutcome.TOO_FEW_SAMPLES: "unproven",
    CriterionOutcome.NOT_MEASURED: "absent",
    CriterionOutcome.EXCUSED: "excused",
}
_SUMMARISED = (
    *("decode_tokens_per_second", "time_to_first_token", "inter_token_p95"),
    *("acceptance", "acceptance_at_position_0", "mean_accepted_length"),
)
"""The metrics shown for every arm; others only for some."""
_SIGNS = {"good": "✓ ", "bad": "✗ ", "unproven": "? ", "absent": "– ", "excused": "○ "}


def write_report(
    run: Path, verdict: GateDecision, *, against: Path | None = None, prices: cost.CostRates | None = None
) -> tuple[Path, Path]:
    """Writes report.html and report.md into the run that `verdict` is about. `against` is a run to compare with;
    `prices` apply if the run's manifest names none. Raises RunError."""
    folder = RunFolder.open(run)
    contents = report(folder, verdict, other=None if against is None else RunFolder.open(against), prices=prices)
    return folder.write("report.html", html(contents)), folder.write("report.md", markdown(contents))


def html(contents: Mapping[str, Any]) -> str:
    """Returns the page as one file that has no script and fetches nothing."""
    return _render("report.html.j2", contents, autoescape=True, palette=PALETTE)


def markdown(contents: Mapping[str, Any]) -> str:
    """Returns Markdown for a terminal, a pull request or an archive: sentences, tables, descriptions of charts."""
    text = _render("report.md.j2", contents, autoescape=False, signs=_SIGNS)
    return re.sub(r"\n{3,}", "\n\n", text)


def _render(template: str, contents: Mapping[str, Any], *, autoescape: bool, **more: object) -> str:
    environment = Environment(
        loader=PackageLoader("draftd_acceptance", "report"),
        extensions=["jinja2.ext.do"],
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": _plain, "quoted": "“{}”".format}
    environment.tests["usable"] = usable
    for module in (cost, figures):
        environment.globals |= {name: form for name, form in vars(module).items() if callable(form)}
    environment.globals |= {"ends": stages.ends, "median_chunk": stages.median_chunk, "same_texts": stages.same_texts}
    environment.globals |= {"columns_of": figures.columns, "empty": figures.Cell(""), "infinity": math.inf}
    environment.globals |= {"gate": gate, "METRICS": METRICS, "tones": _TONES}
    environment.globals |= {"least_accepted": stages.LEAST_ACCEPTED, "tolerance": TOLERANCE}
    return environment.get_template(template).render(contents, **more) + "\n"


def _plain(text: str) -> str:
    """Escapes Markdown's special characters, as far as they can occur here."""
    return " ".join(re.sub(r"[\\|*_<`]", r"\\\g<0>", text).split())


def report(
    folder: RunFolder, verdict: GateDecision, *, other: RunFolder | None = None, prices: cost.CostRates | None = None
) -> dict[str, Any]:
    """Returns the contents for the templates. Raises RunError if a file cannot be read."""
    manifests, ticks = folder.manifests(), {stage: folder.ticks(stage) for stage in Stage}
    last = manifests.get(max(manifests, default=0))
    swept, soak, samples = Sweep.read(folder, _SUMMARISED), soak_result(folder), folder.samples(Stage.SOAK)
    candidate = _candidate(verdict, swept)
    failed = [tick for tick in chain.from_iterable(ticks.values()) if tick.error]
    outcomes = Counter(one.outcome for one in verdict.judgements)
    tone = _TONES[verdict.decision]
    if verdict.decision is Decision.NOT_PROMOTED and not outcomes[CriterionOutcome.FAILED]:
        tone = "unproven"  # nothing was disproven
    contents: dict[str, Any] = {
        "verdict": verdict,
        "title": _title(folder, last),
        "about": _about(folder, last),
        "tone": tone,
        "word": figures.capitalise(verdict.decision.replace("_", " ")),
        "sentence": _sentence(verdict),
        "outcomes": {one: outcomes[one] for one in CriterionOutcome if outcomes[one]},
        "made_by": f"Made by draftd {__version__} from the raw ticks of the run “{folder.name}”. "
        "It fetches nothing and runs no script.",
        "sweep": swept,
        "candidate": candidate,
        "soak": soak,
        "thermal": sorted({one.thermal for one in samples if one.thermal}),
        "quality": quality_result(folder),
        "ticks": ticks,
        "errors": Counter((one.place.stage, one.place.arm, one.error) for one in failed).most_common(12),
        "manifest": last,
        "exactness": next((one.exactness for one in reversed(manifests.values()) if one.exactness is not None), None),
        "sessions": len(manifests),
        "other": None,
    }
    charts = [stages.soak_charts(ticks[Stage.SOAK], samples, soak.windows)] if soak is not None else []
    if swept is not None:
        contents |= _sweep_contents(swept, candidate, last, prices)
        charts.append(_sweep_charts(swept, candidate, contents))
    if other is not None:
        contents |= _comparison(other, swept, last)
        charts.append(stages.change_charts(contents["ratios"], other.name))
    contents["drawn"] = {chart.id: chart for chart in chain.from_iterable(charts)}
    return contents


def _sweep_contents(
    swept: Sweep, candidate: Arm | None, last: Manifest | None, prices: cost.CostRates | None
) -> dict[str, Any]:
    rates = (cost.CostRates.from_settings(last.settings) if last is not None else None) or prices
    if rates is not None:
        rates = rates.measuring(None if candidate is None else swept.summaries[candidate].watts)
    return {
        "rates": rates,
        "load": last.load_seconds if last is not None else None,
        "knee": swept.knee,
        "worth": stages.worth(swept),
        "together": stages.together(swept),
        "kinds": None if candidate is None else stages.kinds(swept, candidate),
        "waits": None if candidate is None else stages.waits(swept, candidate),
    }


def _comparison(other: RunFolder, swept: Sweep | None, last: Manifest | None) -> dict[str, Any]:
    """Returns the contents that compare this run with another."""
    theirs, earlier = Sweep.read(other, _SUMMARISED), other.manifests()
    before = earlier.get(max(earlier, default=0))
    ratios = stages.ratios(swept, theirs) if swept is not None and theirs is not None else {}
    changes = None if last is None or before is None else differences(before, last)
    return {"other": other.name, "changes": changes, "ratios": ratios}


def _sweep_charts(swept: Sweep, candidate: Arm | None, contents: Mapping[str, Any]) -> Iterator[Chart]:
    yield from stages.length_charts(swept, contents["knee"])
    if candidate is not None:
        yield from stages.latency_charts(swept, candidate)
        gains, first = contents["kinds"]
        yield from stages.kind_charts(gains, first, candidate)
        _, timed = contents["waits"]
        if timed:
            yield parts("answer", {figures.name(arm): of for arm, of in timed.items()}, stages.PARTS)
    if contents["together"][0]:
        total, first = contents["together"]
        yield stages.together_chart("together", total, "tokens/s")
        yield stages.together_chart("together-first", first, "ms", 1000)
    if contents["worth"] is not None:
        yield stages.worth_chart(swept, contents["worth"])


def _candidate(verdict: GateDecision, swept: Sweep | None) -> Arm | None:
    """Returns the judged arm; if none was judged, the fastest arm that drafts."""
    if swept is None:
        return None
    judged = Arm.parse(verdict.candidate) if verdict.candidate else None
    if judged in swept.arms:
        return judged
    gains = [(gain.estimate, arm) for arm in swept.by_length.values() if (gain := swept.gains.get(arm)) is not None]
    return max(gains, key=lambda pair: pair[0])[1] if gains else None


def _sentence(verdict: GateDecision) -> str:
    """Returns the verdict's sentence without its first word, which is shown large, and with the candidate's name for
    its id."""
    said = verdict.sentence.partition(": ")[2] + "."
    if verdict.candidate and said.startswith(verdict.candidate):
        said = figures.spoken(verdict.candidate) + said.removeprefix(verdict.candidate)
    return figures.capitalise(said)


def _title(folder: RunFolder, last: Manifest | None) -> str:
    if last is None or "target" not in last.models:
        return folder.name
    target, draft = last.models["target"].name, last.models.get("draft")
    if draft is None:
        return f"{target} with its draft head" if DRAFT_HEAD in last.models else target
    return f"{target} with {draft.name}"


def _about(folder: RunFolder, last: Manifest | None) -> tuple[str, ...]:
    if last is None:
        return (f"Run {folder.name}",)
    day = datetime.fromisoformat(last.created)
    machine = f"{last.device}, {figures.memory(last.memory_bytes)}"
    return machine, last.backend, f"{day.day} {day:%B %Y}", f"draftd {last.draftd}", f"Run {folder.name}"
