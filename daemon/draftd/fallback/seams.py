"""What the fallback needs of the engine and of telemetry; tests have a fake of each."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from draftd.core import DecodeRequest, DrafterName, FallbackLevel, FinishReason, ModelInfo, TokenSink
from draftd.engine.observer import EngineStatus
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.models.tokenizer import Tokenizer


class EngineControl(Protocol):
    """The engine, as the fallback uses it: `EngineWorker`, which says more. Any thread; nothing waits for the engine
    thread but a future. Futures end with what the engine thread raised; all of them end when the engine does."""

    @property
    def info(self) -> ModelInfo:
        """Raises NotServing while nothing is loaded."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def status(self) -> EngineStatus: ...

    def submit(self, request: DecodeRequest, sink: TokenSink) -> None:
        """Raises NotServing, QueueFull or InvalidRequest."""
        ...

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None: ...

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        """Holds exactly these drafters' weights. Ends with the bytes of draft weights then held."""
        ...

    def lower(self, max_draft_tokens: int, drafters: frozenset[DrafterName], reason: str) -> None:
        """From the next step on no running request drafts more, or with another drafter."""
        ...

    def reload_draft(self) -> Future[int]:
        """Reads the draft's weights anew. Ends with their bytes; raises ModelLoadError, and then the old ones stay."""
        ...

    def logit_gap(self, tokens: tuple[int, ...], chosen: int, other: int) -> Future[float]:
        """The target's logit of `chosen` less that of `other`, after `tokens`."""
        ...


class FallbackTelemetry(Protocol):
    """Where the fallback reports what it does: draftd.telemetry.fallback. Any thread; never raises, never blocks."""

    def transition(self, previous: FallbackLevel, current: FallbackLevel, signal: str) -> None: ...

    def save_failed(self) -> None: ...

    def notification(self, result: str) -> None: ...

    def poll(self, result: str) -> None: ...

    def annotation(self, result: str) -> None: ...

    def probe(self, report: ProbeReport) -> None: ...

    def canaries(self, level: FallbackLevel, report: CanaryReport) -> None: ...
