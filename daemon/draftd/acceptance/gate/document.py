"""A verdict as plain values, for gate.json and for programs."""

from __future__ import annotations

import json
import math
from typing import Any

from draftd.acceptance.gate import shown
from draftd.acceptance.gate.metrics import METRICS
from draftd.acceptance.gate.verdict import Judgement, Verdict


def to_json(verdict: Verdict, *, indent: int | None = None) -> str:
    return json.dumps(document(verdict), ensure_ascii=False, indent=indent, allow_nan=False)


def document(verdict: Verdict) -> dict[str, Any]:
    """Numbers in their metric's unit; one without bound is None, as JSON has none, and `measured` says so."""
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
        "criteria": [_criterion(one) for one in verdict.judgements],
    }


def _criterion(judgement: Judgement) -> dict[str, Any]:
    reading = judgement.reading
    return {
        **judgement.criterion.model_dump(mode="json"),
        "unit": METRICS[judgement.criterion.metric].unit,
        "arm": judgement.arm or None,
        "value": _finite(reading.value),
        "low": _finite(reading.low),
        "high": _finite(reading.high),
        "samples": reading.samples,
        "outcome": str(judgement.outcome),
        "reason": judgement.reason,
        "measured": shown.measured(judgement),
        "wanted": shown.wanted(judgement.criterion),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
