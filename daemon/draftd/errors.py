"""Everything that draftd refuses, with the gRPC status that says so.

DraftdError
├── ConfigError             (start-up only)       a setting is wrong
├── ModelLoadError          (start-up only)       a model cannot be loaded
├── InvalidRequest          INVALID_ARGUMENT      a field of the request is wrong
├── SpeculationUnavailable  FAILED_PRECONDITION   speculation was demanded and cannot be had
├── FlagReadOnly            FAILED_PRECONDITION   the flag's provider takes no writes
├── NotNow                  FAILED_PRECONDITION   what was asked for cannot be done as things stand
├── QueueFull               RESOURCE_EXHAUSTED    too many requests wait; retry after a while
├── NotServing              UNAVAILABLE           loading, draining or failed
├── Unauthenticated         UNAUTHENTICATED       no token, or a wrong one
├── ClientStalled           ABORTED               the client took no message for too long
├── DeadlineExceeded        DEADLINE_EXCEEDED     the caller's time ran out
└── EngineFailure           INTERNAL              decoding failed
"""

from __future__ import annotations

from typing import ClassVar


class DraftdError(Exception):
    """Base of all. `status` is the name of a gRPC status code; `retry_after` seconds, where a retry may help."""

    status: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class FieldError(DraftdError):
    """Something named is wrong: says which field, what it was, and what is allowed."""

    status = "INVALID_ARGUMENT"

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "…"
        super().__init__(f"{field}: got {shown}; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class ConfigError(FieldError):
    """A setting is wrong. Raised at start-up."""


class InvalidRequest(FieldError):
    """A field of a request is wrong."""


class ModelLoadError(DraftdError):
    """A model folder is missing, incomplete or of a kind that mlx-lm does not know."""

    status = "FAILED_PRECONDITION"


class SpeculationUnavailable(DraftdError):
    """The caller demanded speculation; the message says why it cannot be had."""

    status = "FAILED_PRECONDITION"


class FlagReadOnly(DraftdError):
    """The feature flag's provider is a server: its flags are set there."""

    status = "FAILED_PRECONDITION"


class NotNow(DraftdError):
    """What is asked for cannot be done as things stand: there is no rung above, or a probe is under way."""

    status = "FAILED_PRECONDITION"


class QueueFull(DraftdError):
    """The inbox is at its bound."""

    status = "RESOURCE_EXHAUSTED"


class NotServing(DraftdError):
    """The daemon is loading, draining or has failed."""

    status = "UNAVAILABLE"


class Unauthenticated(DraftdError):
    """The bearer token is missing or wrong."""

    status = "UNAUTHENTICATED"


class DeadlineExceeded(DraftdError):
    """The caller's deadline passed before the answer was complete."""

    status = "DEADLINE_EXCEEDED"


class ClientStalled(DraftdError):
    """The client took no message for too long; what it asked for was cancelled."""

    status = "ABORTED"


class EngineFailure(DraftdError):
    """Decoding failed; the message says how."""
