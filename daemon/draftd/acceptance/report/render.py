"""A run's report, put together and written: everything derived from its folder, the verdict at the top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from draftd import __version__
from draftd.acceptance.cost import CostRates
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.gate.judge import Decision, Outcome, Verdict
from draftd.acceptance.manifest import Manifest
from draftd.acceptance.quality import quality_result
from draftd.acceptance.report import soak, speed, stages, worth
from draftd.acceptance.report.charts import PALETTE
from draftd.acceptance.report.data import (
    Cell,
    Section,
    Tone,
    capitalised,
    figure,
    measured,
    memory,
    spread,
)
from draftd.acceptance.soak import soak_result
from draftd.acceptance.sweep.result import Sweep, parse
from draftd.acceptance.ticks import Arm, Stage

_DECISIONS: Mapping[Decision, tuple[Tone, str]] = {
    Decision.PROMOTED: ("good", "Promoted"),
    Decision.NOT_PROMOTED: ("bad", "Not promoted"),
    Decision.NOT_JUDGED: ("absent", "Not judged"),
}
_SUMMARISED = (
    *("decode_tokens_per_second", "time_to_first_token", "inter_token_p95"),
    *("acceptance", "acceptance_at_position_0", "mean_accepted_length"),
)
"""What is shown of every arm; the other metrics only of some."""
_SIGNS: Mapping[Tone, str] = {"good": "✓ ", "bad": "✗ ", "unproven": "? ", "absent": "– ", "excused": "○ "}


@dataclass(frozen=True, slots=True)
class Report:
    """What the templates are given. `about` are the pair, the machine, when; `word` is the shortest way to say the
    verdict, `sentence` the whole, `tally` how many criteria had which outcome, `tiles` the few figures at the top."""

    title: str
    about: tuple[str, ...]
    tone: Tone
    word: str
    sentence: str
    tally: tuple[Cell, ...]
    tiles: Mapping[str, Cell]
    sections: tuple[Section, ...]
    made_by: str


@dataclass(frozen=True, slots=True)
class Written:
    """The files."""

    html: Path
    markdown: Path


def write_report(
    run: Path, verdict: Verdict, *, against: Path | None = None, prices: CostRates | None = None
) -> Written:
    """Writes report.html and report.md into the run, which `verdict` is of. `against` is a run to set beside it;
    `prices` count where the run's manifest names none. Raises RunError."""
    folder = RunFolder.open(run)
    other = None if against is None else RunFolder.open(against)
    made = report(folder, verdict, other=other, prices=prices)
    return Written(folder.write("report.html", html(made)), folder.write("report.md", markdown(made)))


def html(made: Report) -> str:
    """One file: no script, nothing fetched."""
    light = "".join(f"--{name}:{pair[0]};" for name, pair in PALETTE.items())
    either = "".join(f"--{name}:light-dark({pair[0]},{pair[1]});" for name, pair in PALETTE.items())
    colours = f":root{{{light}}}@supports (color:light-dark(#000,#fff)){{:root{{{either}}}}}"
    return _rendered("report.html.j2", made, autoescape=True, colours=colours)


def markdown(made: Report) -> str:
    """For a terminal, a pull request or an archive: sentences and tables, the charts by their descriptions."""
    return _rendered("report.md.j2", made, autoescape=False, signs=_SIGNS)


def _rendered(template: str, made: Report, *, autoescape: bool, **more: object) -> str:
    environment = Environment(autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = _plain
    text = (resources.files("draftd.acceptance.report") / template).read_text(encoding="utf-8")
    return environment.from_string(text).render(report=made, **more) + "\n"


def _plain(text: str) -> str:
    """Without what Markdown would take for its own, of what can occur here."""
    for sign in ("\\", "|", "*", "_", "<", "`"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def report(
    folder: RunFolder, verdict: Verdict, *, other: RunFolder | None = None, prices: CostRates | None = None
) -> Report:
    """Raises RunError where a file cannot be read."""
    manifests = folder.manifests()
    last = manifests[max(manifests)] if manifests else None
    swept = Sweep.read(folder, _SUMMARISED)
    chosen = _candidate(verdict, swept)
    ticks = {stage: folder.ticks(stage) for stage in Stage}
    sections = [stages.criteria(verdict), *_of_the_sweep(swept, chosen, last, prices)]
    sections.append(soak.soak(soak_result(folder), ticks[Stage.SOAK], folder.samples(Stage.SOAK)))
    sections.append(stages.quality(quality_result(folder)))
    if other is not None:
        theirs = other.manifests()
        left = theirs[max(theirs)] if theirs else None
        sections.append(stages.comparison(swept, Sweep.read(other, _SUMMARISED), left, last, other.name))
    sections.append(stages.left_out(ticks, swept.left_out if swept is not None else {}))
    sections.append(stages.manifest(manifests))
    outcomes = Counter(one.outcome for one in verdict.judgements)
    tone, word = _DECISIONS[verdict.decision]
    if verdict.decision is Decision.NOT_PROMOTED and not outcomes[Outcome.FAILED]:
        tone = "unproven"  # nothing was disproven
    return Report(
        title=_title(folder, last),
        about=_about(folder, last),
        tone=tone,
        word=word,
        sentence=capitalised(verdict.sentence.partition(": ")[2] + "."),  # the word before it is shown large
        tally=tuple(
            Cell(f"{outcomes[one]} {str(one).replace('_', ' ')}", tone=stages.TONES[one])
            for one in Outcome
            if outcomes[one]
        ),
        tiles=_tiles(swept, chosen) if swept is not None and chosen is not None else {},
        sections=tuple(sections),
        made_by=f"Made by draftd {__version__} from the raw ticks of the run “{folder.name}”. "
        "Nothing here is fetched or runs.",
    )


def _of_the_sweep(
    swept: Sweep | None, chosen: Arm | None, last: Manifest | None, prices: CostRates | None
) -> Iterator[Section]:
    if swept is None:
        yield Section("approaches", "Every approach", "Not measured: this run has no sweep. draftd sweep adds one.")
        return
    rates = (CostRates.from_settings(last.settings) if last is not None else None) or prices
    if rates is not None:
        rates = rates.measuring(None if chosen is None else swept.summaries[chosen].watts)
    found = swept.knee
    yield speed.approaches(swept, chosen, None if found is None else found.block_length, rates)
    yield worth.lengths(swept, found)
    if chosen is not None and chosen.baseline in swept.arms:
        yield speed.latency(swept, chosen)
        yield speed.prompts(swept, chosen)
    if (several := speed.concurrency(swept)) is not None:
        yield several
    if (gained := worth.calculator(swept, chosen)) is not None:
        yield gained
    if chosen is not None:
        yield worth.cost(swept, chosen, rates, None if last is None else last.load_seconds)


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
    machine = f"{last.device}, {memory(last.memory_bytes)}"
    return machine, last.backend, f"{day.day} {day:%B %Y}", f"draftd {last.draftd}", f"Run {folder.name}"


def _tiles(sweep: Sweep, candidate: Arm) -> Mapping[str, Cell]:
    tiles: dict[str, Cell] = {}
    gain = sweep.gains.get(candidate)
    ours, plain = (sweep.figure(arm, "decode_tokens_per_second") for arm in (candidate, candidate.baseline))
    if gain is not None and ours is not None and plain is not None:
        tiles["Decode throughput"] = Cell(f"{gain.estimate:.2f}×", f"{spread(gain)} × autoregressive")
        tiles["Tokens a second"] = Cell(measured(ours).text, f"autoregressive {figure(plain.estimate)}")
    for label, metric in (("Time to first token", "time_to_first_token"), ("Between tokens, p95", "inter_token_p95")):
        if (one := sweep.figure(candidate, metric)) is not None:
            ratio = sweep.ratio(candidate, metric)
            detail = "" if ratio is None else f"{figure(ratio.estimate)} × autoregressive"
            tiles[label] = Cell(f"{figure(one.estimate * 1000)} ms", detail)
    if (accepted := sweep.figure(candidate, "acceptance")) is not None:
        detail = f"{accepted.low * 100:.0f}–{accepted.high * 100:.0f} %, blocks of {candidate.block_length}"
        tiles["Accepted of drafted"] = Cell(f"{accepted.estimate * 100:.0f} %", detail)
    return tiles
