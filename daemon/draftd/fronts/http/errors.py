"""Errors for HTTP clients: the status, OpenAI's or Anthropic's shape, and the body's name for the field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from draftd.errors import (
    DraftdError,
    EngineFailure,
    FieldError,
    InvalidRequest,
    NoMemory,
    NotFound,
    NotServing,
    QueueFull,
    Unauthenticated,
)


class HttpError(DraftdError, status="INVALID_ARGUMENT"):
    """An error that only HTTP requests can cause."""


class Timeout(HttpError):
    """The body took too long to arrive."""

    http_status: ClassVar[int] = 408


class WrongMethod(HttpError):
    """The path does not support the method. `allowed`: the methods that it supports."""

    http_status: ClassVar[int] = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method: got {method}; allowed: {allowed}")
        self.allowed = allowed


class TooLarge(HttpError):
    """The body is larger than `server.max_message_bytes`."""

    http_status: ClassVar[int] = 413


class WrongMedia(HttpError):
    """The headers say that the body is not JSON, or is compressed."""

    http_status: ClassVar[int] = 415


class ResponseNotFound(InvalidRequest):
    """The answer that a request continues is not stored, or no longer."""


class ThreadNotServed(InvalidRequest):
    """The request wants the server to keep the conversation. Anthropic's SDKs send the whole conversation after this
    error."""

    def __init__(self, thread: object) -> None:
        super().__init__("thread", thread, "null: send the whole conversation in messages")


class ModelNotFound(NotFound):
    """The request names a model that is not served. `field` is `model`."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        super().__init__(f"model: got {name[:80]!r}; allowed: {', '.join(served)}")
        self.field = "model"


# OpenAI's and Anthropic's types of error, by status.
_OPENAI = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CODES: Mapping[type[DraftdError], str] = {
    InvalidRequest: "invalid_value",
    ModelNotFound: "model_not_found",
    ResponseNotFound: "previous_response_not_found",
    Unauthenticated: "invalid_api_key",
    QueueFull: "rate_limit_exceeded",
    NoMemory: "insufficient_memory",
    NotServing: "service_unavailable",
    TooLarge: "request_too_large",
}


def openai_error(error: DraftdError) -> dict[str, Any]:
    """{"error": {message, type, param, code}}."""
    status = error.http_status
    kind = _OPENAI.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": getattr(error, "field", None),
            "code": code_of(error),
        }
    }


def code_of(error: DraftdError) -> str | None:
    """Returns the error's code for programs, or None. Codes that clients react to are OpenAI's; others are draftd's
    own."""
    if isinstance(error, InvalidRequest) and _is_length(error):
        return "context_length_exceeded"
    return _CODES.get(type(error))


def _is_length(error: InvalidRequest) -> bool:
    """Whether the prompt is too long: the error's value is a positive count of tokens or characters."""
    return re.fullmatch(r"'[1-9]\d* (tokens|characters)'", repr(error.value)) is not None


def anthropic_error(error: DraftdError) -> dict[str, Any]:
    """{"type": "error", "error": {type, message}}; errors that programs react to also have `details`."""
    status = error.http_status
    kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
    body: dict[str, Any] = {"type": kind, "message": error.message}
    if isinstance(error, ThreadNotServed):
        body["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": body}


def internal(error: Exception) -> EngineFailure:
    """The error for a bug, without internal details."""
    return EngineFailure(f"internal error: {type(error).__name__}")


_ITEM = re.compile(r"chat\.(messages|tools)\[(\d+)\](.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Names:
    """Converts the service's field paths to paths in the body. `table`: beginnings of service paths, and what replaces
    each. `messages`, `tools`: the body's path of each message and each tool. `parts`: pairs of a regular expression and
    its replacement, for the path inside a message or tool."""

    table: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[str] = ()
    tools: Sequence[str] = ()
    parts: Sequence[tuple[str, str]] = ()

    def of(self, path: str) -> str:
        if item := _ITEM.fullmatch(path):
            places, rest = self.messages if item[1] == "messages" else self.tools, item[3]
            if int(item[2]) < len(places):
                for part, own in self.parts:
                    rest = re.sub(part, own, rest)
                return places[int(item[2])] + rest
        for place in sorted(self.table, key=len, reverse=True):
            if path.startswith(place):
                return self.table[place] + path[len(place) :]
        return path

    def rename(self, error: DraftdError) -> DraftdError:
        """The same error with the body's name for its field."""
        if not isinstance(error, FieldError) or (name := self.of(error.field)) == error.field:
            return error
        return InvalidRequest(name, error.value, error.allowed)
