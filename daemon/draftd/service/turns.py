"""How much of the target a peer has while others want it: its share of the time, its pace, whose turn it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftd.service.peers import HeldSequence, Peer

_BURST_SECONDS = 1.0  # of the target


class Share:
    """Of the target's time, in the long run and with a second besides. What one takes beyond that it waits for, as soon
    as others want the target."""

    def __init__(self, share: float, owed: float | None = None) -> None:
        """`owed`: seconds of the target that are waited for at most; None: what a second gives. It may all have been
        taken while nothing else wanted it."""
        self._share, self._owed = share, share if owed is None else owed
        self._left, self._since = _BURST_SECONDS, time.monotonic()

    def took(self, seconds: float, now: float) -> None:
        if self._share < 1:
            self._refill(now)
            self._left = max(self._left - seconds, -self._owed)

    def exceeded(self, now: float) -> bool:
        if self._share >= 1:
            return False
        self._refill(now)
        return self._left < 0

    def _refill(self, now: float) -> None:
        self._left = min(_BURST_SECONDS, self._left + self._share * max(0.0, now - self._since))
        self._since = now


class Pace:
    """So many in a second, in the long run."""

    def __init__(self, rate: float, most: float, first: float | None = None) -> None:
        """`most`: at once. `first`: likewise, to begin with; None: no less."""
        self._rate, self._most = rate, most
        self._left, self._since = most if first is None else first, time.monotonic()

    def earned(self, more: float) -> None:
        self._left = min(self._most, self._left + more)

    def spent(self, some: float = 1.0) -> float:
        """Seconds to wait before the next."""
        now = time.monotonic()
        self._left = min(self._most, self._left + self._rate * (now - self._since)) - some
        self._since = now
        return max(0.0, -self._left / self._rate)


def fair(seconds: Sequence[float], others: int, width: float) -> int:
    """How many sequences of a peer, with `width` positions each, make a step at most twice as long as it is with those
    of `others`. `seconds`: that a plain step of 1, 2, … sequences takes; where that is not known, as many as they."""
    if not seconds or not seconds[0]:
        return max(1, others)

    def step(positions: float) -> float:
        known = len(seconds)
        more = (seconds[-1] - seconds[0]) / max(1, known - 1)
        return seconds[max(1, round(positions)) - 1] if positions <= known else seconds[-1] + more * (positions - known)

    bound, most = 2 * step(others), 1
    while most < 2 * len(seconds) and step(others + (most + 1) * width) <= bound:
        most += 1
    return most


def in_order(sequences: Iterable[HeldSequence]) -> list[HeldSequence]:
    """Those first that have a step in hand, and had none decided for longest."""
    return sorted(sequences, key=lambda one: (not one.waits, one.turn))


def give_turns(peers: Sequence[Peer], clients: int, batch: int, seconds: Sequence[float], now: float) -> bool:
    """While others want the target, a peer has its part of the sequences that decode together, of which there are
    `batch` at most, and none where it has had its share; while there are requests of `clients`, all peers have a part.
    `seconds`: as of `fair`. Whether a sequence may go on that might not before."""
    busy = [in_order(one.busy(now)) for one in peers]
    wanting = clients + sum(map(len, busy))
    parties: dict[str, list[HeldSequence]] = {}
    latest: dict[str, float] = {}
    for peer, sequences in zip(peers, busy, strict=True):
        others, most = wanting - len(sequences), len(sequences)
        if others:
            # A place is left for who comes next.
            most = min(max(1, batch - others - 1), fair(seconds, others, peer.width))
            most = 0 if peer.share.exceeded(now) else most
        parties.setdefault(peer.party, []).extend(sequences[:most])
        latest[peer.party] = max([latest.get(peer.party, 0.0), *(one.turn for one in sequences)])
    chosen = [one for party in parties.values() for one in party]
    if clients:
        width = max((one.width for one, sequences in zip(peers, busy, strict=True) if sequences), default=1.0)
        # A party's turn is as old as the youngest of its sequences', or that with most of them would be next each time.
        order = [
            (place, not one.waits, latest[name], one)
            for name, party in parties.items()
            for place, one in enumerate(in_order(party))
        ]
        chosen = [one for *_, one in sorted(order, key=lambda each: each[:3])]
        del chosen[min(max(1, batch - clients - 1), fair(seconds, clients, width)) :]
    held_back = {one for sequences in busy for one in sequences}.difference(chosen)
    begun = [peer.give_turns(held_back, now) for peer in peers]
    return any(begun)
