"""How long a block should be: throughput and acceptance over block length, with the knee."""

from __future__ import annotations

from draftd.acceptance.report.blocks import Chart, Charts, Section
from draftd.acceptance.report.charts import block_length as charts
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.report.numbers import figure, share
from draftd.acceptance.report.palette import SERIES
from draftd.acceptance.statistics import Interval
from draftd.acceptance.sweep.result import Knee


def inks(sweep: Sweep) -> dict[int, str]:
    """A block length has one colour and shape on the whole page; the fifth and later ones have none."""
    lengths = [arm.block_length for arm in sweep.lengths if arm.speculative]
    return dict(zip(lengths, SERIES[1:], strict=False))


def lengths(sweep: Sweep, knee: Knee | None) -> Section:
    curve = _curve(sweep, "decode_tokens_per_second")
    accepted, first = _curve(sweep, "acceptance"), _curve(sweep, "acceptance_at_position_0")
    title = "Block length"
    if not accepted:
        return Section("lengths", title, "No block length was measured: this run has autoregressive decoding only.")
    lead = knee.sentence if knee is not None else "Too few block lengths were measured to say which is enough."
    made = [charts.throughput(curve, knee.block_length if knee else None, _throughput(sweep, curve))]
    made.append(charts.acceptance(accepted, first, _acceptance(accepted, first)))
    made.append(_yielded(sweep))
    positions = {
        arm.block_length: sweep.summaries[arm].acceptance_per_position
        for arm in sweep.lengths
        if arm.speculative and arm.block_length in inks(sweep)
    }
    made.append(charts.positions(positions, inks(sweep), _positions(positions)))
    return Section("lengths", title, lead, (Charts(tuple(made)),))


def _curve(sweep: Sweep, metric: str) -> dict[int, Interval]:
    found = {arm.block_length: sweep.figure(arm, metric) for arm in sweep.lengths}
    return {k: one for k, one in found.items() if one is not None}


def _throughput(sweep: Sweep, curve: charts.Curve) -> str:
    best = max(curve, key=lambda k: curve[k].estimate)
    if 0 not in curve:
        return f"Blocks of {best} have the highest median; autoregressive decoding was not measured."
    if best == 0:
        return "No block length has a higher median than autoregressive decoding."
    gain = next(sweep.gains.get(arm) for arm in sweep.lengths if arm.block_length == best)
    if gain is None:
        return f"Blocks of {best} have the highest median."
    sure = "" if gain.low > 1 else ", which could be chance"
    return (
        f"Blocks of {best} have the highest median: prompt by prompt {gain.estimate:.2f} times as fast as "
        f"autoregressive decoding ({gain.low:.2f} to {gain.high:.2f}){sure}."
    )


def _acceptance(accepted: charts.Curve, first: charts.Curve) -> str:
    shortest, longest = min(accepted), max(accepted)
    text = (
        f"From blocks of {shortest} to blocks of {longest} the accepted share goes from "
        f"{share(accepted[shortest].estimate)} to {share(accepted[longest].estimate)}: "
        "what is drafted past a rejection is lost."
    )
    if not (shortest in first and longest in first) or shortest == longest:
        return text
    moved = first[longest].low > first[shortest].high or first[longest].high < first[shortest].low
    steady = "moves, though it should not" if moved else "does not depend on what is drafted after it"
    return f"{text} The first token of a block {steady}."


def _yielded(sweep: Sweep) -> Chart:
    curve = _curve(sweep, "mean_accepted_length")
    best = max(curve, key=lambda k: curve[k].estimate)
    reading = (
        f"Blocks of {best} yield {figure(curve[best].estimate)} of at most {best + 1} tokens for each pass of the "
        "target: each one beyond the first is a pass saved."
    )
    return charts.yielded(curve, reading)


def _positions(positions: dict[int, tuple[float | None, ...]]) -> str:
    longest = positions[max(positions)]
    known = [value for value in longest if value is not None]
    if len(known) < 2:
        return "A token counts as accepted where all before it were."
    return (
        f"A token stands only where all before it do: of blocks of {max(positions)} the first is accepted "
        f"in {share(known[0])} of cases, the last in {share(known[-1])}."
    )
