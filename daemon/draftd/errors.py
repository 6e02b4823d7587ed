"""Everything that draftd refuses, with the gRPC and the HTTP status that say so (paired as google.rpc.Code has them).

Whoever catches DraftdError catches all of it.
"""

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
    """Base of all. `grpc_status` is the name of a gRPC status code; `retry_after` seconds, where a retry may help."""

    grpc_status: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls, status: str | None = None) -> None:
        """`status` is the gRPC one; without it a kind has its parent's."""
        if status is not None:
            cls.grpc_status, cls.http_status = status, _HTTP[status]

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message, self.retry_after = message, retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[DraftdError], args: tuple[Any, ...], attributes: dict[str, Any]) -> DraftdError:
    """As it was in the process that it comes from, whatever its own `__init__` takes."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def reason_of(kind: type[DraftdError]) -> str:
    """`queue_full` of QueueFull: stable, where messages are not."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


class FieldError(DraftdError):
    """Something named is wrong: says which field, what it was, and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
        if len(shown) > 80:
            shown = shown[:77] + "…"
        super().__init__(f"{field}: got {shown}; allowed: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def wrong_field(error: ValidationError, prefix: str = "") -> tuple[str, object, str]:
    """The first field that pydantic refuses, as FieldError takes it: `prefix` and its path (`a.b[0]`); its value, None
    where it is missing; what is allowed."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).removeprefix(".")
    value = None if first["type"] == "missing" else first["input"]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
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


def in_words(error: OSError) -> str:
    """Why a connection or an address cannot be had, without the number."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)  # socket.create_server puts more into the error's own


class ConfigError(FieldError, status="INVALID_ARGUMENT"):
    """A setting is wrong. Raised at start-up."""


class UnknownSetting(ConfigError, status="INVALID_ARGUMENT"):
    """A name that no setting has. Its value stays unsaid: it may be a token whose name was misspelt."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(name, None, hint)
        self.message = f"{name}: no setting has this name; {hint}"
        self.args = (self.message,)


class InvalidRequest(FieldError, status="INVALID_ARGUMENT"):
    """A field of a request is wrong."""


class ModelLoadError(DraftdError, status="FAILED_PRECONDITION"):
    """A model folder is missing, incomplete or of a kind that mlx-lm does not know. The message is one line: `what` is
    wrong, and its `cure` where one is known."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(f"{what}: {cure}" if cure else what)
        self.what, self.cure = what, cure


class SpeculationUnavailable(DraftdError, status="FAILED_PRECONDITION"):
    """The caller demanded speculation; the message says why it cannot be had."""


class RemoteUnavailable(DraftdError, status="FAILED_PRECONDITION"):
    """The other daemon was demanded, or a class of answers that only it has, and cannot be had as things are set."""


class RemoteDown(RemoteUnavailable, status="UNAVAILABLE"):
    """Likewise, and it cannot be reached now."""


class FlagReadOnly(DraftdError, status="FAILED_PRECONDITION"):
    """The feature flag's provider is a server: its flags are set there."""


class NotNow(DraftdError, status="FAILED_PRECONDITION"):
    """What is asked for cannot be done as things stand: there is no level above, or a probe is running."""


class NotEnabled(NotNow, status="FAILED_PRECONDITION"):
    """A setting of this daemon has to allow it first."""


class OtherProtocol(NotNow, status="FAILED_PRECONDITION"):
    """The other daemon speaks another version of the protocol."""


class Superseded(NotNow, status="FAILED_PRECONDITION"):
    """Another connection of the same daemon took the place of this one."""


class OtherWeights(InvalidRequest, status="INVALID_ARGUMENT"):
    """A text was begun by another model than is served now."""


class QueueFull(DraftdError, status="RESOURCE_EXHAUSTED"):
    """As many wait, or are in hand, as may be."""


class NoMemory(DraftdError, status="RESOURCE_EXHAUSTED"):
    """A request needs more memory than the machine has left; the message has both figures."""


class TooManyPeers(QueueFull, status="RESOURCE_EXHAUSTED"):
    """As many other daemons are connected, or come, as may."""


class TooManySequences(QueueFull, status="RESOURCE_EXHAUSTED"):
    """Another daemon has as many sequences open, or waiting, as it may."""


class TooManyTokens(NoMemory, status="RESOURCE_EXHAUSTED"):
    """Another daemon's sequences need more tokens of context than it may have."""


class NoRoom(DraftdError, status="RESOURCE_EXHAUSTED"):
    """A prefix cannot be kept: a limit is reached, or the disk takes no more; the message has the figures."""


class NotServing(DraftdError, status="UNAVAILABLE"):
    """The daemon is loading, draining or has failed."""


class Unauthenticated(DraftdError, status="UNAUTHENTICATED"):
    """The bearer token is missing or wrong."""


class Forbidden(DraftdError, status="PERMISSION_DENIED"):
    """Who asks may not: a page of an origin that is not listed."""


class NotFound(DraftdError, status="NOT_FOUND"):
    """There is nothing of that name: no such path, model or stored answer."""


class NotOffered(DraftdError, status="UNIMPLEMENTED"):
    """Known, and nothing that this daemon does."""


class DeadlineExceeded(DraftdError, status="DEADLINE_EXCEEDED"):
    """The caller's deadline passed before the answer was complete."""


class ClientStalled(DraftdError, status="ABORTED"):
    """The client took no message for too long; what it asked for was cancelled."""


class EngineFailure(DraftdError, status="INTERNAL"):
    """Decoding failed; the message says how."""
