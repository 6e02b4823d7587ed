"""Telemetry that records its calls for each request and exports nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from draftd.core import ContextTier, DecodePlan, FinishReason
from draftd.errors import DraftdError
from draftd.outcome import Outcome
from draftd.strategies import QualityClass, Verifier
from draftd.telemetry.setup import Telemetry
from draftd.telemetry.spans import InferenceSpan, InferenceStart, Part


@dataclass
class RecordedSpan(InferenceSpan):
    """Records the calls for one request."""

    start: InferenceStart
    outcomes: list[Outcome] = field(default_factory=list)
    refusals: list[DraftdError] = field(default_factory=list)
    departures: list[FinishReason] = field(default_factory=list)
    text: str | None = None

    def set_plan(self, plan: DecodePlan, tier: ContextTier) -> None:
        pass

    @property
    def trace(self) -> str:
        return ""

    def set_price(self, quality: QualityClass | None, cost: Mapping[Verifier, float], currency: str) -> None:
        pass

    def set_constraint(self, kind: str, compile_seconds: float) -> None:
        pass

    def finish(self, outcome: Outcome, answer: Sequence[Part] | None = None) -> None:
        if not self.outcomes:  # a second outcome is ignored, as in the contract
            self.outcomes.append(outcome)
            self.text = None if answer is None else "".join(part.get("content", "") for part in answer)

    def refuse(self, error: DraftdError) -> None:
        self.refusals.append(error)

    def leave(self, reason: FinishReason) -> None:
        self.departures.append(reason)


class RecordingTelemetry(Telemetry):
    """Records one span per request in `heard`."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[RecordedSpan] = []

    def begin_inference(self, start: InferenceStart) -> InferenceSpan:
        self.heard.append(RecordedSpan(start))
        return self.heard[-1]
