"""What every call passes through: the bearer token, parsing that can say what is wrong, errors turned into statuses."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from draftd.errors import DraftdError, EngineFailure, InvalidRequest, Unauthenticated
from draftd.fronts.grpc import wire
from draftd.fronts.grpc.status import abort
from draftd.fronts.grpc.types import Context, Interceptor
from draftd.v1 import control_pb2, inference_pb2

# Load balancers and orchestrators ask for health without credentials.
_OPEN = "/grpc.health.v1.Health/"

log = logging.getLogger(__name__)

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class AuthInterceptor(Interceptor):
    """Lets through calls whose `authorization` is `Bearer TOKEN`, and health checks."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_OPEN) or self._allowed(handler_call_details):
            return handler

        async def refuse(request: Any, context: Context) -> None:
            await abort(context, Unauthenticated("authorization: a bearer token is needed; none, or a wrong one, came"))

        return _around(handler, refuse, handler.request_deserializer)

    def _allowed(self, details: grpc.HandlerCallDetails) -> bool:
        # Every value is compared, in constant time: neither length of match nor order tells anything.
        found = False
        for key, value in details.invocation_metadata or ():
            if key == "authorization":
                given = value if isinstance(value, bytes) else value.encode(errors="replace")
                found |= hmac.compare_digest(given, self._expected)
        return found


class ErrorInterceptor(Interceptor):
    """For draftd's own services: DraftdError becomes its status, anything else INTERNAL with a line in the log.

    A request that does not parse reaches the handler's place as the error that explains it: raised in the parser
    itself, gRPC would answer INTERNAL and say nothing.
    """

    def __init__(self) -> None:
        self._messages = {
            f"/{service.full_name}/{method.name}": method.input_type
            for file in (inference_pb2.DESCRIPTOR, control_pb2.DESCRIPTOR)
            for service in file.services_by_name.values()
            for method in service.methods
        }

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        message = self._messages.get(handler_call_details.method)
        if handler is None or message is None:
            return handler
        inner = handler.unary_stream if handler.response_streaming else handler.unary_unary

        def parse(data: bytes) -> Any:
            try:
                return handler.request_deserializer(data)
            except DecodeError:
                return wire.explain(data, message)

        async def guarded(request: Any, context: Context) -> Any:
            try:
                if isinstance(request, InvalidRequest):
                    raise request
                return await inner(request, context)
            except DraftdError as error:
                await abort(context, error)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.InternalError:
                # gRPC could not send: the client has gone, and its cancellation is on the way here.
                raise asyncio.CancelledError from None
            except Exception as error:
                log.exception("%s failed", handler_call_details.method)
                await abort(context, EngineFailure(f"internal error: {type(error).__name__}"))

        return _around(handler, guarded, parse)


def _around(handler: Any, function: Callable[..., Any], parse: Callable[[bytes], Any] | None) -> Any:
    """A handler of the same shape around another function."""
    if handler.request_streaming and handler.response_streaming:
        make = grpc.stream_stream_rpc_method_handler
    elif handler.request_streaming:
        make = grpc.stream_unary_rpc_method_handler
    elif handler.response_streaming:
        make = grpc.unary_stream_rpc_method_handler
    else:
        make = grpc.unary_unary_rpc_method_handler
    return make(function, parse, handler.response_serializer)
