"""One question and its answer: what an endpoint makes of a body goes to the service, what the service tells goes to the
endpoint's reply, as a stream or as a whole."""

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
    """What is said of the events of one answer."""

    @property
    def last(self) -> bytes:
        """What a stream that ended well says at its end."""

    @property
    def keep_alive(self) -> bytes:
        """What a stream says while there is nothing to say."""

    def take(self, event: AnswerEvent, prompt: int) -> bytes:
        """What a stream says of it; `prompt` counts those of the question. Also keeps what `whole` needs."""

    def whole(self) -> Mapping[str, Any]:
        """The answer in one piece, when all was told."""

    def failure_event(self, error: DraftdError) -> bytes:
        """What a stream that has begun says of it."""


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """What a body asks: `requests`, one for each prompt, and how the answer is told. `progress`: what a stream says
    while a prompt is prefilled, where the requests ask for that."""

    requests: Sequence[Request]
    reply: Reply
    stream: bool
    names: Names = field(default_factory=Names)
    progress: Callable[[PromptProgress], bytes] | None = None


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """One HTTP request. `client` names its connection; `id` is new."""

    request: web.BaseRequest
    client: str
    id: str
    headers: Mapping[str, str]  # for the answer
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Scope:
    """The service and the names of its model. `resolve_model` returns the model's own name for the name that a client
    sent, and raises NotFound for another model's."""

    service: InferenceService
    resolve_model: Callable[[str | None], str]


async def answer(body: ParsedBody, call: HttpExchange, scope: Scope, keep_alive_seconds: float) -> web.StreamResponse:
    """Raises DraftdError where nothing was sent yet; what goes wrong later the stream says."""
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
        if not stream.complete:  # else the client had its answer, and left
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
    """What went wrong was said on the stream, which has ended. `error`: for the log and the telemetry."""

    def __init__(self, error: Exception, response: web.StreamResponse) -> None:
        super().__init__(str(error))
        self.error, self.response = error, response


async def _ask(service: InferenceService, body: ParsedBody, take: Callable[[Event, int], Awaitable[None]]) -> None:
    """Raises DraftdError in the body's words."""

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
