"""Every approach in one table: how fast, how soon, whether its text is the same, what it costs, and what to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from draftd.acceptance.cost import CostRates, per_thousand_tokens
from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import NOTHING, Cell, Column, Folded, Section, Table
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.report.numbers import count, figure, measured, share
from draftd.acceptance.statistics import Interval
from draftd.acceptance.ticks import Arm, Tick

_COLUMNS = (
    Column("Approach"),
    Column("Decode", "tokens/s"),
    Column("Speed-up", "×"),
    Column("First token", "ms"),
    Column("Token p95", "ms"),
    Column("Accepted", "%"),
    Column("Yield", "tokens a draft"),
    Column("Same text", "greedy"),
    Column("Energy", "J/token"),
    Column("Cost", "1 000 tokens"),
    Column("Notes", figures=False),
)
_BESIDES = (
    Column("Approach"),
    Column("Target passes", "a token"),
    Column("Draft passes", "a token"),
    Column("First of a block", "% accepted"),
    Column("Peak memory", "GB, the process"),
    Column("Peak memory", "GB, MLX in use"),
    Column("Power", "W"),
    Column("Answers"),
    Column("Tokens"),
)


def approaches(sweep: Sweep, candidate: Arm | None, knee: int | None, rates: CostRates | None) -> Section:
    rows = tuple(_row(sweep, arm, candidate, knee, rates) for arm in sweep.arms)
    strong = frozenset(at for at, arm in enumerate(sweep.arms) if arm == candidate)
    caption = "Each approach on the same prompts: medians, and below them 95 % intervals"
    table = Table(caption, _COLUMNS, rows, strong=strong).trimmed()
    more = tuple(_more(sweep, arm) for arm in sweep.arms)
    besides = Folded("Passes, memory and power of each", (Table("What each approach takes", _BESIDES, more).trimmed(),))
    return Section("approaches", "Every approach", _lead(sweep, candidate), (table, besides))


def _row(sweep: Sweep, arm: Arm, candidate: Arm | None, knee: int | None, rates: CostRates | None) -> tuple[Cell, ...]:
    figures, summary = sweep.summaries[arm].figures, sweep.summaries[arm]
    decode, energy = figures["decode_tokens_per_second"], figure(summary.joules_per_token)
    return (
        named(arm, arm == candidate),
        measured(decode),
        _gain(sweep, arm),
        measured(figures["time_to_first_token"], 1000),
        measured(figures["inter_token_p95"], 1000),
        measured(figures["acceptance"], 100),
        measured(figures["mean_accepted_length"]),
        _same(sweep, arm),
        Cell(NOTHING if rates else energy),
        Cell(money(rates, decode), f"{energy} J/token" if rates and energy != NOTHING else ""),
        Cell(_notes(sweep, arm, knee)),
    )


def _more(sweep: Sweep, arm: Arm) -> tuple[Cell, ...]:
    summary = sweep.summaries[arm]
    resident, mlx = (None if peak is None else peak / 1e9 for peak in (summary.peak_resident, summary.peak_mlx))
    return (
        named(arm),
        Cell(figure(summary.target_forwards_per_token)),
        Cell(figure(summary.draft_forwards_per_token) if arm.speculative else ""),
        measured(summary.figures["acceptance_at_position_0"], 100),
        Cell(figure(resident)),
        Cell(figure(mlx)),
        Cell(figure(summary.watts)),
        Cell(str(summary.requests)),
        Cell(f"{summary.output_tokens:,}".replace(",", " ")),
    )


def named(arm: Arm, candidate: bool = False) -> Cell:
    """What it is first; what it departs in below."""
    way, *rest = name(arm).split(", ")
    return Cell(way, ", ".join([*rest, *(["the candidate"] if candidate else [])]))


def money(rates: CostRates | None, decode: Interval | None) -> str:
    """Of a thousand tokens."""
    amount = None if rates is None or decode is None else per_thousand_tokens(rates, decode.estimate)
    return NOTHING if amount is None or rates is None else f"{rates.currency}{figure(amount, 3)}"


def _gain(sweep: Sweep, arm: Arm) -> Cell:
    if not arm.speculative:
        return Cell("1", "the measure")
    return measured(sweep.gains.get(arm))


def _same(sweep: Sweep, arm: Arm) -> Cell:
    """Greedy texts must be the autoregressive ones."""
    if not arm.speculative:
        return Cell("")
    if arm.temperature:
        return Cell("", "sampled")
    same, all_ = identical(sweep.of(arm), sweep.of(arm.baseline))
    if not all_:
        return Cell(NOTHING)
    return Cell(share(same / all_) if same < all_ else "all", f"{same} of {all_}")


def identical(ours: Sequence[Tick], theirs: Sequence[Tick]) -> tuple[int, int]:
    """How many answers are those that the other side gave to the same prompt, and of how many."""
    said: dict[tuple[str, str], set[str]] = {}
    for tick in theirs:
        said.setdefault((tick.place.group, tick.place.prompt), set()).add(tick.digest)
    both = [tick for tick in ours if (tick.place.group, tick.place.prompt) in said]
    return sum(tick.digest in said[tick.place.group, tick.place.prompt] for tick in both), len(both)


def _notes(sweep: Sweep, arm: Arm, knee: int | None) -> str:
    summary, notes = sweep.summaries[arm], []
    if arm in sweep.lengths and arm.speculative and arm.block_length == knee:
        notes.append("the knee")
    gain = sweep.gains.get(arm)
    if gain is not None and gain.high < 1:
        notes.append("slower than autoregressive")
    elif gain is not None and gain.low <= 1:
        notes.append("no gain that could be told from none")
    slow, base = summary.figures["inter_token_p95"], sweep.summaries.get(arm.baseline)
    plain = base.figures["inter_token_p95"] if base is not None and arm.speculative else None
    if slow is not None and plain is not None and slow.low > plain.high:
        notes.append("p95 above autoregressive")
    if arm.concurrency > 1 and summary.total_tokens_per_second is not None:
        notes.append(f"{figure(summary.total_tokens_per_second.estimate)} tokens/s together")
    if lowered := Counter(tick.degraded for tick in sweep.of(arm) if tick.degraded):
        notes.append(f"{count(lowered.total(), 'answer')} went on without drafts")
    if summary.errors:
        notes.append(count(summary.errors, "error"))
    notes.append(count(summary.requests, "answer"))
    return "; ".join(notes)


def _lead(sweep: Sweep, candidate: Arm | None) -> str:
    gain = None if candidate is None else sweep.gains.get(candidate)
    if candidate is None or gain is None:
        return "No approach that drafts was measured beside autoregressive decoding, so that no speed-up is known."
    ours, plain = (sweep.figure(arm, "decode_tokens_per_second") for arm in (candidate, candidate.baseline))
    assert ours is not None
    assert plain is not None
    verb = "decodes" if gain.low > 1 else "cannot be told from autoregressive decoding: it decodes"
    if gain.high < 1:
        verb = "is slower: it decodes"
    return (
        f"{name(candidate)} {verb} {figure(ours.estimate)} tokens/s, autoregressive decoding {figure(plain.estimate)}: "
        f"{gain.estimate:.2f} times as many, with 95 % confidence between {gain.low:.2f} and {gain.high:.2f}."
    )
