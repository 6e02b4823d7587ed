"""The engine's time, shared between clients and peers, and what each sequence is charged. Engine thread only; where no
sequence has a peer nothing here is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep

_CLIENTS_PART = 0.6  # of the engine's time
_AHEAD_SECONDS = 0.02  # that peers may have had more than the rest of it
_OF_LATE_SECONDS, _LITTLE_SECONDS = 0.4, 0.004  # that are remembered; and of these what is forgotten
_LEAST_PART = 1 / 8  # of a step with peers, that they have taken from clients
_KEPT = 0.9  # of what is known of steps without peers, when there is another


def charge(
    taking_part: Sequence[DecodeSequence],
    depths: Sequence[int],
    seconds: float,
    forwards: Sequence[int],
    draft_seconds: float,
) -> None:
    """To each its share of a forward, by the positions that it had in it, and of what this daemon's own draft took, by
    its `forwards`."""
    positions = [1 + depth + one.replays for one, depth in zip(taking_part, depths, strict=True)]
    whole, drafted = sum(positions), sum(forwards)
    for one, own, made in zip(taking_part, positions, forwards, strict=True):
        one.seconds += seconds * own / whole + (draft_seconds * made / drafted if made else 0.0)


class PeersTime:
    """While requests of clients are in hand, peers may take two fifths of the engine's time from them: what their
    prompts and drafts take, and by how much less a step with peers gives the clients than steps without. Where it was
    more, those peers wait that had more than their part of it, or else the one that had most."""

    def __init__(self) -> None:
        self._clients = False
        self._alone: dict[int, tuple[float, float]] = {}  # tokens and seconds of late, by how many clients' sequences
        self._taken: dict[str, float] = {}  # seconds of late, by peer
        self._ahead = 0.0  # seconds that peers have had more
        self._waiting: set[str] = set()  # peers

    def holds(self, sequence: DecodeSequence) -> bool:
        """Whether it waits."""
        return self._clients and sequence.of_peer and sequence.request.client in self._waiting

    def begin(self, active: Iterable[DecodeSequence]) -> None:
        """Of a step. `active`: the sequences that are running or being prefilled."""
        self._clients = any(not one.of_peer for one in active)

    def prefilled(self, sequence: DecodeSequence, seconds: float) -> None:
        """A slice of its text took so long, by the target or by a drafter: it is charged for that."""
        sequence.seconds += seconds
        if not sequence.of_peer:
            self._took(seconds, seconds, {})
        else:
            self._took(seconds, 0.0, {sequence.request.client: 1})

    def decoded(self, taking_part: Sequence[DecodeSequence], step: DecodeStep) -> None:
        """What a step took, and gave."""
        clients, tokens, positions = 0, 0, dict[str, int]()
        for one, result in zip(taking_part, step.sequences, strict=True):
            if not one.of_peer:
                clients, tokens = clients + 1, tokens + 1 + len(result.accepted)
            else:
                positions[one.request.client] = positions.get(one.request.client, 0) + 1 + result.drafted
        seconds, (given, took) = step.draft_seconds + step.verify_seconds, self._alone.get(clients, (0.0, 0.0))
        if not positions:
            self._alone[clients] = given * _KEPT + tokens, took * _KEPT + seconds
            self._took(seconds, seconds, {})
        else:  # a part counts in any case, so that clients are seen alone now and then
            alone = tokens * took / given if given else 0.0
            self._took(seconds, min(alone, seconds * (1 - _LEAST_PART)), positions)

    def _took(self, seconds: float, clients: float, peers: Mapping[str, int]) -> None:
        """`clients`: of these, what they would have needed without `peers`, with so many positions each."""
        kept = max(0.0, 1 - seconds / _OF_LATE_SECONDS)
        self._taken = {peer: one * kept for peer, one in self._taken.items() if one * kept > _LITTLE_SECONDS}
        if not self._clients:
            return
        for peer, positions in peers.items():
            self._taken[peer] = self._taken.get(peer, 0.0) + (seconds - clients) * positions / sum(peers.values())
        self._ahead = max(0.0, self._ahead + seconds - clients / _CLIENTS_PART)
        if self._taken and self._ahead > (0.0 if self._waiting else _AHEAD_SECONDS):
            part = (1 - _CLIENTS_PART) * _OF_LATE_SECONDS / len(self._taken)
            bound = min(part, max(self._taken.values()))
            self._waiting = {peer for peer, one in self._taken.items() if one >= bound}
        else:
            self._waiting = set()
