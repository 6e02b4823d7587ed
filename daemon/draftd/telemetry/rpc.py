"""The gRPC server's own span and duration, for handlers of an asyncio server.

The status is taken where gRPC settles it, in the call's done callback: it runs for every call, also for one whose
client left while a message was being written, which the handler itself may never hear of.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.metrics import Metrics
from draftd.telemetry.recording import Guard, GuardedPart
from draftd.telemetry.spans import call_context

if TYPE_CHECKING:
    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]  # generic in the stubs only
else:
    _Interceptor = grpc.aio.ServerInterceptor

# The conventions' list for servers: the rest are the caller's doing.
_SERVER_ERRORS = frozenset(
    (
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    )
)
# Asked every few seconds, or open for days: noise as spans, nonsense as durations.
_UNTRACED = ("/grpc.health.", "/grpc.reflection.")


class RpcInterceptor(_Interceptor):
    """Must be the server's first interceptor, so that it sees what later ones refuse. Where nothing is exported,
    calls pass it untouched."""

    def __init__(
        self, tracer: Tracer, metrics: Metrics, propagator: TextMapPropagator, guard: Guard, *, exporting: bool
    ) -> None:
        self._tracer, self._metrics, self._propagator = tracer, metrics, propagator
        self._guarded = guard.part("rpc")
        self._exporting = exporting

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        arrival = time.time_ns()
        handler = await continuation(handler_call_details)
        if self._exporting:
            with self._guarded:
                return self._wrap(handler, handler_call_details, arrival)
        return handler

    def _wrap(self, handler: Any, details: Any, arrival: int) -> Any:
        if details.method.startswith(_UNTRACED):
            return handler
        if handler is None:
            call = self._begin("_OTHER", details.invocation_metadata, arrival)
            call.end(grpc.StatusCode.UNIMPLEMENTED)
            return None
        inner, remake = _parts(handler)
        method = details.method.removeprefix("/")

        def begin(context: Any) -> Call | None:
            with self._guarded:
                call = self._begin(method, details.invocation_metadata, arrival)
                context.add_done_callback(call.done)
                call_context.set(call.context)
                return call
            return None

        if inspect.isasyncgenfunction(inner):

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                call = begin(context)
                try:
                    # Closed with this one, not when the collector of garbage comes by: a stream whose client left
                    # must let go of its request at once.
                    async with aclosing(inner(request, context)) as responses:
                        async for response in responses:
                            yield response
                except Exception as error:
                    if call is not None:
                        call.failed(error)
                    raise

            return remake(stream)
        if inspect.iscoroutinefunction(inner):

            async def unary(request: Any, context: Any) -> Any:
                call = begin(context)
                try:
                    return await inner(request, context)
                except Exception as error:
                    if call is not None:
                        call.failed(error)
                    raise

            return remake(unary)
        return handler  # a synchronous handler: draftd has none

    def _begin(self, method: str, metadata: Sequence[tuple[str, str | bytes]] | None, arrival: int) -> Call:
        carrier: dict[str, list[str]] = {}
        for key, value in metadata or ():
            if isinstance(value, str):
                carrier.setdefault(key.lower(), []).append(value)
        parent = self._propagator.extract(carrier, Context())
        span = self._tracer.start_span(
            method if method != "_OTHER" else "grpc",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={a.RPC_SYSTEM.name: "grpc", a.RPC_METHOD.name: method},
            start_time=arrival,
        )
        return Call(method, arrival, span, set_span_in_context(span, parent), self._metrics, self._guarded)


class Call:
    """One call in progress."""

    def __init__(
        self, method: str, arrival: int, span: Span, context: Context, metrics: Metrics, guarded: GuardedPart
    ) -> None:
        self.context = context
        self._method, self._arrival, self._span, self._metrics, self._guarded = method, arrival, span, metrics, guarded
        self._error: Exception | None = None
        self._ended = False

    def failed(self, error: Exception) -> None:
        """The handler raised. `abort` raises too, having set its code before."""
        self._error = error

    def done(self, context: Any) -> None:
        """gRPC's done callback."""
        with self._guarded:
            self.end(self._status(context))

    def _status(self, context: Any) -> grpc.StatusCode:
        if self._error is None and not context.done():
            # Cut off: no status was sent. `cancelled()` stays False here; the clock tells a deadline from a departure.
            left = context.time_remaining()
            over = left is not None and left <= 0
            return grpc.StatusCode.DEADLINE_EXCEEDED if over else grpc.StatusCode.CANCELLED
        code = context.code()
        if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK:
            return code
        return grpc.StatusCode.OK if self._error is None else grpc.StatusCode.UNKNOWN

    def end(self, code: grpc.StatusCode) -> None:
        """Ends the span and records the duration, once."""
        if self._ended:
            return
        self._ended = True
        now = time.time_ns()
        attributes = {a.RPC_STATUS.name: code.name}
        if code in _SERVER_ERRORS:
            attributes[a.ERROR_TYPE.name] = code.name
            if self._error is not None and code is grpc.StatusCode.UNKNOWN:
                attributes[a.ERROR_TYPE.name] = type(self._error).__name__
            self._span.set_status(Status(StatusCode.ERROR, code.name))
        self._span.set_attributes(attributes)
        self._span.end(now)
        labels = {a.RPC_SYSTEM.name: "grpc", a.RPC_METHOD.name: self._method, **attributes}
        self._metrics.record(catalog.RPC_DURATION, max(0, now - self._arrival) / 1e9, labels, self.context)


def _parts(handler: Any) -> tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]:
    """The function inside a method handler, and how to make the handler again around another."""
    sides = (handler.request_streaming, handler.response_streaming)
    kind = "_".join("stream" if streaming else "unary" for streaming in sides)
    inner, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")
    return inner, lambda function: make(function, handler.request_deserializer, handler.response_serializer)
