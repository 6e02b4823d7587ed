"""What the server needs of telemetry, and the fake that records nothing."""

from __future__ import annotations

from typing import Protocol

from draftd.engine.observer import EngineObserver, NullObserver
from draftd.server.types import Interceptor
from draftd.telemetry.rpc import PassingInterceptor
from draftd.telemetry.spans import InferenceSpan, InferenceStart, NullInferenceSpan


class ServerTelemetry(Protocol):
    """Nothing here raises, and nothing blocks but `shutdown`, which is bounded."""

    @property
    def observer(self) -> EngineObserver: ...

    @property
    def exporting(self) -> bool: ...

    def rpc_interceptor(self) -> Interceptor: ...

    def begin_inference(self, start: InferenceStart) -> InferenceSpan: ...

    def shutdown(self, seconds: float) -> bool: ...


class NullTelemetry:
    """Records nothing."""

    exporting = False

    def __init__(self) -> None:
        self.observer: EngineObserver = NullObserver()

    def rpc_interceptor(self) -> Interceptor:
        return PassingInterceptor()

    def begin_inference(self, start: InferenceStart) -> InferenceSpan:
        return NullInferenceSpan()

    def shutdown(self, seconds: float) -> bool:
        return True
