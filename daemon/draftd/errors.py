"""Everything that draftd refuses, with the gRPC and the HTTP status that say so (paired as google.rpc.Code has them).

Whoever catches DraftdError catches all of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError


class DraftdError(Exception):
    """Base of all. `grpc_status` is the name of a gRPC status code; `retry_after` seconds, where a retry may help."""

    grpc_status: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class FieldError(DraftdError):
    """Something named is wrong: says which field, what it was, and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "…"
        super().__init__(f"{field}: got {shown}; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


def wrong_field(error: ValidationError, prefix: str = "") -> tuple[str, object, str]:
    """The first field that pydantic refuses, as FieldError takes it: `prefix` and its path (`a.b[0]`); its value, None
    where it is missing; what is allowed."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).removeprefix(".")
    value = None if first["type"] == "missing" else first["input"]
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        allowed = f"valid JSON ({allowed.removeprefix('Invalid JSON: ')})"
    elif first["type"] == "missing":
        allowed = "a value: it must be given"
    return (prefix + path).rstrip(".: "), value, allowed


_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_LONGEST = 240  # characters of another library's message


def in_one_line(error: BaseException) -> str:
    """Another library's error: its kind and its first sentence, cut where that is long."""
    sentence = _SENTENCE_END.split(" ".join(str(error).split()), maxsplit=1)[0].removesuffix(".")
    if len(sentence) > _LONGEST:
        sentence = sentence[: _LONGEST - 1] + "…"
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


class ConfigError(FieldError):
    """A setting is wrong. Raised at start-up."""

    grpc_status, http_status = "INVALID_ARGUMENT", 400


class InvalidRequest(FieldError):
    """A field of a request is wrong."""

    grpc_status, http_status = "INVALID_ARGUMENT", 400


class ModelLoadError(DraftdError):
    """A model folder is missing, incomplete or of a kind that mlx-lm does not know. The message is one line: `what` is
    wrong, and its `cure` where one is known."""

    grpc_status, http_status = "FAILED_PRECONDITION", 400

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(f"{what}: {cure}" if cure else what)
        self.what, self.cure = what, cure


class SpeculationUnavailable(DraftdError):
    """The caller demanded speculation; the message says why it cannot be had."""

    grpc_status, http_status = "FAILED_PRECONDITION", 400


class FlagReadOnly(DraftdError):
    """The feature flag's provider is a server: its flags are set there."""

    grpc_status, http_status = "FAILED_PRECONDITION", 400


class NotNow(DraftdError):
    """What is asked for cannot be done as things stand: there is no level above, or a probe is running."""

    grpc_status, http_status = "FAILED_PRECONDITION", 400


class QueueFull(DraftdError):
    """As many wait, or are in hand, as may be."""

    grpc_status, http_status = "RESOURCE_EXHAUSTED", 429


class NoMemory(DraftdError):
    """A request needs more memory than the machine has left; the message has both figures."""

    grpc_status, http_status = "RESOURCE_EXHAUSTED", 429


class NotServing(DraftdError):
    """The daemon is loading, draining or has failed."""

    grpc_status, http_status = "UNAVAILABLE", 503


class Unauthenticated(DraftdError):
    """The bearer token is missing or wrong."""

    grpc_status, http_status = "UNAUTHENTICATED", 401


class DeadlineExceeded(DraftdError):
    """The caller's deadline passed before the answer was complete."""

    grpc_status, http_status = "DEADLINE_EXCEEDED", 504


class ClientStalled(DraftdError):
    """The client took no message for too long; what it asked for was cancelled."""

    grpc_status, http_status = "ABORTED", 409


class EngineFailure(DraftdError):
    """Decoding failed; the message says how."""

    grpc_status, http_status = "INTERNAL", 500
