"""Deliberate breaks of the daemon, in the child process that runs it. Each must be detected as a violation of its
invariant.

`python -m tests.faults --prove` checks that; `--break NAME` applies one of them.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.model import Invariant

_EVERY = 25  # calls: often enough to be met soon, seldom enough to be missed by a careless look


@dataclass(frozen=True)
class Break:
    """One break. `invariant` is the one that it violates; `faults` are those that expose it, beside traffic and
    alerts."""

    invariant: Invariant
    faults: tuple[str, ...]
    apply: Callable[[], None]


def _around(owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(owner, name, made(getattr(owner, name)))


def _sometimes(every: int = _EVERY) -> Callable[[], bool]:
    numbers = itertools.count(1)
    return lambda: next(numbers) % every == 0


def _ends_twice() -> None:
    from draftd.engine.delivery import Delivery

    def twice(end: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: (end(*given), end(*given))[0]

    _around(Delivery, "end", twice)


def _hides_errors() -> None:
    from draftd.service import inference

    _around(inference, "error_of", lambda make: lambda outcome: None)


def _changes_tokens() -> None:
    from draftd.service.stream import TokenStream

    now = _sometimes()

    def changing(post: Callable[..., None]) -> Callable[..., None]:
        def changed(stream: Any, emission: Any) -> None:
            if now():
                emission = emission._replace(tokens=(*emission.tokens[:-1], emission.tokens[-1] ^ 1))
            post(stream, emission)

        return changed

    _around(TokenStream, "on_tokens", changing)


def _skipped(owner: Any, name: str, every: int = _EVERY) -> None:
    """Makes some calls of a method do nothing."""
    now = _sometimes(every)
    _around(owner, name, lambda call: lambda *given: None if now() else call(*given))


def _miscounts() -> None:
    from draftd.engine.observer import Totals

    _skipped(Totals, "on_step")


def _miscounts_metrics() -> None:
    from draftd.telemetry.metrics import MetricsObserver

    _skipped(MetricsObserver, "on_step")


def _saves_nothing() -> None:
    from draftd.fallback.store import StateStore

    StateStore.save = lambda store, document: None  # type: ignore[method-assign]


def _stays_where_it_is() -> None:
    from draftd.fallback.ladder import Ladder

    Ladder.move = lambda *given: False  # type: ignore[method-assign]


def _says_serving() -> None:
    from grpc_health.v1 import health_pb2

    from draftd.fronts.grpc.server import GrpcServer

    serving = health_pb2.HealthCheckResponse.SERVING
    _around(GrpcServer, "_set_inference", lambda set_to: lambda server, status: set_to(server, serving))


def _never_says_serving() -> None:
    from draftd.fronts.grpc.server import GrpcServer

    async def silent(server: GrpcServer) -> None:
        return None

    GrpcServer.serving = silent  # type: ignore[method-assign]


def _keeping(kept: Callable[[], object]) -> None:
    """Makes each request leak something."""
    from draftd.service.stream import TokenStream

    held = list[object]()

    def making(init: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: (held.append(kept()), init(*given))[1]

    _around(TokenStream, "__init__", making)


def _keeps_thread() -> object:
    thread = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
    thread.start()
    return thread


def _refuses_alerts() -> None:
    from draftd.fallback.alerts import webhook

    def refusing(limits: Any) -> None:
        raise webhook._too_many(1.0)

    _around(webhook._SenderLimits, "admit", lambda admit: refusing)


def _forgets_events() -> None:
    from draftd.journal import JournalFile

    _skipped(JournalFile, "append", every=2)


def _dies() -> None:
    """Kills the daemon at an alert; alerts are sent only once all references are known."""
    from draftd.fallback.alerts.webhook import _SenderLimits

    now = _sometimes(3)
    _around(_SenderLimits, "admit", lambda admit: lambda limits: os._exit(70) if now() else admit(limits))


def _measures_by_the_wall_clock() -> None:
    from draftd.telemetry.recording import Stopwatch

    Stopwatch.nanoseconds = property(lambda watch: time.time_ns() - watch.start)  # type: ignore[assignment]


def _misses_sleep() -> None:
    from draftd.clocks import SteadyClock

    init = SteadyClock.__init__
    SteadyClock.__init__ = lambda clock: init(clock, time.time, time.monotonic)  # type: ignore[method-assign,misc]


def _loses_spans() -> None:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _skipped(BatchSpanProcessor, "on_end", every=5)


def _leaves_out_levels() -> None:
    from draftd.fallback import ladder

    _skipped(ladder.log, "info", every=2)


def _keeps_certificates() -> None:
    from draftd.fronts.grpc.server import GrpcServer

    def kept(reload: Callable[..., None]) -> Callable[..., None]:
        return lambda server, settings, certificates: reload(server, settings, server._certificates)

    _around(GrpcServer, "reload", kept)


def _keeps_tokens() -> None:
    from draftd.fronts.grpc.server import GrpcServer

    def keeping(reload: Callable[..., None]) -> Callable[..., None]:
        def kept(server: Any, settings: Any, certificates: Any) -> None:
            former = server._auth.tokens
            reload(server, settings, certificates)
            server._auth.tokens = (*server._auth.tokens, *former)

        return kept

    _around(GrpcServer, "reload", keeping)


BREAKS: Mapping[str, Break] = {
    "ends-twice": Break(Invariant.REQUESTS, (), _ends_twice),
    "hides-errors": Break(Invariant.REQUESTS, ("forward fails for good",), _hides_errors),
    "changes-tokens": Break(Invariant.TEXT, (), _changes_tokens),
    "miscounts": Break(Invariant.COUNTERS, (), _miscounts),
    "miscounts-metrics": Break(Invariant.COUNTERS, (), _miscounts_metrics),
    "saves-nothing": Break(Invariant.LEVEL, ("kill", "Grafana is ill"), _saves_nothing),
    "stays-where-it-is": Break(Invariant.LEVEL, ("hold",), _stays_where_it_is),
    "says-serving": Break(Invariant.HEALTH, ("kill",), _says_serving),
    "never-says-serving": Break(Invariant.HEALTH, (), _never_says_serving),
    "keeps-descriptors": Break(Invariant.RESOURCES, (), lambda: _keeping(lambda: os.dup(0))),
    "keeps-threads": Break(Invariant.RESOURCES, (), lambda: _keeping(_keeps_thread)),
    "keeps-memory": Break(Invariant.RESOURCES, (), lambda: _keeping(lambda: b"\1" * 8_000_000)),
    "refuses-alerts": Break(Invariant.ALERTS, (), _refuses_alerts),
    "forgets-events": Break(Invariant.EVENTS, ("kill", "hold"), _forgets_events),
    "measures-by-the-wall-clock": Break(
        Invariant.DURATIONS, ("clock jumps", "machine sleeps"), _measures_by_the_wall_clock
    ),
    "misses-sleep": Break(Invariant.LEVEL, ("machine sleeps",), _misses_sleep),
    "loses-spans": Break(Invariant.TELEMETRY, ("collector sleeps",), _loses_spans),
    "leaves-out-levels": Break(Invariant.LOG, ("hold",), _leaves_out_levels),
    "keeps-certificates": Break(Invariant.CREDENTIALS, ("certificate renewed",), _keeps_certificates),
    "keeps-tokens": Break(Invariant.CREDENTIALS, ("token replaced",), _keeps_tokens),
    "dies": Break(Invariant.ALIVE, (), _dies),
}
