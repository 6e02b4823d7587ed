"""The HTTP server's own span and duration, and all metrics as text for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, get_current_span, set_span_in_context

from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.metrics import Recording
from draftd.telemetry.recording import Stopwatch, named
from draftd.telemetry.spans import call_context

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE")
_UNTRACED = ("/health", "/metrics")  # asked every few seconds
_UNAUTHORIZED = 401


class HttpTelemetry:
    """`exposition`: all metrics in Prometheus's text format; it may take a few milliseconds, and runs on any thread."""

    exposition_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, on: Recording, propagator: TextMapPropagator, exposition: Callable[[], bytes]) -> None:
        self._on, self._propagator, self.exposition = on, propagator, exposition

    def begin(self, method: str, route: str | None, headers: Mapping[str, str], scheme: str) -> HttpCall:
        """`route` is None where there is no such path. The task that calls works for this call from here on."""
        if self._on.exporting:
            with self._on.guard.part("http"):
                if route in _UNTRACED:
                    return _Untraced(self._on, method if method in _METHODS else "_OTHER", route, scheme)
                parent = self._propagator.extract({key.lower(): value for key, value in headers.items()}, Context())
                call = _Followed(self._on, method if method in _METHODS else "_OTHER", route, scheme, parent)
                call_context.set(call.context)
                return call
        return HttpCall()


class HttpCall:
    """One call that is not followed."""

    def headers(self) -> dict[str, str]:
        """What tells the client its trace."""
        return {}

    def end(self, status: int, error: BaseException | None = None) -> None:
        """`error`: what ended it after its status was sent, or instead of one."""


class _Untraced(HttpCall):
    """Counts only where the token was wrong."""

    def __init__(self, on: Recording, method: str, route: str | None, scheme: str) -> None:
        self._on, self._watch = on, Stopwatch()
        self._labels = named({a.HTTP_METHOD: method, a.HTTP_ROUTE: route, a.URL_SCHEME: scheme})

    def end(self, status: int, error: BaseException | None = None) -> None:
        if status == _UNAUTHORIZED:
            with self._on.guard.part("http"):
                labels = {**self._labels, a.HTTP_STATUS.name: status}
                self._on.metrics.record(catalog.HTTP_DURATION, self._watch.nanoseconds / 1e9, labels)


class _Followed(HttpCall):
    def __init__(self, on: Recording, method: str, route: str | None, scheme: str, parent: Context) -> None:
        self._on, self._watch = on, Stopwatch()
        self._labels = named({a.HTTP_METHOD: method, a.HTTP_ROUTE: route, a.URL_SCHEME: scheme})
        self._span = on.tracer.start_span(
            f"{method} {route}" if route else method,
            context=parent,
            kind=SpanKind.SERVER,
            attributes={**self._labels, **named(on.naming.server())},
            start_time=self._watch.start,
        )
        self.context = set_span_in_context(self._span, parent)

    def headers(self) -> dict[str, str]:
        found = get_current_span(self.context).get_span_context()
        if not found.is_valid:
            return {}
        trace = format_trace_id(found.trace_id)
        flags = f"{int(found.trace_flags):02x}"
        return {"X-Trace-Id": trace, "Traceparent": f"00-{trace}-{found.span_id:016x}-{flags}"}

    def end(self, status: int, error: BaseException | None = None) -> None:
        with self._on.guard.part("http"):
            taken = self._watch.nanoseconds
            attributes = {a.HTTP_STATUS.name: status}
            failed: dict[str, str] = {}
            if error is not None:
                gone = isinstance(error, (ConnectionError, asyncio.CancelledError))
                failed = {a.ERROR_TYPE.name: "Cancelled" if gone else type(error).__name__}
            elif status >= 500:
                failed = {a.ERROR_TYPE.name: str(status)}
            if failed and failed[a.ERROR_TYPE.name] != "Cancelled":
                self._span.set_status(Status(StatusCode.ERROR, failed[a.ERROR_TYPE.name]))
            self._span.set_attributes({**attributes, **failed})
            self._span.end(self._watch.start + taken)
            labels = {**self._labels, **attributes, **failed}
            self._on.metrics.record(catalog.HTTP_DURATION, taken / 1e9, labels, self.context)
