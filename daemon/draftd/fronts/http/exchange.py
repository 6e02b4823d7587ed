"""One HTTP request and its answer: passes the parsed body to the service, and the service's events to the endpoint's
reply, as a stream or in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web
from pydantic_core import to_json

from draftd.errors import ClientStalled, DraftdError
from draftd.fronts.http.errors import Names, internal
from draftd.fronts.http.stream import EventStream
from draftd.service.inference import InferenceService
from draftd.service.request import AnswerEvent, Event, LoadProgress, PromptProgress, Request, Send


class Reply(Protocol):
    """Writes the events of one answer in a protocol's form."""

    @property
    def last(self) -> bytes:
        """The last bytes of a stream that ended well."""

    @property
    def keep_alive(self) -> bytes:
        """The bytes that a silent stream sends to keep its connection alive."""

    def take(self, event: AnswerEvent, prompt: int) -> bytes:
        """The stream's bytes for the event. `prompt` is the index of the prompt in the body. Also keeps what `whole`
        needs."""

    def whole(self) -> Mapping[str, Any]:
        """The answer in one piece, after the last event."""

    def failure_event(self, error: DraftdError) -> bytes:
        """The bytes for an error in a stream that has begun."""


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A parsed body: `requests`, one for each prompt, and the form of the answer. `progress` writes a prompt's prefill
    progress for the stream, if the requests ask for it."""

    requests: Sequence[Request]
    reply: Reply
    stream: bool
    names: Names = field(default_factory=Names)
    progress: Callable[[PromptProgress], bytes] | None = None


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """One HTTP request. `client` names its connection, `identity` the caller as the daemon knows them; `id` is
    unique."""

    request: web.BaseRequest
    client: str
    id: str
    headers: Mapping[str, str]  # for the answer
    body: bytes = b""
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """The service and the names of its model. `resolve_model` returns the model's own name for the name that a client
    sent, and raises NotFound for another model's."""

    service: InferenceService
    resolve_model: Callable[[str | None], str]


async def answer(body: ParsedBody, call: HttpExchange, scope: Scope, keep_alive_seconds: float) -> web.StreamResponse:
    """Answers a request. Raises DraftdError if nothing was sent yet; a later error ends the stream, and raises
    StreamFailed."""
    reply, service = body.reply, scope.service
    if not body.stream:

        async def keep(event: Event, prompt: int) -> None:
            if not isinstance(event, LoadProgress | PromptProgress):
                reply.take(event, prompt)

        await _ask(service, body, keep)
        return json_response(reply.whole(), call.headers)

    stream = EventStream(call.request, call.headers, reply.keep_alive, keep_alive_seconds)

    async def say(event: Event, prompt: int) -> None:
        if isinstance(event, PromptProgress):
            assert body.progress is not None, "it is told where it was asked for"
            await stream.send(body.progress(event))
        else:
            await stream.send(reply.keep_alive if isinstance(event, LoadProgress) else reply.take(event, prompt))

    try:
        await _ask(service, body, say)
        await stream.end(reply.last)
    except ClientStalled as error:
        stream.abort()
        raise StreamFailed(error, stream.response) from None
    except (ConnectionError, asyncio.CancelledError):
        if not stream.complete:  # otherwise the client had the whole answer and left
            raise
    except Exception as error:
        if not stream.begun:
            raise
        await stream.end(reply.failure_event(error if isinstance(error, DraftdError) else internal(error)))
        raise StreamFailed(error, stream.response) from error
    finally:
        await stream.close()
    return stream.response


class StreamFailed(Exception):
    """An error after the status was sent; the stream has ended. `error` is for the log and the telemetry."""

    def __init__(self, error: Exception, response: web.StreamResponse) -> None:
        super().__init__(str(error))
        self.error, self.response = error, response


async def _ask(service: InferenceService, body: ParsedBody, take: Callable[[Event, int], Awaitable[None]]) -> None:
    """Runs the body's requests, and passes their events to `take`. Raises DraftdError with the body's names for
    fields."""

    def to(prompt: int) -> Send:
        return lambda told: take(told, prompt)

    try:
        if len(body.requests) == 1:
            await service.generate(body.requests[0], to(0))
            return
        try:
            async with asyncio.TaskGroup() as group:
                for i, request in enumerate(body.requests):
                    group.create_task(service.generate(request, to(i)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
    except DraftdError as error:
        raise body.names.rename(error) from None


def json_response(what: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> web.Response:
    return web.Response(
        body=to_json(what),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **headers},
    )
