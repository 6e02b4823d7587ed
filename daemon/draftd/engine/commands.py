"""Engine commands: what other threads ask of the engine thread besides requests.

Imports no MLX: whoever puts the daemon together reads this before the BLAS is loaded.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from draftd.core import DrafterName


def _promise() -> Future[Any]:
    """One that its holder cannot cancel: the engine ends it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(frozen=True, slots=True)
class Keep:
    """Hold exactly these drafters' weights; ends with their bytes."""

    drafters: frozenset[DrafterName]
    done: Future[int] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class Reload:
    """Read the drafts' weights anew; ends with their bytes."""

    done: Future[int] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class LogitGap:
    """The target's logit of `chosen` less that of `other`, after `tokens`."""

    tokens: tuple[int, ...]
    chosen: int
    other: int
    done: Future[float] = field(default_factory=_promise)


@dataclass(frozen=True, slots=True)
class Lower:
    """Bind the sequences in hand: those admitted, and the first `arrivals` of those that wait to be."""

    max_draft_tokens: int
    drafters: frozenset[DrafterName]
    reason: str
    arrivals: int


Command = Keep | Reload | LogitGap | Lower


def refuse(command: Command, error: Exception) -> None:
    """Ends the command's future, where it has one."""
    done: Future[Any] | None = getattr(command, "done", None)
    if done is not None:
        done.set_exception(error)
