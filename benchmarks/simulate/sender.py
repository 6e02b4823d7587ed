"""Simulates Alertmanager: notifications that fire, repeat and resolve, with `Post`'s losses, duplicates and delays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulate.fault import Cause, Fault
from benchmarks.simulate.scenario import Post
from draftd.core import FallbackLevel
from draftd.fallback.leases import Notice

EPOCH = 1_700_000_000.0  # the sender's wall clock at simulated time 0
WAIT, REPEAT = 30.0, 600.0  # Alertmanager's group_wait, and the seconds after which it repeats a firing alert
_STORM_ALERTS, _STORM_PERIOD = 40, 60.0


@dataclass(frozen=True, slots=True)
class Delivery:
    at: float
    notice: Notice


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert, from its start to its end in simulated seconds."""

    start: float
    end: float
    notice: Notice


class Sender:
    """Computes all notifications in order of arrival, and the answers to polls."""

    def __init__(self, rng: np.random.Generator, faults: Sequence[Fault], post: Post) -> None:
        self.firings: list[Firing] = []
        deliveries: list[Delivery] = []
        for fault in faults:
            if fault.cause is Cause.ALERT:
                deliveries += self._alert(rng, fault, post)
            if fault.cause is Cause.STORM:
                deliveries += self._storm(rng, fault)
        self.deliveries = sorted(deliveries, key=lambda one: one.at)

    def listed(self, now: float) -> list[Notice]:
        return [one.notice for one in self.firings if one.start + WAIT <= now < one.end + WAIT]

    def _alert(self, rng: np.random.Generator, fault: Fault, post: Post) -> list[Delivery]:
        fires = Notice("DraftdSwapRising", "a1", True, EPOCH + fault.start, fault.level, fault.hard)
        ends = Notice(fires.name, fires.fingerprint, False, fires.starts_at, fault.level, fault.hard)
        self.firings.append(Firing(fault.start, fault.end, fires))
        sent = [Delivery(at, fires) for at in np.arange(fault.start + WAIT, fault.end, REPEAT).tolist()]
        sent.append(Delivery(fault.end + WAIT, ends))
        arrived = []
        for one in sent:
            copies = 2 if rng.random() < post.doubled else 1
            arrived += [
                Delivery(one.at + float(rng.exponential(post.delay)), one.notice)
                for _ in range(copies)
                if rng.random() >= post.lost
            ]
        return arrived

    def _storm(self, rng: np.random.Generator, fault: Fault) -> list[Delivery]:
        """Returns the notifications of forty alerts, each of which changes about once a minute. Alerts that still fire
        at the storm's end are resolved."""
        arrived = []
        for number in range(_STORM_ALERTS):
            level = FallbackLevel(int(rng.integers(0, 3)))
            hard, name = bool(rng.random() < 0.3), f"Storm{number}"
            now, firing, began = fault.start + float(rng.uniform(0, _STORM_PERIOD)), False, 0.0
            while now < fault.end:
                firing = not firing
                began = EPOCH + now if firing else began
                arrived.append(Delivery(now, Notice(name, name, firing, began, level, hard)))
                now += float(rng.exponential(_STORM_PERIOD))
            if firing:
                arrived.append(Delivery(fault.end, Notice(name, name, False, began, level, hard)))
        return arrived
