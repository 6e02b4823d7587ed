"""What the server needs of telemetry and of the fallback's controller, and the fake that records nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from draftd.control.journal import Listener, Transition
from draftd.core import DrafterKind, FallbackLevel
from draftd.engine.observer import EngineObserver, NullObserver
from draftd.policy.ladder import Demand, Hold, Rung
from draftd.policy.reports import CanaryReport, ProbeReport
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


class Transitions(Protocol):
    """What changed of flag and level: the journal. Any thread."""

    def latest(self, count: int) -> tuple[Transition, ...]: ...

    def listen(self, listener: Listener) -> Callable[[], None]: ...


class Alert(Protocol):
    """An alert as its sender tells of it. `starts_at` is wall-clock seconds since 1970."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def starts_at(self) -> float: ...

    @property
    def level(self) -> FallbackLevel: ...


class Leased(Protocol):
    """An alert that asks for a level, until `until`: wall-clock seconds since 1970."""

    @property
    def notice(self) -> Alert: ...

    @property
    def until(self) -> float: ...


class FallbackState(Protocol):
    """The fallback at one moment. Times are wall-clock seconds since 1970, `wait` is seconds."""

    @property
    def ladder(self) -> Sequence[Rung]: ...

    @property
    def rung(self) -> int: ...

    @property
    def since(self) -> float: ...

    @property
    def cause(self) -> str: ...

    @property
    def hold(self) -> Hold | None: ...

    @property
    def demands(self) -> Sequence[Demand]: ...

    @property
    def leases(self) -> Sequence[Leased]: ...

    @property
    def wait(self) -> float: ...

    @property
    def relapses(self) -> int: ...

    @property
    def loaded_drafters(self) -> Collection[DrafterKind]: ...

    @property
    def draft_weight_bytes(self) -> int: ...

    @property
    def state_file(self) -> Path | None: ...


class FallbackControl(Protocol):
    """The fallback's controller, as an operator reaches it. Any thread; `hold` and `release` may block to save what
    they did. Raises NotNow or NotServing, as do the futures; a probe also fails with what the engine raised."""

    def state(self) -> FallbackState: ...

    def hold(self, level: FallbackLevel, expires_in: float | None) -> None:
        """`expires_in` is seconds; None is until it is released."""
        ...

    def release(self) -> bool:
        """Whether there was a hold."""
        ...

    def probe(self) -> Future[ProbeReport]: ...

    def canaries(self) -> Future[CanaryReport]: ...

    def reload_draft(self) -> Future[int]:
        """Ends with the bytes of the draft's weights."""
        ...
