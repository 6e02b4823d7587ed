"""The verdict first: one word, why, and the few figures that one wants to see."""

from __future__ import annotations

from collections import Counter

from draftd.acceptance.gate import output as shown
from draftd.acceptance.gate.judge import Decision, Judgement, Outcome, Verdict
from draftd.acceptance.gate.metrics import METRICS
from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import Banner, Cell, Column, Note, Section, Table, Tile, Tone
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.report.numbers import figure, measured, spread
from draftd.acceptance.summary import against
from draftd.acceptance.ticks import Arm

TONES = {
    Outcome.PASSED: Tone.GOOD,
    Outcome.FAILED: Tone.BAD,
    Outcome.TOO_FEW_SAMPLES: Tone.UNPROVEN,
    Outcome.NOT_MEASURED: Tone.ABSENT,
    Outcome.EXCUSED: Tone.EXCUSED,
}
_DECISIONS = {
    Decision.PROMOTED: (Tone.GOOD, "Promoted"),
    Decision.NOT_PROMOTED: (Tone.BAD, "Not promoted"),
    Decision.NOT_JUDGED: (Tone.ABSENT, "Not judged"),
}
_NAMED = 4  # criteria in one sentence
_COLUMNS = (
    Column("Criterion"),
    Column("Measured", figures=False),
    Column("Wanted", figures=False),
    Column("Samples"),
    Column("Outcome", figures=False),
)


def banner(verdict: Verdict, sweep: Sweep | None, candidate: Arm | None) -> Banner:
    tone, word = _DECISIONS[verdict.decision]
    outcomes = Counter(one.outcome for one in verdict.judgements)
    if verdict.decision is Decision.NOT_PROMOTED and not outcomes[Outcome.FAILED]:
        tone = Tone.UNPROVEN  # nothing was disproven
    words = {**{outcome: str(outcome).replace("_", " ") for outcome in Outcome}}
    tally = tuple(
        Cell(f"{outcomes[outcome]} {words[outcome]}", tone=TONES[outcome]) for outcome in Outcome if outcomes[outcome]
    )
    return Banner(tone, word, _sentence(verdict, outcomes), tally, _tiles(sweep, candidate))


def criteria(verdict: Verdict) -> Section:
    title = "Criteria"
    notes = tuple(Note(_sentence_case(note)) for note in verdict.notes)
    if verdict.decision is Decision.NOT_JUDGED:
        reasons = tuple(Note(_sentence_case(reason) + ".", Tone.ABSENT) for reason in verdict.reasons)
        return Section("criteria", title, "Nothing was judged: a verdict would mislead.", (*reasons, *notes))
    rows = tuple(_row(one) for one in verdict.judgements)
    table = Table(f"“{verdict.spec}”, criterion by criterion", _COLUMNS, rows, stacked=True)
    return Section("criteria", title, _in_the_way(verdict), (table, *notes))


def _in_the_way(verdict: Verdict) -> str:
    """By name, as long as they can be taken in; then what failed by name, and of the rest how many."""
    if not verdict.unproven:
        return "Every criterion holds."
    if len(verdict.unproven) <= _NAMED:
        stands = [f"“{one.criterion.name}” ({shown.outcome(one)})" for one in verdict.unproven]
        return f"In the way: {', '.join(stands)}."
    failed = [f"“{one.criterion.name}” failed" for one in verdict.unproven if one.outcome is Outcome.FAILED]
    rest = Counter(shown.outcome(one) for one in verdict.unproven if one.outcome is not Outcome.FAILED)
    return f"In the way: {', '.join([*failed, *(f'{number} × {outcome}' for outcome, number in rest.items())])}."


def _row(one: Judgement) -> tuple[Cell, ...]:
    value, _, interval = shown.measured(one).partition(" (")
    counted = METRICS[one.criterion.metric].counted
    return (
        Cell(
            _sentence_case(one.criterion.name),
            ", ".join(part for part in (one.criterion.metric, shown.of_what(one)) if part),
        ),
        Cell(value, interval.removesuffix(")").replace(" … ", "–")),
        Cell(shown.wanted(one.criterion)),
        Cell(str(one.reading.samples), counted.removesuffix("s") if one.reading.samples == 1 else counted),
        Cell(shown.outcome(one), one.reason, TONES[one.outcome]),
    )


def _sentence(verdict: Verdict, outcomes: Counter[Outcome]) -> str:
    if verdict.decision is Decision.NOT_JUDGED:
        more = len(verdict.reasons) - 1
        return _sentence_case(verdict.reasons[0]) + (f", and {more} more reasons." if more > 1 else ".")
    of = f"of the {len(verdict.judgements)} criteria of “{verdict.spec}”"
    who = f"{name(verdict.candidate)}: " if verdict.candidate else ""
    if verdict.decision is Decision.PROMOTED:
        excused = outcomes[Outcome.EXCUSED]
        return f"{who}all {of} hold." if not excused else f"{who}all {of} hold or are excused."
    failed = [f"“{one.criterion.name}”" for one in verdict.judgements if one.outcome is Outcome.FAILED]
    unproven = len(verdict.unproven) - len(failed)
    said = f"{who}{len(verdict.judgements) - len(verdict.unproven)} {of} hold."
    if failed:
        said += f" Failed: {', '.join(failed)}."
    if unproven:
        said += f" {unproven} could not be proven either way: that is no failure of the pair, and no proof."
    return said


def _tiles(sweep: Sweep | None, candidate: Arm | None) -> tuple[Tile, ...]:
    if sweep is None or candidate is None:
        return ()
    tiles = []
    gain = sweep.gains.get(candidate)
    ours, plain = (sweep.figure(arm, "decode_tokens_per_second") for arm in (candidate, candidate.baseline))
    if gain is not None and ours is not None and plain is not None:
        tiles.append(Tile("Decode throughput", f"{gain.estimate:.2f}×", f"{spread(gain)} × autoregressive"))
        rate = measured(ours)
        tiles.append(Tile("Tokens a second", rate.text, f"autoregressive {figure(plain.estimate)}"))
    for label, metric, scale, unit in (
        ("Time to first token", "time_to_first_token", 1000, " ms"),
        ("Between tokens, p95", "inter_token_p95", 1000, " ms"),
    ):
        one, ratio = sweep.figure(candidate, metric), against(sweep.ticks, candidate.id, candidate.baseline.id, metric)
        if one is not None:
            detail = "" if ratio is None else f"{figure(ratio.estimate)} × autoregressive"
            tiles.append(Tile(label, figure(one.estimate * scale) + unit, detail))
    share = sweep.figure(candidate, "acceptance")
    if share is not None:
        detail = f"{share.low * 100:.0f}–{share.high * 100:.0f} %, blocks of {candidate.block_length}"
        tiles.append(Tile("Accepted of drafted", f"{share.estimate * 100:.0f} %", detail))
    return tuple(tiles)


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]
