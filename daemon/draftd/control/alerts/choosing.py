"""From alerts to what they ask of this daemon: which are its own, and which level each asks for."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from draftd.control.alerts.payload import Alert
from draftd.control.alerts.results import Result
from draftd.core import FallbackLevel
from draftd.errors import InvalidRequest
from draftd.policy.leases import Notice

AHEAD_SECONDS = 86_400.0  # that an alert may begin ahead of this machine's clock: later ones would look old beside it

_LEVELS = {level.label: level for level in FallbackLevel if level is not FallbackLevel.FULL}


class BadLevel(InvalidRequest):
    """A level that no alert can ask for."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """An alert that asks nothing of this daemon."""

    alert: Alert
    result: Result

    def __str__(self) -> str:
        name = self.alert.labels.get("alertname", "")
        return f"{self.alert.where}: {self.result} ({_shown(name)})"


def asked(alert: Alert, known: Set[str], instance: str, now: float) -> Notice | Ignored:
    """`instance` is this daemon's own name; while it has none, alerts of any instance are taken for its own.

    A level is a ceiling: nothing in here can raise one. Raises BadLevel for any other, and InvalidRequest
    where the alert begins too far ahead.
    """
    labels = alert.labels
    name = labels.get("alertname", "")
    if name not in known:
        return Ignored(alert, Result.UNKNOWN_ALERT)
    if instance and labels.get("instance") and labels["instance"] != instance:
        return Ignored(alert, Result.OTHER_INSTANCE)
    if not (asks := labels.get("fallback_level")):
        return Ignored(alert, Result.NO_LEVEL)
    if asks not in _LEVELS:
        allowed = ", ".join(sorted(_LEVELS)) + ": an alert can lower the level, and not raise it"
        raise BadLevel(f"{alert.where}.labels.fallback_level", asks, allowed)
    if alert.starts_at > now + AHEAD_SECONDS:
        allowed = "a time that is not more than a day ahead of this machine's"
        raise InvalidRequest(f"{alert.where}.startsAt", alert.starts_at, allowed)
    return Notice(
        name=name,
        fingerprint=alert.fingerprint,
        firing=alert.firing,
        starts_at=alert.starts_at,
        level=_LEVELS[asks],
        hard=labels.get("severity") == "critical",
    )


def _shown(name: str) -> str:
    shown = repr(name)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"
