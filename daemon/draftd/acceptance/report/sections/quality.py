"""Does it change any answer? The frozen mini-set of JSON and tool calls, with drafts and without."""

from __future__ import annotations

from draftd.acceptance.quality import TOLERANCE, Comparison, PromptResult, QualityResult
from draftd.acceptance.report.blocks import NOTHING, Block, Cell, Column, Folded, Note, Section, Table, Tone
from draftd.acceptance.report.numbers import count, share

_COLUMNS = (
    Column("Prompt"),
    Column("Without drafts", figures=False),
    Column("With drafts", figures=False),
    Column("Same text", figures=False),
)


def quality(result: QualityResult | None) -> Section:
    title = "Quality"
    if result is None:
        return Section("quality", title, "Not measured: this run has no quality stage. draftd quality adds one.")
    blocks: list[Block] = [Note(f"{one[:1].upper()}{one[1:]}.", Tone.BAD) for one in result.complaints]
    if result.checkers_sound:
        said = "The checks were checked: every right answer passes, and every spoilt one is turned down."
        blocks.append(Note(said, Tone.GOOD))
    blocks.append(_shares(result))
    rows = tuple(_row(one) for one in result.prompts)
    odd = [one for one in result.prompts if not _plain(one)]
    if odd:
        named = "Prompts that fail a check, or whose texts differ"
        blocks.append(Table(named, _COLUMNS, tuple(_row(one) for one in odd), stacked=True))
    every = Table("Each prompt both ways, at temperature 0", _COLUMNS, rows, stacked=True)
    blocks.append(Folded(f"All prompts ({len(rows)})", (every,)))
    return Section("quality", title, _lead(result), tuple(blocks))


def _lead(result: QualityResult) -> str:
    plain, drafted = result.autoregressive_success, result.speculative_success
    if plain is None or drafted is None:
        return f"{count(result.requests, 'answer')} were asked for; they do not show both ways."
    compared = sum(one.identical is not None for one in result.prompts)
    same = f"{result.identical} of {compared} texts are the same, token for token"
    if plain == drafted:
        return f"With drafts as many tasks succeed as without, {share(plain, 1)}; {same}."
    return f"With drafts {share(drafted, 1)} of the tasks succeed, without {share(plain, 1)}; {same}."


def _shares(result: QualityResult) -> Table:
    columns = (
        Column("Temperature"),
        Column("Prompts"),
        Column("Without drafts", "passed"),
        Column("With drafts", "passed"),
        Column("Difference", f"points; allowed −{TOLERANCE * 100:.1f}"),
    )
    kinds = [one for one in (result.greedy, result.sampled) if one is not None]
    return Table("Tasks that succeed", columns, tuple(_compared(one) for one in kinds))


def _compared(one: Comparison) -> tuple[Cell, ...]:
    difference = one.difference
    named = "greedy, what is judged" if not one.temperature else "sampled, told beside it"
    points = Cell(NOTHING, tone=Tone.ABSENT)
    if difference is not None:
        middle, low, high = (_signed(value) for value in (difference.estimate, difference.low, difference.high))
        points = Cell(middle, f"{low} to {high}")
    return (
        Cell(f"{one.temperature:g}", named),
        Cell(str(len(one.prompts))),
        Cell(share(one.autoregressive, 1)),
        Cell(share(one.speculative, 1)),
        points,
    )


def _signed(value: float) -> str:
    return "0" if abs(value) < 5e-5 else f"{value * 100:+.1f}".replace("-", "−")


def _plain(one: PromptResult) -> bool:
    """Nothing to be said of it."""
    passed = one.autoregressive_passed == one.autoregressive_asked and one.speculative_passed == one.speculative_asked
    return one.complete and passed and one.identical is not False


def _row(one: PromptResult) -> tuple[Cell, ...]:
    same = {None: Cell(NOTHING), True: Cell("yes"), False: Cell("no", tone=Tone.BAD)}[one.identical]
    return (
        Cell(one.prompt),
        _outcome(one.autoregressive_asked, one.autoregressive_passed, one.autoregressive_complaint),
        _outcome(one.speculative_asked, one.speculative_passed, one.speculative_complaint),
        same,
    )


def _outcome(asked: int, passed: int, complaint: str) -> Cell:
    if not asked:
        return Cell("not answered", tone=Tone.ABSENT)
    if passed == asked:
        return Cell("passed", tone=Tone.GOOD)
    return Cell("failed" if asked == 1 else f"{passed} of {asked}", complaint, Tone.BAD)
