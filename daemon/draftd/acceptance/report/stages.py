"""The report's sections about the verdict, quality, another run, and how it was all measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draftd.acceptance.gate import output
from draftd.acceptance.gate.judge import Decision, Judgement, Outcome, Verdict
from draftd.acceptance.gate.metrics import METRICS as GATED
from draftd.acceptance.manifest import Manifest, differences
from draftd.acceptance.quality import TOLERANCE, Comparison, PromptResult, QualityResult
from draftd.acceptance.report.charts import ranges
from draftd.acceptance.report.data import (
    NOTHING,
    Cell,
    Chart,
    Column,
    Note,
    Section,
    Sweep,
    Table,
    Tone,
    capitalised,
    count,
    gigabytes,
    measured,
    memory,
    name,
    share,
    span,
)
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import METRICS, against
from draftd.acceptance.ticks import Arm, Stage, Tick, usable

TONES: Mapping[Outcome, Tone] = {
    Outcome.PASSED: "good",
    Outcome.FAILED: "bad",
    Outcome.TOO_FEW_SAMPLES: "unproven",
    Outcome.NOT_MEASURED: "absent",
    Outcome.EXCUSED: "excused",
}
_NAMED = 4  # criteria in one sentence


# the verdict


def criteria(verdict: Verdict) -> Section:
    notes = [Note(capitalised(note)) for note in verdict.notes]
    if verdict.decision is Decision.NOT_JUDGED:
        reasons = [Note(capitalised(reason) + ".", "absent") for reason in verdict.reasons]
        lead = "Nothing was judged: a verdict would mislead."
        return Section("criteria", "Criteria", lead, notes=[*reasons, *notes])
    columns = (
        Column("Criterion"),
        Column("Measured", figures=False),
        Column("Wanted", figures=False),
        Column("Samples"),
        Column("Outcome", figures=False),
    )
    rows = tuple(_criterion(one) for one in verdict.judgements)
    table = Table(f"“{verdict.spec}”, criterion by criterion", columns, rows, stacked=True)
    return Section("criteria", "Criteria", _in_the_way(verdict), notes=notes, tables=(table,))


def _criterion(one: Judgement) -> tuple[Cell, ...]:
    value, _, interval = output.measured(one).partition(" (")
    counted, what = GATED[one.criterion.metric].counted, (one.criterion.metric, output.of_what(one))
    return (
        Cell(capitalised(one.criterion.name), ", ".join(part for part in what if part)),
        Cell(value, interval.removesuffix(")").replace(" … ", "–")),
        Cell(output.wanted(one.criterion)),
        Cell(str(one.reading.samples), counted.removesuffix("s") if one.reading.samples == 1 else counted),
        Cell(output.outcome(one), one.reason, TONES[one.outcome]),
    )


def _in_the_way(verdict: Verdict) -> str:
    """By name, as long as there are few; then what failed by name, and of the rest how many."""
    if not verdict.unproven:
        return "Every criterion holds."
    if len(verdict.unproven) <= _NAMED:
        stands = [f"“{one.criterion.name}” ({output.outcome(one)})" for one in verdict.unproven]
        return f"In the way: {', '.join(stands)}."
    failed = [f"“{one.criterion.name}” failed" for one in verdict.unproven if one.outcome is Outcome.FAILED]
    rest = Counter(output.outcome(one) for one in verdict.unproven if one.outcome is not Outcome.FAILED)
    return f"In the way: {', '.join([*failed, *(f'{number} × {outcome}' for outcome, number in rest.items())])}."


# quality


def quality(result: QualityResult | None) -> Section:
    """Does it change any answer? The frozen mini-set of JSON and tool calls, with drafts and without."""
    if result is None:
        return Section("quality", "Quality", "Not measured: this run has no quality stage. draftd quality adds one.")
    notes = [Note(f"{capitalised(one)}.", "bad") for one in result.complaints]
    if result.checkers_sound:
        notes.append(
            Note("The checks were checked: every right answer passes, and every spoilt one is rejected.", "good")
        )
    plain, drafted = result.autoregressive_success, result.speculative_success
    compared = sum(one.identical is not None for one in result.prompts)
    same = f"{result.identical} of {compared} texts are the same, token for token"
    lead = f"With drafts {share(drafted, 1)} of the tasks succeed, without {share(plain, 1)}; {same}."
    if plain is None or drafted is None:
        lead = f"{count(result.requests, 'answer')} were asked for; they do not show both ways."
    elif plain == drafted:
        lead = f"With drafts as many tasks succeed as without, {share(plain, 1)}; {same}."
    columns = (
        Column("Temperature"),
        Column("Prompts"),
        Column("Without drafts", "passed"),
        Column("With drafts", "passed"),
        Column("Difference", f"points; allowed −{TOLERANCE * 100:.1f}"),
    )
    kinds = tuple(_compared(one) for one in (result.greedy, result.sampled) if one is not None)
    tables = [Table("Tasks that succeed", columns, kinds)]
    if odd := [one for one in result.prompts if not _unremarkable(one)]:
        tables.append(_both_ways("Prompts that fail a check, or whose texts differ", odd))
    every = _both_ways(f"Each of the {len(result.prompts)} prompts both ways, at temperature 0", result.prompts)
    return Section("quality", "Quality", lead, notes=notes, tables=tables, folded=(every,))


def _compared(one: Comparison) -> tuple[Cell, ...]:
    points = Cell(NOTHING, tone="absent")
    if (found := one.difference) is not None:
        middle, low, high = (
            "0" if abs(value) < 5e-5 else f"{value * 100:+.1f}".replace("-", "−")
            for value in (found.estimate, found.low, found.high)
        )
        points = Cell(middle, f"{low} to {high}")
    return (
        Cell(f"{one.temperature:g}", "sampled, not judged" if one.temperature else "greedy, what is judged"),
        Cell(str(len(one.prompts))),
        Cell(share(one.autoregressive, 1)),
        Cell(share(one.speculative, 1)),
        points,
    )


def _unremarkable(one: PromptResult) -> bool:
    passed = one.autoregressive_passed == one.autoregressive_asked and one.speculative_passed == one.speculative_asked
    return one.complete and passed and one.identical is not False


def _both_ways(caption: str, prompts: Sequence[PromptResult]) -> Table:
    def outcome(asked: int, passed: int, complaint: str) -> Cell:
        if not asked:
            return Cell("not answered", tone="absent")
        if passed == asked:
            return Cell("passed", tone="good")
        return Cell("failed" if asked == 1 else f"{passed} of {asked}", complaint, "bad")

    same = {None: Cell(NOTHING), True: Cell("yes"), False: Cell("no", tone="bad")}
    rows = tuple(
        (
            Cell(one.prompt),
            outcome(one.autoregressive_asked, one.autoregressive_passed, one.autoregressive_complaint),
            outcome(one.speculative_asked, one.speculative_passed, one.speculative_complaint),
            same[one.identical],
        )
        for one in prompts
    )
    titles = ("Prompt", "Without drafts", "With drafts", "Same text")
    return Table(caption, tuple(Column(title, figures=False) for title in titles), rows, stacked=True)


# beside another run

_RATIOS = (
    ("Decode throughput", "decode_tokens_per_second"),
    ("Time to first token", "time_to_first_token"),
    ("Between tokens, p95", "inter_token_p95"),
    ("Accepted of drafted", "acceptance"),
    ("Whole answer", "end_to_end"),
)


def comparison(
    ours: Sweep | None, theirs: Sweep | None, left: Manifest | None, right: Manifest | None, other: str
) -> Section:
    """`theirs` and `left` are of the other run, whose name is `other`; the rest is of this one."""
    changes = differences(left, right) if left is not None and right is not None else ()
    matters = [one.field for one in changes if one.matters]
    fields = ", ".join(matters[:3]) + (f" and {len(matters) - 3} more" if len(matters) > 3 else "")
    note = Note("What was measured is the same in all that matters.", "good")
    if left is None or right is None:
        said = "One of the two runs holds no manifest: whether the same was measured cannot be told."
        note = Note(said, "unproven")
    elif matters:
        said = f"What was measured differs in what matters ({fields}): the ratios are of two unlike things."
        note = Note(said, "unproven")
    found = _ratios(ours, theirs) if ours is not None and theirs is not None else {}
    notes, tables = [note], []
    lead = f"Ratios to {other}, on the prompts that both runs asked."
    if found:
        rows = tuple(
            (Cell(name(arm)), *(measured(ratios.get(metric)) for _, metric in _RATIOS)) for arm, ratios in found.items()
        )
        columns = (Column("Approach"), *(Column(label, "×") for label, _ in _RATIOS))
        tables.append(Table(f"This run over {other}: above 1 is more", columns, rows))
        lead = _faster([one for ratios in found.values() if (one := ratios.get(_RATIOS[0][1]))], other)
    else:
        notes.append(Note("The two runs have no approach and prompt in common.", "absent"))
    if changes:
        columns = (Column("Field"), Column(other, figures=False), Column("This run", figures=False), Column("Matters"))
        rows = tuple(
            (Cell(one.field), Cell(one.left), Cell(one.right), Cell("yes" if one.matters else "no")) for one in changes
        )
        tables.append(Table(f"The manifests differ in {count(len(rows), 'field')}", columns, rows, stacked=True))
    charts = [_change(title, metric, found, other) for title, metric in _RATIOS[:2]] if found else []
    drawn = [one for one in charts if one is not None]
    return Section("comparison", f"Beside {other}", lead, notes=notes, charts=drawn, tables=tables)


def _ratios(ours: Sweep, theirs: Sweep) -> Mapping[Arm, Mapping[str, Interval]]:
    """Paired by prompt."""
    found: dict[Arm, dict[str, Interval]] = {}
    for arm in ours.arms:
        if arm in theirs.arms:
            ratios = {metric: against(ours.of(arm), arm.id, arm.id, metric, theirs.of(arm)) for _, metric in _RATIOS}
            if known := {metric: one for metric, one in ratios.items() if one is not None}:
                found[arm] = known
    return found


def _change(title: str, metric: str, found: Mapping[Arm, Mapping[str, Interval]], other: str) -> Chart | None:
    rows = [(name(arm), {"this run": ratios[metric]}) for arm, ratios in found.items() if metric in ratios]
    if not rows:
        return None
    apart = sum(not row["this run"].low <= 1 <= row["this run"].high for _, row in rows)
    reading = "Every interval holds 1: no change that could be told from chance."
    if apart:
        lie = "lies" if apart == 1 else "lie"
        reading = f"Of {count(len(rows), 'interval')} {apart} {lie} clear of 1, which is a change."
    return ranges(
        f"against-{metric}",
        f"{title} over {other}",
        rows,
        {"this run": "speculative"},
        f"{METRICS[metric].description} {reading}",
        unit=f"× {other}",
        level=(1.0, "no change"),
    )


def _faster(ratios: Sequence[Interval], other: str) -> str:
    faster, slower = sum(one.low > 1 for one in ratios), sum(one.high < 1 for one in ratios)
    return (
        f"Against {other}, {count(faster, 'approach decodes', 'approaches decode')} faster, "
        f"{slower} slower, and {len(ratios) - faster - slower} cannot be told apart."
    )


# how it was measured


def left_out(ticks: Mapping[Stage, Sequence[Tick]], plans: Mapping[Stage, Mapping[str, Any]]) -> Section:
    """How it was measured, what was left out, and what went wrong, in all stages."""
    notes = [Note(_how(ticks[Stage.SWEEP]))]
    if missing := [str(stage) for stage in Stage if not ticks[stage]]:
        adds = ", ".join(f"draftd {stage}" for stage in missing) + (" adds it" if len(missing) == 1 else " add them")
        notes.append(Note(f"This run has no {' and no '.join(missing)}: {adds}.", "absent"))
    tables, plan = [], plans.get(Stage.SWEEP, {})
    rows = [(Cell(name(str(one["arm"]))), Cell(str(one["reason"]))) for one in plan.get("left_out", ())]
    rows += [(Cell(str(one["prompt"])), Cell(str(one["reason"]))) for one in plan.get("left_out_prompts", ())]
    if rows:
        columns: tuple[Column, ...] = (Column("Left out of the sweep"), Column("Why", figures=False))
        tables.append(Table("Not measured, and why", columns, tuple(rows), stacked=True))
    errors = Counter((stage, tick.place.arm, tick.error) for stage in Stage for tick in ticks[stage] if tick.error)
    if errors:
        columns = Column("Stage"), Column("Approach", figures=False), Column("Times"), Column("Error", figures=False)
        shown = tuple(
            (Cell(str(stage)), Cell(name(arm)), Cell(str(times)), Cell(said))
            for (stage, arm, said), times in errors.most_common(12)
        )
        tables.append(Table("Requests that failed, and are in no figure", columns, shown, stacked=True))
    everything = [tick for stage in Stage for tick in ticks[stage]]
    counted = sum(usable(tick) for tick in everything)
    lead = f"{count(len(everything), 'request')} were made; {counted:,} count.".replace(",", " ")
    if rows:
        lead += f" {count(len(rows), 'approach or prompt was', 'approaches or prompts were')} left out."
    return Section("left-out", "How it was measured, and what was left out", lead, notes=notes, tables=tables)


def _how(swept: Sequence[Tick]) -> str:
    said = (
        "Intervals are 95 %, from the percentile bootstrap over prompts: a prompt’s repetitions are alike and drawn "
        "together. Ratios pair the same prompts. Every figure is derived from the raw ticks in the run’s folder."
    )
    if not swept:
        return said
    warm = sum(tick.place.warm_up for tick in swept)
    prompts = len({(tick.place.group, tick.place.prompt) for tick in swept if not tick.place.warm_up})
    repetitions = len({tick.place.repetition for tick in swept if not tick.place.warm_up})
    return (
        f"{count(prompts, 'prompt')}, {count(repetitions, 'repetition')}: each prompt is asked by every approach "
        "in turn, in an order drawn anew. "
        f"{count(warm, 'request')} to warm up {'is' if warm == 1 else 'are'} kept and not counted. {said}"
    )


def manifest(manifests: Mapping[int, Manifest]) -> Section:
    """Enough for another to measure it again, and to see whether it is the same."""
    title = "What was measured"
    if not manifests:
        return Section("manifest", title, "This run holds no manifest: what was measured cannot be told.")
    one, notes = manifests[max(manifests)], []
    lead = f"{one.device}, {memory(one.memory_bytes)} of memory, {one.os}, {one.backend}."
    if len(manifests) > 1:
        lead += f" Measured in {len(manifests)} sessions; shown is the last one's manifest."
    changed = dict.fromkeys(d.field for other in manifests.values() for d in differences(one, other) if d.matters)
    if changed:
        notes.append(Note(f"The sessions differ in {', '.join(changed)}: do not put their figures together.", "bad"))
    folded = []
    for role, model in one.models.items():
        titled = f"Files of the {role.replace('_', ' ')}, {model.name} ({count(len(model.files), 'file')})"
        if model.changed_since_load:
            notes.append(Note(f"{capitalised(titled)}: a file is no longer what was loaded.", "bad"))
        columns = (Column("File"), Column("Kind", figures=False), Column("Size"), Column("SHA-256", figures=False))
        files = tuple(
            (Cell(file.name), Cell(file.kind.replace("_", " ")), Cell(_size(file.bytes)), Cell(file.sha256))
            for file in model.files
        )
        folded.append(Table(titled, columns, files, stacked=True))
    folded.append(_listing(f"Settings in force ({len(one.settings)})", one.settings))
    if one.prompts:
        folded.append(_listing(f"Prompts, by group ({len(one.prompts)})", one.prompts))
    return Section("manifest", title, lead, notes=notes, facts=_machine(one), folded=folded)


def _machine(one: Manifest) -> list[tuple[str, Cell]]:
    models = [
        (
            capitalised(role.replace("_", " ")),
            Cell(model.name, f"{model.quantization}, {gigabytes(model.weight_bytes)}"),
        )
        for role, model in one.models.items()
    ]
    low = {None: "", True: "low-power mode", False: "no low-power mode"}[one.low_power]
    return [
        *models,
        ("Machine", Cell(one.device, f"{one.cores} cores, {memory(one.memory_bytes)}")),
        ("Decodes on", Cell(one.backend, one.blas)),
        ("Power", Cell(one.power_source or "not known", low)),
        ("System", Cell(one.os, f"Python {one.python}")),
        ("draftd", Cell(one.draftd, "" if one.harness == one.draftd else f"measured by {one.harness}")),
        ("Packages", Cell(", ".join(f"{package} {version}" for package, version in one.packages.items()))),
        ("Loading", Cell(span(one.load_seconds))),
        ("Written", Cell(one.created.replace("T", " ").replace("+00:00", " UTC"))),
    ]


def _size(size: int) -> str:
    return gigabytes(size) if size > 1e8 else f"{size:,} B".replace(",", " ")


def _listing(caption: str, values: Mapping[str, str]) -> Table:
    rows = tuple((Cell(key), Cell(value)) for key, value in sorted(values.items()))
    return Table(caption, (Column("Name"), Column("Value", figures=False)), rows, stacked=True)
