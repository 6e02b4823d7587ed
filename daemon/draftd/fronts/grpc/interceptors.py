"""Interceptors of every call. They check the bearer token, explain requests that do not parse, and turn errors into
statuses with google.rpc details: the field, the time to retry, and a reason for programs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf import any as any_proto
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from draftd.errors import DraftdError, EngineFailure, FieldError, InvalidRequest, Unauthenticated, reason_of
from draftd.listening import matching_bearer
from draftd.protocol import DETAILS_KEY, duration
from draftd.telemetry.rpc import around, inner_of
from draftd.v1 import inference_pb2

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]

DOMAIN = "draftd"
_SEND_SECONDS = 1.0
# Load balancers and orchestrators ask for health without credentials.
_OPEN = "/grpc.health.v1.Health/"
_OWN = f"/{inference_pb2.DESCRIPTOR.package}."

log = logging.getLogger(__name__)


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Accepts health checks, and calls whose `authorization` is `Bearer TOKEN` with one of `tokens`."""

    def __init__(self, tokens: Collection[bytes], refused: Callable[[str, DraftdError, str], None]) -> None:
        """`refused` is called for each other call with the method, the error and the peer's address."""
        self.tokens, self._refused = tokens, refused

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata
        if handler is None or handler_call_details.method.startswith(_OPEN) or self.token_of(metadata):
            return handler

        async def refuse(request: Any, context: Context) -> None:
            error = Unauthenticated("authorization: a bearer token is required; it was missing or wrong")
            self._refused(handler_call_details.method, error, context.peer())
            await abort(context, error)

        return around(handler, refuse, handler.request_deserializer)

    def token_of(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> bytes:
        """Returns the valid token that the metadata of a call have; empty if they have none."""
        # Every value is compared, in constant time: neither length of match nor order tells anything.
        values = [value for key, value in metadata or () if key == "authorization"]
        headers = (value if isinstance(value, bytes) else value.encode(errors="replace") for value in values)
        tokens = [matching_bearer(value, self.tokens) for value in headers]
        return next(filter(None, tokens), b"")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns a DraftdError into its status, and any other exception into INTERNAL with a line in the log. Applies to
    draftd's own services.

    The parser returns an error in place of a request that does not parse. If the parser raised it, gRPC would answer
    INTERNAL without a reason.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._most = max_message_bytes

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_OWN):
            return handler
        inner = inner_of(handler)

        def parse(data: bytes) -> Any:
            if len(data) > self._most:
                allowed = f"at most {self._most} bytes (server.max_message_bytes)"
                return InvalidRequest("message", f"{len(data)} bytes", allowed)
            try:
                return handler.request_deserializer(data)
            except DecodeError:
                return explain(data, handler.request_deserializer.__self__.DESCRIPTOR)  # it is a message's FromString

        async def guard(request: Any, context: Context) -> Any:
            try:
                if handler.request_streaming:
                    return await inner(_well_formed(request), context)
                if isinstance(request, InvalidRequest):
                    raise request
                return await inner(request, context)
            except DraftdError as error:
                await abort(context, error)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.InternalError:
                # gRPC could not send: the client has left, and the cancellation will follow.
                raise asyncio.CancelledError from None
            except Exception as error:
                log.exception("%s failed", handler_call_details.method)
                await abort(context, EngineFailure(f"internal error: {type(error).__name__}"))

        return around(handler, guard, parse)


async def _well_formed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yields the requests. Raises an error that stands in a request's place."""
    async for request in requests:
        if isinstance(request, InvalidRequest):
            raise request
        yield request


def explain(data: bytes, message: Descriptor) -> InvalidRequest:
    """Finds why protobuf could not parse the bytes: the first string that is not UTF-8, or else the whole message.
    Protobuf itself only says "error parsing message"."""
    with contextlib.suppress(DecodeError):
        for path, value in _strings(data, message, ""):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                shown = value[max(0, error.start - 8) : error.end + 8]
                return InvalidRequest(path, shown, f"valid UTF-8 ({error.reason} at byte {error.start})")
    return InvalidRequest("message", f"{len(data)} bytes", f"a well-formed {message.full_name}")


def _strings(data: bytes, message: Descriptor, prefix: str) -> Iterator[tuple[str, bytes]]:
    """The bytes of each string field, with its path. Raises DecodeError where the wire format breaks."""
    seen: Counter[int] = Counter()
    fields: Any = UnknownFieldSet(Empty.FromString(data))  # an empty message keeps all fields as unknown ones
    for unknown in fields:
        field = message.fields_by_number.get(unknown.field_number)
        if field is None or not isinstance(unknown.data, bytes):
            continue
        path = prefix + field.name
        if field.is_repeated:
            path += f"[{seen[field.number]}]"
            seen[field.number] += 1
        if field.type == FieldDescriptor.TYPE_STRING:
            yield path, unknown.data
        elif field.message_type is not None:
            yield from _strings(unknown.data, field.message_type, f"{path}.")


def code_of(error: DraftdError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]


def rich_status(error: DraftdError) -> status_pb2.Status:
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=reason_of(type(error)).upper(), domain=DOMAIN)]
    if isinstance(error, FieldError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message.removeprefix(f"{error.field}: ")
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=duration(error.retry_after)))
    return status_pb2.Status(code=code_of(error).value[0], message=error.message, details=map(any_proto.pack, details))


async def abort(context: Context, error: DraftdError) -> NoReturn:
    """Ends the call with the error's status. Always raises, as gRPC's own abort does.

    If the client does not read, gRPC queues the status behind the unread messages. This waits at most _SEND_SECONDS for
    it.
    """
    trailing = ((DETAILS_KEY, rich_status(error).SerializeToString()),)
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await context.abort(code_of(error), error.message, trailing)
    except (TimeoutError, grpc.aio.InternalError):
        # InternalError: the client left at this moment.
        raise asyncio.CancelledError from None
