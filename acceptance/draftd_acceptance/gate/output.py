"""Writes a verdict as text for people, as JSON for programs, and as JUnit XML, which CI systems list, count and keep.

In JUnit a criterion is a test case. A disproven and an unproven criterion are failures of different types; an excused
one was skipped; a run that was not judged is one case with an error.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from draftd_acceptance.gate.judge import GateDecision, Judgement
from draftd_acceptance.gate.metrics import METRICS, MetricReading
from draftd_acceptance.gate.spec import Criterion

_SIGNS = {">=": "≥", ">": ">", "<=": "≤", "<": "<", "==": "="}


def measured_text(judgement: Judgement) -> str:
    """Returns the figure and, if it has one, its interval."""
    unit, reading = _unit(judgement.criterion), judgement.reading
    if reading.value is None:
        return "–"
    return figure(reading.value, unit) + _interval(reading, unit)


def wanted_text(criterion: Criterion) -> str:
    """Returns the spec's threshold as text."""
    text = f"{_SIGNS[criterion.comparison]} {figure(criterion.threshold, _unit(criterion))}"
    if criterion.against is not None:
        text += f" {criterion.against}"
    return text + (", by its bound" if criterion.judge == "bound" else "")


def subject(judgement: Judgement) -> str:
    """Returns the arm of a figure, with its group and workload."""
    return ", ".join(filter(None, (judgement.arm, judgement.criterion.group, judgement.criterion.workload)))


def explanation(judgement: Judgement) -> str:
    """Returns one line: the measured figure, the wanted one, and the reason of the outcome."""
    parts = [f"{judgement.criterion.metric} {measured_text(judgement)}, wanted {wanted_text(judgement.criterion)}"]
    if where := subject(judgement):
        parts.append(where)
    parts.append(f"{judgement.reading.samples} {METRICS[judgement.criterion.metric].counted}")
    if judgement.reason:
        parts.append(judgement.reason)
    return "; ".join(parts)


def figure(value: float, unit: str) -> str:
    """Formats a value. `unit` is a metric's; × is a ratio."""
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


def _interval(reading: MetricReading, unit: str) -> str:
    if reading.low is None or reading.high is None:
        return ""
    low, high = figure(reading.low, unit), figure(reading.high, unit)
    (low_figure, _, low_unit), (high_figure, _, high_unit) = low.partition(" "), high.partition(" ")
    return f" ({low_figure} … {high_figure})" if low_unit == high_unit else f" ({low} … {high})"


def _unit(criterion: Criterion) -> str:
    return "×" if criterion.against else METRICS[criterion.metric].unit


def document(verdict: GateDecision) -> dict[str, Any]:
    """Returns the verdict for JSON. Numbers are in their metric's unit; an infinite one is None, and `measured` says
    so."""
    return {
        "decision": str(verdict.decision),
        "exit_code": verdict.decision.exit_code,
        "sentence": verdict.sentence,
        "spec": verdict.spec,
        "run": verdict.run,
        "baseline": verdict.baseline or None,
        "candidate": verdict.candidate or None,
        "reasons": list(verdict.reasons),
        "notes": list(verdict.notes),
        "criteria": [
            {
                **judgement.criterion.model_dump(mode="json"),
                "unit": METRICS[judgement.criterion.metric].unit,
                "arm": judgement.arm or None,
                **{name: _finite(getattr(judgement.reading, name)) for name in ("value", "low", "high")},
                "samples": judgement.reading.samples,
                "outcome": str(judgement.outcome),
                "reason": judgement.reason,
                "measured": measured_text(judgement),
                "wanted": wanted_text(judgement.criterion),
            }
            for judgement in verdict.judgements
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(verdict: GateDecision, at: datetime | None = None) -> str:
    """Returns JUnit XML. `at` is the time of the verdict, by default now."""
    # `_clean` drops characters that XML forbids even if escaped.
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_clean, trim_blocks=True)
    text = (resources.files("draftd_acceptance.gate") / "junit.xml.j2").read_text(encoding="utf-8")
    when = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return environment.from_string(text).render(verdict=verdict, at=when, explanation=explanation)


def _clean(value: object) -> object:
    if isinstance(value, Markup):
        return value
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", value) if isinstance(value, str) else value
