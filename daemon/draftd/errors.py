"""The errors that draftd reports, each with its gRPC and HTTP status (paired as in google.rpc.Code). All derive from
DraftdError."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError

_HTTP = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class DraftdError(Exception):
    """The base of all errors. `grpc_status`: the name of a gRPC status code; `retry_after`: seconds, if a retry may
    help."""

    grpc_status: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls, status: str | None = None) -> None:
        """`status` is the gRPC one; a class without it has its parent's."""
        if status is not None:
            cls.grpc_status, cls.http_status = status, _HTTP[status]

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message, self.retry_after = message, retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[DraftdError], args: tuple[Any, ...], attributes: dict[str, Any]) -> DraftdError:
    """Recreates an error from another process, whatever its own `__init__` takes."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def reason_of(kind: type[DraftdError]) -> str:
    """Returns the error's reason, such as `queue_full` for QueueFull: stable, unlike messages."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


REQUIRED = "a value: this field is required"  # what is allowed for a missing field


class FieldError(DraftdError):
    """An error in a named value: the field, the value, and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
        if len(shown) > 80:
            shown = shown[:77] + "…"
        super().__init__(f"{field}: {'not set' if value is None else f'got {shown}'}; allowed: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def wrong_field(error: ValidationError, prefix: str = "") -> tuple[str, object, str]:
    """Returns the three arguments of FieldError for pydantic's first error: the field's name, which is `prefix` and the
    path (`a.b[0]`); the value, or None if missing; and what is allowed."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).removeprefix(".")
    value = None if first["type"] == "missing" else first["input"]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        allowed = f"valid JSON ({allowed.removeprefix('Invalid JSON: ')})"
    elif first["type"] == "missing":
        allowed = REQUIRED
    elif first["type"] == "extra_forbidden":
        allowed = "no value: there is no field of this name"
    return (prefix + path).rstrip(".: "), value, allowed


_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_LONGEST = 240  # characters kept of another library's message


def in_one_line(error: BaseException) -> str:
    """Describes another library's error: its class and first sentence, shortened if long."""
    sentence = _SENTENCE_END.split(" ".join(str(error).split()), maxsplit=1)[0].removesuffix(".")
    if len(sentence) > _LONGEST:
        sentence = sentence[: _LONGEST - 1] + "…"
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


def in_words(error: OSError) -> str:
    """Describes why a connection or an address is unavailable, without the error's number."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)  # socket.create_server adds more to the error's own text


class ConfigError(FieldError, status="INVALID_ARGUMENT"):
    """A setting is wrong. Raised at start-up."""


class UnknownSetting(ConfigError, status="INVALID_ARGUMENT"):
    """A name that is no setting. Its value is not shown: it may be a token whose name was misspelt."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(name, None, hint)
        self.message = f"{name}: no setting has this name; {hint}"
        self.args = (self.message,)


class InvalidRequest(FieldError, status="INVALID_ARGUMENT"):
    """A field of a request is wrong."""


class ModelLoadError(DraftdError, status="FAILED_PRECONDITION"):
    """A model folder is missing, incomplete or of a kind unknown to mlx-lm. One line: `what` is wrong, and its `cure`
    if known."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(f"{what}: {cure}" if cure else what)
        self.what, self.cure = what, cure


class SpeculationUnavailable(DraftdError, status="FAILED_PRECONDITION"):
    """The caller demands speculation, which is unavailable; the message says why."""


class RemoteUnavailable(DraftdError, status="FAILED_PRECONDITION"):
    """The caller demands the other daemon, or a quality that only it has, which the settings do not allow."""


class RemoteDown(RemoteUnavailable, status="UNAVAILABLE"):
    """The caller demands the other daemon, which is unreachable now."""


class FlagReadOnly(DraftdError, status="FAILED_PRECONDITION"):
    """The feature flag's provider is a server, so its flags must be set there."""


class NotNow(DraftdError, status="FAILED_PRECONDITION"):
    """The request cannot be served in the present state: there is no level above, or a probe is running."""


class NotEnabled(NotNow, status="FAILED_PRECONDITION"):
    """A setting of this daemon must allow the request first."""


class OtherProtocol(NotNow, status="FAILED_PRECONDITION"):
    """The other daemon uses another version of the protocol."""


class Superseded(NotNow, status="FAILED_PRECONDITION"):
    """Another connection of the same daemon has replaced this one."""


class OtherWeights(InvalidRequest, status="INVALID_ARGUMENT"):
    """The text was begun by another model than is served now."""


class QueueFull(DraftdError, status="RESOURCE_EXHAUSTED"):
    """The limit of waiting or running requests is reached."""


class NoMemory(DraftdError, status="RESOURCE_EXHAUSTED"):
    """A request needs more memory than the machine has left; the message has both figures."""


class TooManyPeers(QueueFull, status="RESOURCE_EXHAUSTED"):
    """The limit of connected or connecting daemons is reached."""


class TooManySequences(QueueFull, status="RESOURCE_EXHAUSTED"):
    """A peer (another daemon) has as many open sequences as it may have here, or peers' sequences fill their part of
    the queue."""


class TooManyTokens(NoMemory, status="RESOURCE_EXHAUSTED"):
    """The open sequences of a peer (another daemon) would need more tokens of context than it may use here."""


class NoRoom(DraftdError, status="RESOURCE_EXHAUSTED"):
    """A prefix cannot be kept: a limit is reached, or the disk is full; the message has the figures."""


class NotServing(DraftdError, status="UNAVAILABLE"):
    """The daemon is loading, draining or has failed."""


class Unauthenticated(DraftdError, status="UNAUTHENTICATED"):
    """The bearer token is missing or wrong."""


class Forbidden(DraftdError, status="PERMISSION_DENIED"):
    """The sender is not allowed: a web page from an origin that is not listed."""


class NotFound(DraftdError, status="NOT_FOUND"):
    """There is no such path, model or stored answer."""


class NotOffered(DraftdError, status="UNIMPLEMENTED"):
    """A known feature that this daemon does not have."""


class DeadlineExceeded(DraftdError, status="DEADLINE_EXCEEDED"):
    """The caller's deadline passed before the answer was complete."""


class ClientStalled(DraftdError, status="ABORTED"):
    """The client read no message for too long; its request was cancelled."""


class EngineFailure(DraftdError, status="INTERNAL"):
    """Decoding failed; the message says how."""
