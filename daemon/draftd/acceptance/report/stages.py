"""The report's sections about the verdict, quality, another run, and how it was all measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from draftd.acceptance.gate import output
from draftd.acceptance.gate.judge import Decision, Judgement, Outcome, Verdict
from draftd.acceptance.gate.metrics import METRICS as GATED
from draftd.acceptance.manifest import Manifest, differences
from draftd.acceptance.quality import TOLERANCE, Comparison, PromptResult, QualityResult, Way
from draftd.acceptance.report.charts import ranges
from draftd.acceptance.report.data import (
    NOTHING,
    Cell,
    Chart,
    Row,
    Section,
    Table,
    Tone,
    capitalised,
    count,
    integer,
    measured,
    memory,
    name,
    share,
    size,
    span,
)
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import METRICS, against
from draftd.acceptance.sweep.result import Sweep
from draftd.acceptance.ticks import Arm, Stage, Tick, usable

TONES: Mapping[Outcome, Tone] = {
    Outcome.PASSED: "good",
    Outcome.FAILED: "bad",
    Outcome.TOO_FEW_SAMPLES: "unproven",
    Outcome.NOT_MEASURED: "absent",
    Outcome.EXCUSED: "excused",
}


# the verdict


def criteria(verdict: Verdict) -> Section:
    notes = [Cell(capitalised(note)) for note in verdict.notes]
    if verdict.decision is Decision.NOT_JUDGED:
        reasons = [Cell(capitalised(reason) + ".", tone="absent") for reason in verdict.reasons]
        lead = "Nothing was judged: a verdict would mislead."
        return Section("criteria", "Criteria", lead, notes=[*reasons, *notes])
    table = Table.of_words(f"“{verdict.spec}”, criterion by criterion", [_criterion(one) for one in verdict.judgements])
    missed = [f"“{one.criterion.name}” ({output.outcome(one)})" for one in verdict.unproven]
    lead = f"In the way: {', '.join(missed)}." if missed else "Every criterion holds."
    return Section("criteria", "Criteria", lead, notes=notes, tables=(table,))


def _criterion(one: Judgement) -> Row:
    value, _, interval = output.measured(one).partition(" (")
    counted, what = GATED[one.criterion.metric].counted, (one.criterion.metric, output.of_what(one))
    return {
        "Criterion": Cell(capitalised(one.criterion.name), ", ".join(part for part in what if part)),
        "Measured": Cell(value, interval.removesuffix(")").replace(" … ", "–")),
        "Wanted": output.wanted(one.criterion),
        "Samples": Cell(str(one.reading.samples), counted.removesuffix("s") if one.reading.samples == 1 else counted),
        "Outcome": Cell(output.outcome(one), one.reason, TONES[one.outcome]),
    }


# quality


def quality(result: QualityResult | None) -> Section:
    """Does it change any answer? The frozen mini-set of JSON and tool calls, with drafts and without."""
    if result is None:
        return Section("quality", "Quality", "Not measured: this run has no quality stage. draftd quality adds one.")
    notes = [Cell(f"{capitalised(one)}.", tone="bad") for one in result.complaints]
    if not result.faults:
        said = "The checks were checked: every right answer passes, and every spoilt one is rejected."
        notes.append(Cell(said, tone="good"))
    greedy = result.greedy
    plain, drafted, prompts = greedy.autoregressive, greedy.speculative, greedy.prompts
    compared = sum(one.identical is not None for one in prompts)
    same = f"{greedy.identical} of {compared} texts are the same, token for token"
    lead = f"With drafts {share(drafted, 1)} of the tasks succeed, without {share(plain, 1)}; {same}."
    if plain is None or drafted is None:
        lead = f"{count(result.requests, 'answer')} were asked for; they do not show both ways."
    elif plain == drafted:
        lead = f"With drafts as many tasks succeed as without, {share(plain, 1)}; {same}."
    tables = [Table.of("Tasks that succeed", [_compared(one) for one in (greedy, result.sampled) if one is not None])]
    if odd := [one for one in prompts if not _unremarkable(one)]:
        tables.append(_both_ways("Prompts that fail a check, or whose texts differ", odd))
    every = _both_ways(f"Each of the {len(prompts)} prompts both ways, at temperature 0", prompts)
    return Section("quality", "Quality", lead, notes=notes, tables=tables, folded=(every,))


def _compared(one: Comparison) -> Row:
    points = Cell(NOTHING, tone="absent")
    if (found := one.difference) is not None:
        middle, low, high = (
            "0" if abs(value) < 5e-5 else f"{value * 100:+.1f}".replace("-", "−")
            for value in (found.estimate, found.low, found.high)
        )
        points = Cell(middle, f"{low} to {high}")
    kind = "sampled, not judged" if one.temperature else "greedy, what is judged"
    return {
        "Temperature": Cell(f"{one.temperature:g}", kind),
        "Prompts": str(len(one.prompts)),
        "Without drafts | passed": share(one.autoregressive, 1),
        "With drafts | passed": share(one.speculative, 1),
        f"Difference | points; allowed −{TOLERANCE * 100:.1f}": points,
    }


def _unremarkable(one: PromptResult) -> bool:
    return one.complete and one.autoregressive.all_passed and one.speculative.all_passed and one.identical is not False


def _both_ways(caption: str, prompts: Sequence[PromptResult]) -> Table:
    def outcome(way: Way) -> Cell:
        if not way.asked:
            return Cell("not answered", tone="absent")
        if way.all_passed:
            return Cell("passed", tone="good")
        return Cell("failed" if way.asked == 1 else f"{way.passed} of {way.asked}", way.complaint, "bad")

    same = {None: Cell(NOTHING), True: Cell("yes"), False: Cell("no", tone="bad")}
    rows: list[Row] = [
        {
            "Prompt": one.prompt,
            "Without drafts": outcome(one.autoregressive),
            "With drafts": outcome(one.speculative),
            "Same text": same[one.identical],
        }
        for one in prompts
    ]
    return Table.of_words(caption, rows)


# beside another run

_RATIOS = {
    "Decode throughput": "decode_tokens_per_second",
    "Time to first token": "time_to_first_token",
    "Between tokens, p95": "inter_token_p95",
    "Accepted of drafted": "acceptance",
    "Whole answer": "end_to_end",
}


def comparison(
    ours: Sweep | None, theirs: Sweep | None, left: Manifest | None, right: Manifest | None, other: str
) -> Section:
    """`theirs` and `left` are of the other run, whose name is `other`; the rest is of this one."""
    changes = differences(left, right) if left is not None and right is not None else ()
    matters = [one.field for one in changes if one.matters]
    fields = ", ".join(matters[:3]) + (f" and {len(matters) - 3} more" if len(matters) > 3 else "")
    note = Cell("What was measured is the same in all that matters.", tone="good")
    if left is None or right is None:
        said = "One of the two runs holds no manifest: whether the same was measured cannot be told."
        note = Cell(said, tone="unproven")
    elif matters:
        said = f"What was measured differs in what matters ({fields}): the ratios are of two unlike things."
        note = Cell(said, tone="unproven")
    found = _ratios(ours, theirs) if ours is not None and theirs is not None else {}
    notes, tables, charts = [note], [], []
    lead = f"Ratios to {other}, on the prompts that both runs asked."
    if found:
        rows: list[Row] = [
            {"Approach": name(arm)}
            | {f"{label} | ×": measured(ratios.get(metric)) for label, metric in _RATIOS.items()}
            for arm, ratios in found.items()
        ]
        tables.append(Table.of(f"This run over {other}: above 1 is more", rows))
        (title, metric), (second, its) = [*_RATIOS.items()][:2]
        lead = _faster([ratios[metric] for ratios in found.values() if metric in ratios], other)
        charts = [_change(title, metric, found, other), _change(second, its, found, other)]
    else:
        notes.append(Cell("The two runs have no approach and prompt in common.", tone="absent"))
    if changes:
        rows = [
            {"Field": one.field, other: one.left, "This run": one.right, "Matters": "yes" if one.matters else "no"}
            for one in changes
        ]
        tables.append(Table.of_words(f"The manifests differ in {count(len(rows), 'field')}", rows))
    drawn = [one for one in charts if one is not None]
    return Section("comparison", f"Beside {other}", lead, notes=notes, charts=drawn, tables=tables)


def _ratios(ours: Sweep, theirs: Sweep) -> Mapping[Arm, Mapping[str, Interval]]:
    """Paired by prompt."""
    found: dict[Arm, dict[str, Interval]] = {}
    for arm in ours.arms:
        if arm in theirs.arms:
            mine, other = ours.of(arm), theirs.of(arm)
            ratios = {metric: against(mine, arm.id, arm.id, metric, other) for metric in _RATIOS.values()}
            if known := {metric: one for metric, one in ratios.items() if one is not None}:
                found[arm] = known
    return found


def _change(title: str, metric: str, found: Mapping[Arm, Mapping[str, Interval]], other: str) -> Chart | None:
    rows = {name(arm): {"this run": ratios[metric]} for arm, ratios in found.items() if metric in ratios}
    if not rows:
        return None
    apart = sum(not row["this run"].low <= 1 <= row["this run"].high for row in rows.values())
    reading = "Every interval holds 1: no change that could be told from chance."
    if apart:
        lie = "lies" if apart == 1 else "lie"
        reading = f"Of {count(len(rows), 'interval')} {apart} {lie} clear of 1, which is a change."
    reading, inks = f"{METRICS[metric].description} {reading}", {"this run": "speculative"}
    level = (1.0, "no change")
    return ranges(f"against-{metric}", f"{title} over {other}", rows, inks, reading, unit=f"× {other}", level=level)


def _faster(ratios: Sequence[Interval], other: str) -> str:
    faster, slower = sum(one.low > 1 for one in ratios), sum(one.high < 1 for one in ratios)
    return (
        f"Against {other}, {count(faster, 'approach decodes', 'approaches decode')} faster, "
        f"{slower} slower, and {len(ratios) - faster - slower} cannot be told apart."
    )


# how it was measured


def left_out(ticks: Mapping[Stage, Sequence[Tick]], reasons: Mapping[str, str]) -> Section:
    """How it was measured, and what went wrong, in all stages; `reasons` why an arm or a prompt was not swept."""
    notes = [Cell(_how(ticks[Stage.SWEEP]))]
    if missing := [str(stage) for stage in Stage if not ticks[stage]]:
        adds = ", ".join(f"draftd {stage}" for stage in missing) + (" adds it" if len(missing) == 1 else " add them")
        notes.append(Cell(f"This run has no {' and no '.join(missing)}: {adds}.", tone="absent"))
    tables = []
    if reasons:
        rows = [{"Left out of the sweep": name(what), "Why": reason} for what, reason in reasons.items()]
        tables.append(Table.of_words("Not measured, and why", rows))
    everything = [tick for stage in Stage for tick in ticks[stage]]
    if errors := Counter((tick.place.stage, tick.place.arm, tick.error) for tick in everything if tick.error):
        rows = [
            {"Stage": str(stage), "Approach": name(arm), "Times": str(times), "Error": said}
            for (stage, arm, said), times in errors.most_common(12)
        ]
        tables.append(Table.of_words("Requests that failed, and are in no figure", rows))
    counted = integer(sum(usable(tick) for tick in everything))
    lead = f"{count(len(everything), 'request')} were made; {counted} count."
    if reasons:
        lead += f" {count(len(reasons), 'approach or prompt was', 'approaches or prompts were')} left out."
    return Section("left-out", "How it was measured, and what was left out", lead, notes=notes, tables=tables)


def _how(swept: Sequence[Tick]) -> str:
    said = (
        "Intervals are 95 %, from the percentile bootstrap over prompts: a prompt’s repetitions are alike and drawn "
        "together. Ratios pair the same prompts. Every figure is derived from the raw ticks in the run’s folder."
    )
    if not swept:
        return said
    places = [tick.place for tick in swept if not tick.place.warm_up]
    warm, prompts = len(swept) - len(places), len({place.key for place in places})
    return (
        f"{count(prompts, 'prompt')}, {count(len({place.repetition for place in places}), 'repetition')}: each prompt "
        "is asked by every approach in turn, in an order drawn anew. "
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
        said = f"The sessions differ in {', '.join(changed)}: do not put their figures together."
        notes.append(Cell(said, tone="bad"))
    folded = []
    for role, model in one.models.items():
        titled = f"Files of the {role.replace('_', ' ')}, {model.name} ({count(len(model.files), 'file')})"
        if model.changed_since_load:
            notes.append(Cell(f"{capitalised(titled)}: a file is no longer what was loaded.", tone="bad"))
        files = [
            {
                "File": file.name,
                "Kind": file.kind.replace("_", " "),
                "Size": f"{integer(file.bytes)} B",
                "SHA-256": file.sha256,
            }
            for file in model.files
        ]
        folded.append(Table.of_words(titled, files))
    for caption, values in (("Settings in force", one.settings), ("Prompts, by group", one.prompts)):
        rows = [{"Name": key, "Value": value} for key, value in sorted(values.items())]
        folded.append(Table.of_words(f"{caption} ({len(rows)})", rows))
    folded = [table for table in folded if table.rows]
    return Section("manifest", title, lead, notes=notes, facts=_machine(one), folded=folded)


def _machine(one: Manifest) -> Mapping[str, Cell | str]:
    models = {
        capitalised(role.replace("_", " ")): Cell(model.name, f"{model.quantization}, {size(model.weight_bytes)}")
        for role, model in one.models.items()
    }
    low = {None: "", True: "low-power mode", False: "no low-power mode"}[one.low_power]
    return {
        **models,
        "Machine": Cell(one.device, f"{one.cores} cores, {memory(one.memory_bytes)}"),
        "Decodes on": Cell(one.backend, one.blas),
        "Power": Cell(one.power_source or "not known", low),
        "System": Cell(one.os, f"Python {one.python}"),
        "draftd": Cell(one.draftd, "" if one.harness == one.draftd else f"measured by {one.harness}"),
        "Packages": ", ".join(f"{package} {version}" for package, version in one.packages.items()),
        "Loading": span(one.load_seconds),
        "Written": one.created.replace("T", " ").replace("+00:00", " UTC"),
    }
