"""What other threads may ask of the engine besides decoding. Futures end on the engine thread."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from draftd.core import DrafterKind


def _promise() -> Future[Any]:
    """One that its holder cannot cancel: the engine ends it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(frozen=True, slots=True)
class Keep:
    """Hold exactly these drafters' weights; ends with their bytes."""

    drafters: frozenset[DrafterKind]
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
    """Bind the rows in hand: those admitted, and the first `arrivals` of those that wait to be."""

    max_draft_tokens: int
    drafters: frozenset[DrafterKind]
    reason: str
    arrivals: int


Order = Keep | Reload | LogitGap | Lower


def refuse(order: Order, error: Exception) -> None:
    """Ends the order's future, where it has one."""
    done: Future[Any] | None = getattr(order, "done", None)
    if done is not None:
        done.set_exception(error)
