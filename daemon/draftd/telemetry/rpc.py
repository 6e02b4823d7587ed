"""The gRPC server's spans and durations, for handlers of an asyncio server.

The status is read in the call's done callback, where gRPC settles it: it runs for every call, even if the client left
while a message was being written, which the handler may never learn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from draftd.core import DEADLINE_SLACK_SECONDS
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.metrics import Recording
from draftd.telemetry.recording import Stopwatch, attributes_of
from draftd.telemetry.spans import call_context

# The conventions' list for servers: the others are the caller's errors.
_SERVER_ERRORS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
# Called every few seconds, or open for days: noise as spans, meaningless as durations.
_UNTRACED = ("/grpc.health.", "/grpc.reflection.", "/draftd.v1.VerificationService/Verify")


class RpcInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Must be the server's first interceptor, so that it sees calls that later ones refuse. If nothing is exported,
    calls pass unchanged."""

    def __init__(self, on: Recording, propagator: TextMapPropagator) -> None:
        self._on, self._propagator = on, propagator

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        arrival = Stopwatch()
        handler = await continuation(handler_call_details)
        if self._on.exporting:
            with self._on.guard.part("rpc"):
                return self._wrap(handler, handler_call_details, arrival)
        return handler

    def _wrap(self, handler: Any, details: Any, arrival: Stopwatch) -> Any:
        if details.method.startswith(_UNTRACED):
            return handler
        if handler is None:
            RpcCall("_OTHER", self._parent(details), arrival, self._on).end(grpc.StatusCode.UNIMPLEMENTED)
            return None
        inner, method = inner_of(handler), details.method.removeprefix("/")

        async def record_call(request: Any, context: Any) -> Any:
            call = None
            with self._on.guard.part("rpc"):
                call = RpcCall(method, self._parent(details), arrival, self._on)
                context.add_done_callback(call.done)
                call_context.set(call.context)
            try:
                return await inner(request, context)
            except grpc.aio.InternalError:  # it could not be sent: the client has left, and no handler failed
                raise
            except Exception as error:
                if call is not None:
                    call.error = error
                raise

        return around(handler, record_call, handler.request_deserializer)

    def _parent(self, details: Any) -> Context:
        """Returns the caller's span if its metadata names one."""
        carrier: dict[str, list[str]] = {}
        for key, value in details.invocation_metadata or ():
            if isinstance(value, str):
                carrier.setdefault(key.lower(), []).append(value)
        return self._propagator.extract(carrier, Context())


class RpcCall:
    """One call in progress. `error`: raised by the handler; `abort` raises too, after setting its code."""

    def __init__(self, method: str, parent: Context, arrival: Stopwatch, on: Recording) -> None:
        self._span = on.tracer.start_span(
            method if method != "_OTHER" else "grpc",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=attributes_of({a.RPC_SYSTEM: "grpc", a.RPC_METHOD: method, **on.naming.server()}),
            start_time=arrival.start,
        )
        self.context = set_span_in_context(self._span, parent)
        self._method, self._arrival, self._on = method, arrival, on
        self.error: Exception | None = None

    def done(self, context: Any) -> None:
        with self._on.guard.part("rpc"):
            self.end(self._status(context))

    def _status(self, context: Any) -> grpc.StatusCode:
        if self.error is None and not context.done():
            # Cut off without a status. `cancelled()` stays False here; the clock tells a deadline from a lost client.
            remaining = context.time_remaining()
            over = remaining is not None and remaining <= DEADLINE_SLACK_SECONDS
            return grpc.StatusCode.DEADLINE_EXCEEDED if over else grpc.StatusCode.CANCELLED
        code = context.code()
        if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK:
            return code
        return grpc.StatusCode.OK if self.error is None else grpc.StatusCode.UNKNOWN

    def end(self, code: grpc.StatusCode) -> None:
        taken = self._arrival.nanoseconds
        attributes = {a.RPC_STATUS.name: code.name}
        if code.name in _SERVER_ERRORS:
            attributes[a.ERROR_TYPE.name] = code.name
            if self.error is not None and code is grpc.StatusCode.UNKNOWN:
                attributes[a.ERROR_TYPE.name] = type(self.error).__name__
            self._span.set_status(Status(StatusCode.ERROR, code.name))
        self._span.set_attributes(attributes)
        self._span.end(self._arrival.start + taken)
        labels = {a.RPC_SYSTEM.name: "grpc", a.RPC_METHOD.name: self._method, **attributes}
        self._on.metrics.record(catalog.RPC_DURATION, taken / 1e9, labels, self.context)


def inner_of(handler: Any) -> Callable[..., Any]:
    """Returns the function inside a method handler."""
    return getattr(handler, _kind(handler))  # type: ignore[no-any-return]


def around(handler: Any, function: Callable[..., Any], parse: Callable[[bytes], Any] | None) -> Any:
    """Returns a handler of the same kind around another function."""
    make = getattr(grpc, f"{_kind(handler)}_rpc_method_handler")
    return make(function, parse, handler.response_serializer)


def _kind(handler: Any) -> str:
    sides = (handler.request_streaming, handler.response_streaming)
    return "_".join("stream" if streaming else "unary" for streaming in sides)
