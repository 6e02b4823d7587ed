"""DraftdError to a gRPC status with google.rpc details: which field, when to retry, and a reason for programs."""

from __future__ import annotations

import asyncio
import re
from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from draftd.errors import DraftdError, FieldError
from draftd.fronts.grpc.types import Context
from draftd.protocol import DETAILS_KEY

_SEND_SECONDS = 1.0
DOMAIN = "draftd"


def code_of(error: DraftdError) -> grpc.StatusCode:
    return grpc.StatusCode[error.status]


def reason_of(error: DraftdError) -> str:
    """INVALID_REQUEST of InvalidRequest: stable, where messages are not."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).upper()


def rich_status(error: DraftdError) -> status_pb2.Status:
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=reason_of(error), domain=DOMAIN)]
    if isinstance(error, FieldError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message.removeprefix(f"{error.field}: ")
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_after * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return status_pb2.Status(
        code=code_of(error).value[0], message=error.message, details=[_pack(detail) for detail in details]
    )


async def abort(context: Context, error: DraftdError) -> NoReturn:
    """Ends the call with the error's status. Always raises, as gRPC's own abort does.

    A client that does not read leaves the status in gRPC's hands, behind what it has not read: it is not waited for.
    """
    trailing = ((DETAILS_KEY, rich_status(error).SerializeToString()),)
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await context.abort(code_of(error), error.message, trailing)
    except (TimeoutError, grpc.aio.InternalError):
        # InternalError: the client went at this very moment.
        raise asyncio.CancelledError from None


def _pack(message: Message) -> AnyProto:
    packed = AnyProto()
    packed.Pack(message)
    return packed
