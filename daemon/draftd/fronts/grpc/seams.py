"""What the server needs of telemetry and of the fallback's controller."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from draftd.core import FallbackLevel
from draftd.engine.observer import EngineObserver
from draftd.fallback.journal import Listener, Transition
from draftd.fallback.reports import CanaryReport, ProbeReport
from draftd.fallback.snapshot import FallbackState
from draftd.fronts.grpc.types import Interceptor
from draftd.telemetry.spans import InferenceSpan, InferenceStart


class ServerTelemetry(Protocol):
    """Nothing here raises, and nothing blocks but `shutdown`, which is bounded."""

    @property
    def observer(self) -> EngineObserver: ...

    @property
    def exporting(self) -> bool: ...

    def rpc_interceptor(self) -> Interceptor: ...

    def begin_inference(self, start: InferenceStart) -> InferenceSpan: ...

    def shutdown(self, seconds: float) -> bool: ...


class Transitions(Protocol):
    """What changed of flag and level: the journal. Any thread."""

    def latest(self, count: int) -> tuple[Transition, ...]: ...

    def listen(self, listener: Listener) -> Callable[[], None]: ...


class FallbackControl(Protocol):
    """The fallback's `Controller`, as an operator reaches it. Any thread; `hold` and `release` block until it is saved.
    Refusals are QueueFull, NotNow and NotServing; the futures end in them, or in what the engine raised."""

    def state(self) -> FallbackState: ...

    def hold(self, level: FallbackLevel, expires_in: float | None) -> None:
        """`expires_in` is seconds; None is until it is released."""
        ...

    def release(self) -> bool:
        """Whether there was a hold."""
        ...

    def probe(self) -> Future[ProbeReport]: ...

    def canaries(self) -> Future[CanaryReport]: ...

    def reload_draft(self, *, forget: bool = False) -> Future[int]:
        """Ends with the bytes of the draft's weights. `forget`: it is another draft, which is not held to what was
        learnt of the old one."""
        ...
