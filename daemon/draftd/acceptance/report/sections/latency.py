"""How it feels to read along: the time to the first token, and between tokens."""

from __future__ import annotations

from itertools import chain

from draftd.acceptance.report.arms import name
from draftd.acceptance.report.blocks import Cell, Charts, Column, Facts, Folded, Section, Table
from draftd.acceptance.report.charts.distribution import cumulative
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.report.numbers import figure, measured, share
from draftd.acceptance.statistics import quantile
from draftd.acceptance.summary import METRICS, against
from draftd.acceptance.ticks import Arm, inter_chunk, inter_token

_SHOWN = (
    ("Time to first token", "time_to_first_token"),
    ("of which prefill, in the daemon", "prefill"),
    ("of which queue, in the daemon", "queue"),
    ("of which the way there and back", "network"),
    ("Between tokens, p50", "inter_token_p50"),
    ("Between tokens, p95", "inter_token_p95"),
    ("Between tokens, p99", "inter_token_p99"),
    ("Between chunks, p50", "inter_chunk_p50"),
    ("Between chunks, p95", "inter_chunk_p95"),
    ("Between chunks, p99", "inter_chunk_p99"),
    ("Time per output token", "time_per_output_token"),
    ("Whole answer", "end_to_end"),
)


def latency(sweep: Sweep, candidate: Arm) -> Section:
    """Of the candidate and its autoregressive arm, both of which there are."""
    plain = candidate.baseline
    ours, theirs = sweep.of(candidate), sweep.of(plain)
    names = {name(candidate): "speculative", name(plain): "autoregressive"}
    charts = []
    for id_, title, figures, reading in (
        ("tokens", "Time between tokens", inter_token, "inter_token_p95"),
        ("chunks", "Time between chunks", inter_chunk, "inter_chunk_p95"),
    ):
        series = {
            one: list(chain.from_iterable(figures(tick) for tick in ticks))
            for one, ticks in zip(names, (ours, theirs), strict=True)
        }
        if all(series.values()):
            charts.append(cumulative(id_, title, series, names, _reading(sweep, candidate, reading)))
    rows = tuple(
        (
            Cell(label),
            measured(sweep.figure(plain, metric), 1000),
            measured(sweep.figure(candidate, metric), 1000),
            measured(against(sweep.ticks, candidate.id, plain.id, metric)),
        )
        for label, metric in _SHOWN
        if sweep.figure(candidate, metric) is not None or sweep.figure(plain, metric) is not None
    )
    columns = (
        Column("Time"),
        Column("Without drafts", "ms"),
        Column("With drafts", "ms"),
        Column("Ratio", "×"),
    )
    table = Table("Medians and percentiles over all answers, with 95 % intervals", columns, rows)
    told = Folded(
        "What each of these is", (Facts(tuple((label, Cell(METRICS[m].description)) for label, m in _SHOWN)),)
    )
    blocks = (Charts(tuple(charts)), table, told) if charts else (table, told)
    return Section("latency", "Latency", _lead(sweep, candidate), blocks)


def _lead(sweep: Sweep, candidate: Arm) -> str:
    said = []
    for label, metric in (
        ("first token", "time_to_first_token"),
        ("95th percentile between tokens", "inter_token_p95"),
    ):
        ratio = against(sweep.ticks, candidate.id, candidate.baseline.id, metric)
        if ratio is None:
            continue
        if ratio.low <= 1 <= ratio.high:
            said.append(f"the {label} cannot be told from the autoregressive one")
        else:
            said.append(
                f"the {label} comes {share(abs(ratio.estimate - 1), 1)} {'later' if ratio.estimate > 1 else 'sooner'}"
            )
    text = ", and ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else "Neither side has times to compare."


def _reading(sweep: Sweep, candidate: Arm, metric: str) -> str:
    ours, theirs = (sweep.figure(arm, metric) for arm in (candidate, candidate.baseline))
    if ours is None or theirs is None:
        return ""
    what = "tokens" if metric.startswith("inter_token") else "chunks"
    text = (
        f"95 % of {what} come within {figure(ours.estimate * 1000)} ms with drafts, "
        f"within {figure(theirs.estimate * 1000)} ms without."
    )
    if what == "chunks":
        sizes = [chunk.tokens for tick in sweep.of(candidate) for chunk in tick.chunks[1:]]
        if sizes and (most := quantile(sizes, 0.5)):
            text += (
                f" A chunk brings what one round yields, {figure(most, 2)} tokens in the median: fewer, larger steps."
            )
        return text
    return text + " Tokens that come together share the time that they took."
