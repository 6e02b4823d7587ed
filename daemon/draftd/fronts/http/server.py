"""The HTTP server: its paths, and the steps of every request: origin, token, body, errors, telemetry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from aiohttp import web

from draftd.errors import DraftdError, Forbidden, NotFound, NotOffered, NotServing, Unauthenticated
from draftd.fronts.http import chat, completions, messages, models, responses
from draftd.fronts.http.body import BODY_SECONDS, read_body
from draftd.fronts.http.connections import REQUEST_SECONDS, HttpConnection, HttpListeners
from draftd.fronts.http.errors import WrongMethod, anthropic_error, internal, openai_error
from draftd.fronts.http.exchange import HttpExchange, ParsedBody, Scope, StreamFailed, answer, json_response
from draftd.fronts.http.store import ResponseStore, StoredAnswer
from draftd.fronts.http.stream import KEEP_ALIVE_SECONDS
from draftd.fronts.identity import identity_of
from draftd.listening import matching_bearer, matching_secret
from draftd.rate_limited_log import RateLimitedLog
from draftd.service.inference import InferenceService
from draftd.settings import ServerSettings, secrets_of
from draftd.telemetry.http import HttpTelemetry

log = logging.getLogger(__name__)

Endpoint = Callable[[HttpExchange], Awaitable[web.StreamResponse]]
Asking = Callable[[HttpExchange, Scope], ParsedBody]

_MODELS, _RESPONSES = "/v1/models", "/v1/responses"
_INPUT_ITEMS = "/input_items"
_ANTHROPIC = "/v1/messages"
_OPEN = ("/", "/health")  # for browsers; load balancers ask without credentials
_MOST_ORIGINS = 64  # refused origins that the log names
_CLOSED_REQUEST = 499  # nginx's status for a client that left before its answer
_LEAST_GRACE = 0.05  # seconds: 0 would wait forever
_CORS = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": "*, Authorization",
    "Access-Control-Max-Age": "600",
}


class HttpServer:
    """Listens from `start` on. Health is 503 until `serving` is called. Create and use it on the service's event
    loop."""

    def __init__(
        self,
        settings: ServerSettings,
        service: InferenceService,
        telemetry: HttpTelemetry,
        *,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        body_seconds: float = BODY_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        """Raises ConfigError where it cannot listen. `keep_alive_seconds`: time without an event after which a stream
        sends a keep-alive. `body_seconds`: time limit for a body to arrive. `request_seconds`: time limit for the
        headers of a connection's first request."""
        self._settings, self._service, self._telemetry = settings, service, telemetry
        self._tokens = secrets_of(settings.token)
        self._since = time.time()
        self._listeners = HttpListeners(settings, self._handle, request_seconds)
        self._store = ResponseStore(settings.http_stored_bytes)
        self._scope = Scope(service, self._resolve_model)
        respond = partial(responses.parse_request, store=self._store)
        self._routes: Mapping[str, Mapping[str, Endpoint]] = {
            "/": {"GET": self._root},
            "/health": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
            _MODELS: {"GET": self._models},
            f"{_MODELS}/{{id}}": {"GET": self._model},
            "/v1/chat/completions": {"POST": partial(self._ask, chat.parse_request)},
            "/v1/completions": {"POST": partial(self._ask, completions.parse_request)},
            _RESPONSES: {"POST": partial(self._ask, respond)},
            f"{_RESPONSES}/{{id}}": {"GET": self._stored_answer, "DELETE": self._forget},
            f"{_RESPONSES}/{{id}}{_INPUT_ITEMS}": {"GET": self._input_items},
            f"{_RESPONSES}/input_tokens": {"POST": partial(self._count, respond, {"object": "response.input_tokens"})},
            f"{_RESPONSES}/compact": {"POST": partial(self._not_offered, "compaction")},
            _ANTHROPIC: {"POST": partial(self._ask, messages.parse_request)},
            f"{_ANTHROPIC}/count_tokens": {"POST": partial(self._count, messages.parse_request, {})},
            "/v1/embeddings": {"POST": partial(self._not_offered, "embeddings")},
        }
        self._keep_alive, self._body_seconds = keep_alive_seconds, body_seconds
        self._ready = False
        self._refused: set[str] = set()  # origins
        self._log = RateLimitedLog(log)

    @property
    def port(self) -> int:
        return self._listeners.port

    async def start(self) -> None:
        await self._listeners.start()

    async def reload(self, settings: ServerSettings, tls: ssl.SSLContext | None) -> None:
        """Requires these tokens in new requests, and uses this TLS context for new connections. Pass a new context: one
        in use must not change, and a new one does not resume earlier TLS sessions, so each client's certificate is
        checked again."""
        self._tokens = secrets_of(settings.token)
        await self._listeners.reload(tls)

    def serving(self, serving: bool = True) -> None:
        """Sets health to 200 or 503. It is 503 in any case while the service drains."""
        self._ready = serving

    async def stop(self, grace: float) -> None:
        """Closes the listeners, and cancels the requests that last longer than `grace` seconds."""
        await self._listeners.stop(max(grace, _LEAST_GRACE))

    # The steps of every request.

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request.protocol, HttpConnection)
        self._listeners.connections.mark_used(request.protocol)
        route = self._route(request.path)
        known_route = route if route in self._routes else None
        followed = self._telemetry.begin(request.method, known_route, request.headers, request.scheme)
        call = HttpExchange(request, _client(request), uuid.uuid4().hex, {})
        headers = {"Server": "draftd", "X-Request-Id": call.id, **followed.headers(), **self._cors(request)}
        if route.startswith(_ANTHROPIC):
            headers["Request-Id"] = call.id
        call = replace(call, headers=headers)
        status = _CLOSED_REQUEST
        error: BaseException | None = None
        try:
            response = await self._answer(call, route)
            status = response.status
            return await self._written(response, request)
        except StreamFailed as told:  # the status was sent long before
            status, error = 200, told.error
            if not isinstance(error, DraftdError):
                log.error("%s %s failed", request.method, route, exc_info=error)
            return told.response
        except (ConnectionError, asyncio.CancelledError) as gone:
            error = gone
            raise
        finally:
            followed.end(status, error)

    async def _answer(self, call: HttpExchange, route: str) -> web.StreamResponse:
        try:
            return await self._found(call, route)
        except (StreamFailed, ConnectionError):
            raise
        except DraftdError as error:
            return self._refusal(error, call, route)
        except Exception as error:
            log.exception("%s %s failed", call.request.method, route)
            return self._refusal(internal(error), call, route)

    async def _found(self, call: HttpExchange, route: str) -> web.StreamResponse:
        request = call.request
        origin = request.headers.get("Origin")
        if origin is not None and not self._welcome(origin):
            if origin not in self._refused and len(self._refused) < _MOST_ORIGINS:
                self._refused.add(origin)
                log.warning("a page of %.80r may not call this server: server.http_origins does not list it", origin)
            raise Forbidden(f"Origin: got {origin[:80]!r}; allowed: the origins in server.http_origins")
        methods = self._routes.get(route)
        if methods is None:
            raise NotFound(f"path: got {request.path[:80]!r}; allowed: {', '.join(self._routes)}")
        if request.method == "OPTIONS" and origin is not None:
            return web.Response(status=204, headers={**call.headers, **_CORS})
        if route not in _OPEN:
            call = replace(call, identity=self._identity_of(request, self._authenticate(request)))
        endpoint = methods.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            raise WrongMethod(request.method, ", ".join(methods))
        if request.method == "POST":
            call = replace(call, body=await read_body(request, self._settings.max_message_bytes, self._body_seconds))
        return await endpoint(call)

    async def _written(self, response: web.StreamResponse, request: web.BaseRequest) -> web.StreamResponse:
        """Writes an answer in one piece. Aborts the connection of a client that does not read in time."""
        if not response.prepared:
            seconds = self._settings.write_stall_seconds or None
            try:
                async with asyncio.timeout(seconds):
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                assert request.transport is not None
                request.transport.abort()
                raise ConnectionResetError from None
        return response

    def _refusal(self, error: DraftdError, call: HttpExchange, route: str) -> web.Response:
        headers = dict(call.headers)
        if error.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
        if isinstance(error, WrongMethod):
            headers["Allow"] = error.allowed
        if error.http_status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if isinstance(error, (NotFound, NotOffered)):
            headers["X-Should-Retry"] = "false"  # OpenAI's and Anthropic's clients try again after a 501
        anthropic = route.startswith(_ANTHROPIC)
        shape = {**anthropic_error(error), "request_id": call.id} if anthropic else openai_error(error)
        response = json_response(shape, headers, error.http_status)
        if not call.request.content.is_eof():  # the rest of the body is not read
            response.force_close()
        return response

    def _authenticate(self, request: web.BaseRequest) -> bytes:
        """Returns the request's token, from OpenAI's header or from Anthropic's; empty if none is required. Raises
        Unauthenticated if it has none."""
        if not self._tokens:
            return b""
        bearer, key = (
            request.headers.get(name, "").encode(errors="replace") for name in ("Authorization", "X-Api-Key")
        )
        # Both are compared, in constant time: neither length of match nor order tells anything.
        in_bearer, in_key = matching_bearer(bearer, self._tokens), matching_secret(key, self._tokens)
        if not in_bearer and not in_key:
            error = Unauthenticated("Authorization: a bearer token is required; it was missing or wrong")
            client = _client(request).removeprefix("http:")
            said = f"{request.method} {self._route(request.path)} of {client} was refused: {error.message}"
            self._log.write(logging.WARNING, "unauthenticated", said, client.rpartition(":")[0])
            raise error
        return in_bearer or in_key

    def _identity_of(self, request: web.BaseRequest, token: bytes) -> str:
        """Returns the caller's identity. `token`: the one that was required and checked."""
        if self._settings.tls_client_ca is None:
            return identity_of(token, b"")
        tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return identity_of(token, certificate) if certificate else ""

    def _welcome(self, origin: str) -> bool:
        return origin in self._settings.http_origins or "*" in self._settings.http_origins

    def _cors(self, request: web.BaseRequest) -> dict[str, str]:
        origin = request.headers.get("Origin")
        if origin is None or not self._welcome(origin):
            return {}
        exposed = "X-Request-Id, Request-Id, X-Trace-Id, Traceparent, Retry-After"
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", "Access-Control-Expose-Headers": exposed}

    def _route(self, path: str) -> str:
        path = path.rstrip("/") or "/"
        if path in self._routes:
            return path
        if path.startswith(f"{_RESPONSES}/") and path.endswith(_INPUT_ITEMS):
            return f"{_RESPONSES}/{{id}}{_INPUT_ITEMS}"
        for collection in (_MODELS, _RESPONSES):
            if path.startswith(f"{collection}/"):
                return f"{collection}/{{id}}"
        return path

    def _resolve_model(self, wanted: str | None) -> str:
        try:
            model = self._service.model()
        except NotServing:  # the service raises this again, and counts it
            return wanted or ""
        return models.resolve_name(model, self._settings.http_aliases, wanted)

    # The paths.

    async def _ask(self, asking: Asking, call: HttpExchange) -> web.StreamResponse:
        return await answer(asking(call, self._scope), call, self._scope, self._keep_alive)

    async def _models(self, call: HttpExchange) -> web.StreamResponse:
        model, aliases = self._service.model(), self._settings.http_aliases
        return json_response(models.list_models(model, aliases, self._since), call.headers)

    async def _model(self, call: HttpExchange) -> web.StreamResponse:
        name = _last(call)
        self._resolve_model(name)
        return json_response(models.describe_model(self._service.model(), name, self._since), call.headers)

    async def _stored_answer(self, call: HttpExchange) -> web.StreamResponse:
        return json_response(self._answer_of(call, _last(call)).response, call.headers)

    async def _input_items(self, call: HttpExchange) -> web.StreamResponse:
        stored = self._answer_of(call, _last(call).removesuffix(_INPUT_ITEMS))
        return json_response(responses.list_items(stored, call.request.query), call.headers)

    async def _forget(self, call: HttpExchange) -> web.StreamResponse:
        self._answer_of(call, name := _last(call))
        self._store.drop(name)
        return json_response({"id": name, "object": "response.deleted", "deleted": True}, call.headers)

    def _answer_of(self, call: HttpExchange, name: str) -> StoredAnswer:
        """Raises NotFound."""
        if (stored := self._store.get(name)) is None:
            raise NotFound(f"path: got {call.request.path[:80]!r}; allowed: the id of an answer that is still stored")
        return stored

    async def _count(self, asking: Asking, more: Mapping[str, str], call: HttpExchange) -> web.StreamResponse:
        """Counts the tokens of a body's prompt. The answer also has the fields of `more`."""
        question = asking(call, self._scope)
        try:
            tokens = await self._service.count(question.requests[0])
        except DraftdError as error:
            raise question.names.rename(error) from None
        return json_response({**more, "input_tokens": tokens}, call.headers)

    async def _root(self, call: HttpExchange) -> web.Response:
        """A short text for browsers."""
        text = (
            "This is draftd's HTTP server. It speaks OpenAI's and Anthropic's protocols below /v1: set the base URL of"
            " OpenAI's clients to this address and /v1, of Anthropic's to this address alone. `GET /health` says"
            " whether it serves. It has no pages. draftd's commands and gRPC clients use another port, 50551 by"
            " default.\n"
        )
        return web.Response(text=text, headers=call.headers)

    async def _health(self, call: HttpExchange) -> web.StreamResponse:
        state = "draining" if self._service.draining else "ok" if self._ready else "loading"
        answer = {"status": state}
        if state == "loading":
            with contextlib.suppress(Unauthenticated):  # it names the model, and perhaps its folder
                self._authenticate(call.request)
                answer["progress"] = self._service.load_progress
        return json_response(answer, call.headers, 200 if state == "ok" else 503)

    async def _metrics(self, call: HttpExchange) -> web.StreamResponse:
        text = await asyncio.to_thread(self._telemetry.exposition)
        return web.Response(body=text, headers={**call.headers, "Content-Type": self._telemetry.exposition_type})

    async def _not_offered(self, what: str, call: HttpExchange) -> web.StreamResponse:
        raise NotOffered(f"{what}: not served; draftd decodes text, and serves one language model")


def _last(call: HttpExchange) -> str:
    """Returns the rest of the path after the collection: `ID` for /v1/responses/ID."""
    return call.request.path.rstrip("/").split("/", 3)[3]


def _client(request: web.BaseRequest) -> str:
    """The connection's name, which the engine uses to share its queue fairly."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return f"http:{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "http"
