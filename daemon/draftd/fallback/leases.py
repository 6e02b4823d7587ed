"""Alerts that ask for a level, each for a limited time. Without repetition a lease expires; an alert without a lease
has no effect.

Notifications arrive late, twice, in the wrong order or not at all. An alert is identified by its fingerprint, and each
of its firings by its start; anything older than what is known is stale.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from draftd.core import FallbackLevel
from draftd.fallback.ladder import Cause, Signal, utc_text
from draftd.strategies import RemoteLevel

_MOST = 256  # the most leases, and the most remembered ends

Moment = Annotated[float, Field(ge=0, le=253_402_300_799)]  # from 1970 to 9999, the last year that datetime can express


class Applied(enum.StrEnum):
    """The outcome of a notification."""

    ACCEPTED = "accepted"
    RENEWED = "renewed"
    RESOLVED = "resolved"
    DUPLICATE = "duplicate"
    STALE = "stale"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Notice:
    """One alert of a notification. `starts_at`: the sender's clock, seconds since 1970. `remote`: the level that it
    asks for on the remote; then `level` is FULL."""

    name: str
    fingerprint: str
    firing: bool
    starts_at: Moment
    level: FallbackLevel
    hard: bool = False
    remote: RemoteLevel | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """An alert in force. `until`: the ladder's clock. `polled`: the source itself has listed the alert."""

    notice: Notice
    until: float
    polled: bool = False

    @property
    def signal(self) -> Signal:
        notice = self.notice
        evidence = f"{notice.name} has fired since {utc_text(notice.starts_at)}"
        return Signal(Cause.ALERT, notice.level if notice.remote is None else notice.remote, evidence, notice.hard)


@dataclass(frozen=True, slots=True)
class Leases:
    """Leases by alert fingerprint, and the start times of alerts that have ended. At most 256 of each."""

    active: Annotated[Mapping[str, Lease], Field(validation_alias="held", serialization_alias="held")] = field(
        default_factory=dict
    )
    ended: Mapping[str, Moment] = field(default_factory=dict)

    def apply(
        self, notice: Notice, now: float, lease_seconds: float, *, polled: bool = False
    ) -> tuple[Leases, Applied]:
        """Returns the next state, and the outcome of the notice. Repeating a notice only extends the lease.

        An alert that the source lists now (`polled`) is current even if it was gone for a while: a silence was lifted,
        or Alertmanager restarted. It still has its original start."""
        state = self.expire(now)
        lease, ended = state.active.get(notice.fingerprint), state.ended.get(notice.fingerprint)
        if lease is not None and notice.starts_at < lease.notice.starts_at:
            return state, Applied.STALE
        if not notice.firing:
            if lease is None and ended is not None and notice.starts_at <= ended:
                return state, Applied.DUPLICATE
            return state._end(notice.fingerprint, notice.starts_at), Applied.RESOLVED
        if ended is not None and notice.starts_at <= ended:
            if not polled:
                return state, Applied.STALE
            state = replace(state, ended={name: at for name, at in state.ended.items() if name != notice.fingerprint})
        if lease is None and len(state.active) >= _MOST:
            return state, Applied.FULL
        renewed = Lease(notice, now + lease_seconds, polled or (lease is not None and lease.polled))
        if renewed == lease:
            return state, Applied.DUPLICATE
        again = lease is not None and lease.notice == notice
        state = replace(state, active={**state.active, notice.fingerprint: renewed})
        return state, Applied.RENEWED if again else Applied.ACCEPTED

    def reconcile(self, firing: Sequence[Notice], now: float, lease_seconds: float) -> Leases:
        """Applies the source's list of firing alerts. Ends those that it listed before and no longer lists; an alert
        that it never listed may come from another sender, and expires by itself."""
        state = self.expire(now)
        for notice in firing:
            state, _ = state.apply(replace(notice, firing=True), now, lease_seconds, polled=True)
        listed = {notice.fingerprint for notice in firing}
        unlisted = {name: lease for name, lease in state.active.items() if lease.polled and name not in listed}
        for name, lease in unlisted.items():
            state = state._end(name, lease.notice.starts_at)
        return state

    def expire(self, now: float) -> Leases:
        """Returns the state without expired leases."""
        if all(lease.until > now for lease in self.active.values()):
            return self
        return replace(self, active={name: lease for name, lease in self.active.items() if lease.until > now})

    def signals(self) -> tuple[Signal, ...]:
        """Returns the alerts' signals for the ladder, the lowest level first."""
        own = [lease for lease in self.active.values() if lease.notice.remote is None]
        ordered = sorted(own, key=lambda lease: (lease.notice.level, not lease.notice.hard))
        return tuple(lease.signal for lease in ordered)

    def remote_signals(self) -> tuple[Signal, ...]:
        """Returns the alerts' signals for the remote."""
        return tuple(lease.signal for lease in self.active.values() if lease.notice.remote is not None)

    def _end(self, fingerprint: str, starts_at: float) -> Leases:
        remaining = {name: lease for name, lease in self.active.items() if name != fingerprint}
        ended = {name: began for name, began in self.ended.items() if name != fingerprint}
        ended[fingerprint] = max(starts_at, self.ended.get(fingerprint, starts_at))
        while len(ended) > _MOST:
            del ended[next(iter(ended))]  # the alert that ended first
        return Leases(remaining, ended)
