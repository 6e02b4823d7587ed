"""Figures as people read them. None, which is nothing measured, is a dash."""

from __future__ import annotations

from draftd.client.asking import Answer
from draftd.core import DecodeMode

NOTHING = "–"


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    ms = seconds * 1000
    return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"


def rate(tokens_per_second: float | None) -> str:
    return NOTHING if tokens_per_second is None else f"{tokens_per_second:.0f}"


def both(slow: float | None, fast: float | None, factor: float = 1.0) -> str:
    """Autoregressive → speculative."""
    return " → ".join(NOTHING if value is None else f"{value * factor:.0f}" for value in (slow, fast))


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}×"


def length(tokens: float | None) -> str:
    return NOTHING if tokens is None else f"{tokens:.2f}"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def span(seconds: int) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def one_line(answer: Answer) -> str:
    """What `draftd generate` says when the answer is complete."""
    plan, counts = answer.started.plan, answer.counts
    how = answer.mode.value
    if answer.mode is DecodeMode.SPECULATIVE:
        how += f", up to {plan.max_draft_tokens} a round"
    parts = [
        f"{answer.finished.usage.output_tokens} tokens ({how})",
        f"{rate(answer.tokens_per_second)} tokens/s",
        f"first after {milliseconds(answer.time_to_first_token)}",
    ]
    if counts.drafted:
        parts.append(f"{counts.accepted} of {counts.drafted} drafted accepted ({percent(counts.acceptance)})")
        parts.append(f"{length(counts.mean_accepted_length)} tokens a draft")
    elif plan.reason and not counts.parked_rounds:
        parts.append(plan.reason)
    if counts.parked_rounds:
        parts.append(f"{counts.parked_rounds} of {counts.rounds} rounds parked: drafting did not pay")
    if answer.finished.degraded:
        parts.append(f"went on autoregressively: {answer.finished.degraded}")
    return " · ".join(parts)
