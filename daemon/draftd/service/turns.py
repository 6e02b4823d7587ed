"""Which sequences of peers are decoded while others want the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftd.service.peers import HeldSequence, Peer


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
