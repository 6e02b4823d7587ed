"""The HTTP server's spans and durations, and all metrics in Prometheus's text format."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, set_span_in_context

from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.metrics import Recording
from draftd.telemetry.recording import Stopwatch, attributes_of
from draftd.telemetry.remote import trace_of
from draftd.telemetry.spans import call_context

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE")
_UNTRACED = ("/health", "/metrics")  # requested every few seconds
_UNAUTHORIZED = 401


class HttpTelemetry:
    """Records HTTP calls. `exposition`: returns all metrics in Prometheus's text format; takes a few milliseconds, on
    any thread."""

    exposition_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, on: Recording, propagator: TextMapPropagator, exposition: Callable[[], bytes]) -> None:
        self._on, self._propagator, self.exposition = on, propagator, exposition

    def begin(self, method: str, route: str | None, headers: Mapping[str, str], scheme: str) -> HttpCall:
        """Starts to record a call. Spans that the calling task begins later become part of the call's trace. `route` is
        None if the server has no such path."""
        if self._on.exporting:
            with self._on.guard.part("http"):
                parent = self._propagator.extract({key.lower(): value for key, value in headers.items()}, Context())
                call = _Followed(self._on, method if method in _METHODS else "_OTHER", route, scheme, parent)
                if route not in _UNTRACED:
                    call_context.set(call.context)
                return call
        return HttpCall()


class HttpCall:
    """A call that is not recorded."""

    def headers(self) -> dict[str, str]:
        """Returns headers that tell the client its trace."""
        return {}

    def end(self, status: int, error: BaseException | None = None) -> None:
        """Ends the call. `error`: the exception that ended it after its status was sent, or instead of one."""


class _Followed(HttpCall):
    """A recorded call. A call of /health or /metrics has no span, and is counted only if its answer is 401 (missing or
    wrong token)."""

    def __init__(self, on: Recording, method: str, route: str | None, scheme: str, parent: Context) -> None:
        self._on, self._watch, self._traced = on, Stopwatch(), route not in _UNTRACED
        self._labels = attributes_of({a.HTTP_METHOD: method, a.HTTP_ROUTE: route, a.URL_SCHEME: scheme})
        self._span: Span = INVALID_SPAN
        if self._traced:
            self._span = on.tracer.start_span(
                f"{method} {route}" if route else method,
                context=parent,
                kind=SpanKind.SERVER,
                attributes={**self._labels, **attributes_of(on.naming.server())},
                start_time=self._watch.start,
            )
        self.context = set_span_in_context(self._span, parent)

    def headers(self) -> dict[str, str]:
        trace = trace_of(self._span)
        return {"X-Trace-Id": trace.split("-")[1], "Traceparent": trace} if trace else {}

    def end(self, status: int, error: BaseException | None = None) -> None:
        if not self._traced and status != _UNAUTHORIZED:
            return
        with self._on.guard.part("http"):
            taken = self._watch.nanoseconds
            attributes = {a.HTTP_STATUS.name: status}
            failed: dict[str, str] = {}
            if error is not None:
                disconnected = isinstance(error, (ConnectionError, asyncio.CancelledError))
                failed = {a.ERROR_TYPE.name: "Cancelled" if disconnected else type(error).__name__}
            elif status >= 500:
                failed = {a.ERROR_TYPE.name: str(status)}
            if failed and failed[a.ERROR_TYPE.name] != "Cancelled":
                self._span.set_status(Status(StatusCode.ERROR, failed[a.ERROR_TYPE.name]))
            self._span.set_attributes({**attributes, **failed})
            self._span.end(self._watch.start + taken)
            labels = {**self._labels, **attributes, **failed}
            self._on.metrics.record(catalog.HTTP_DURATION, taken / 1e9, labels, self.context)
