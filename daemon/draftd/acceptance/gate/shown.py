"""A verdict in words and figures, as a person reads them: on the terminal, in a report, in a CI system's list."""

from __future__ import annotations

import math

from draftd.acceptance.gate.metrics import METRICS
from draftd.acceptance.gate.reading import Reading
from draftd.acceptance.gate.spec import Against, By, Criterion
from draftd.acceptance.gate.verdict import Judgement, Outcome

_SIGNS = {">=": "≥", ">": ">", "<=": "≤", "<": "<", "==": "="}
_WORDS = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "failed",
    Outcome.TOO_FEW_SAMPLES: "too few samples",
    Outcome.NOT_MEASURED: "not measured",
    Outcome.EXCUSED: "excused",
}


def outcome(judgement: Judgement) -> str:
    return _WORDS[judgement.outcome]


def measured(judgement: Judgement) -> str:
    """The figure and, where it has one, its interval."""
    unit, reading = _unit(judgement.criterion), judgement.reading
    if reading.value is None:
        return "–"
    return figure(reading.value, unit) + _interval(reading, unit)


def wanted(criterion: Criterion) -> str:
    """What the spec says."""
    text = f"{_SIGNS[criterion.comparison]} {figure(criterion.threshold, _unit(criterion))}"
    if criterion.against is not None:
        text += f" {criterion.against}"
    return text + (", by its bound" if criterion.judge is By.BOUND else "")


def of_what(judgement: Judgement) -> str:
    """Whose figure it is: the arm and what narrows it."""
    criterion = judgement.criterion
    parts = (judgement.arm, criterion.group, criterion.workload)
    return ", ".join(str(part) for part in parts if part)


def explanation(judgement: Judgement) -> str:
    """One line: what was measured, what was wanted, and why it came out as it did."""
    parts = [f"{judgement.criterion.metric} {measured(judgement)}, wanted {wanted(judgement.criterion)}"]
    if where := of_what(judgement):
        parts.append(where)
    parts.append(f"{judgement.reading.samples} {METRICS[judgement.criterion.metric].counted}")
    if judgement.reason:
        parts.append(judgement.reason)
    return "; ".join(parts)


def figure(value: float, unit: str) -> str:
    """`unit` is a metric's; × is a ratio."""
    if math.isinf(value):
        return "no end" if unit == "d" else "without bound"
    match unit:
        case "s":
            return f"{value * 1000:.3g} ms" if 0 < abs(value) < 1 else f"{value:.4g} s"
        case "By" | "By/s":
            return _bytes(value) + unit[2:]
        case "d":
            return f"{value:.3g} days" if value >= 1 else f"{value * 24:.3g} hours"
        case "×":
            return f"{value:.3f} ×"
        case "1":
            return f"{value:.3f}"
        case "":
            return f"{value:g}"
    return f"{value:.4g} {unit}"


def _bytes(value: float) -> str:
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} B"


def _interval(reading: Reading, unit: str) -> str:
    if reading.low is None or reading.high is None:
        return ""
    low, high = figure(reading.low, unit), figure(reading.high, unit)
    (low_figure, _, low_unit), (high_figure, _, high_unit) = low.partition(" "), high.partition(" ")
    return f" ({low_figure} … {high_figure})" if low_unit == high_unit else f" ({low} … {high})"


def _unit(criterion: Criterion) -> str:
    return "×" if criterion.against in (Against.AUTOREGRESSIVE, Against.BASELINE) else METRICS[criterion.metric].unit
