"""The target's time, shared between clients and peers. Engine thread only; not used without a peer's sequence.

Clients are one party, each peer is one, and all new peers are one. While clients have requests, all peers together get
two fifths of the time. A peer gets at most its share (`verify.target_share_per_peer`) while anything else wants the
target. Peers are charged with the time that clients lose: the step's time less what the clients' tokens would have
taken without peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep
from draftd.engine.turn import rests
from draftd.token_bucket import TokenBucket

_CLIENTS_PART = 0.6  # of the engine's time
_AHEAD_SECONDS = 0.02  # by which peers may exceed their part
_OF_LATE_SECONDS, _LITTLE_SECONDS = 0.4, 0.004  # the span that is remembered; less taken time than this is forgotten
_LEAST_PART = 1 / 8  # of a step with peers that is charged to them in any case
_KEPT = 0.9  # weight of the earlier steps without peers, after another
_BURST_SECONDS = 1.0  # of the target that a peer may use at once
_RECENT = 0.1  # weight of the latest step in the width of a party's sequences
_LONGER = 2.0  # the factor by which peers may lengthen a step


def charge(
    taking_part: Sequence[DecodeSequence],
    depths: Sequence[int],
    seconds: float,
    forwards: Sequence[int],
    draft_seconds: float,
) -> None:
    """Adds each sequence's share of a step to its `seconds`: of the target's `seconds` by its positions in the forward,
    of `draft_seconds` by its `forwards` of this daemon's draft model."""
    positions = [1 + depth + sequence.replays for sequence, depth in zip(taking_part, depths, strict=True)]
    whole, drafted = sum(positions), sum(forwards)
    for sequence, own, own_forwards in zip(taking_part, positions, forwards, strict=True):
        sequence.seconds += seconds * own / whole + (draft_seconds * own_forwards / drafted if own_forwards else 0.0)


class FairShare:
    """Decides which sequences of peers take part while others want the target."""

    def __init__(self, part_of_peer: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`part_of_peer`: the largest part of the target's time that a peer gets while others want it."""
        self._part_of_peer, self._clock = part_of_peer, clock
        self._clients = False
        self._alone: dict[int, tuple[float, float]] = {}  # recent tokens and seconds without peers, by sequences
        self._used_seconds: dict[str, float] = {}  # recent seconds, by party
        self._ahead = 0.0  # seconds that peers have had beyond their part
        self._waiting: set[str] = set()  # parties
        self._wanting: set[str | None] = set()  # parties that want the target; None: clients
        self._allowances: dict[str, TokenBucket] = {}
        self._widths: dict[str, float] = {}  # recent positions of a sequence in a step, by party

    def begin(self, wanting: Iterable[DecodeSequence]) -> None:
        """Begins a step. `wanting`: all sequences, except those that rest (wait for their peer's next step) and got no
        token within the last second."""
        self._wanting = {sequence.request.client if sequence.of_peer else None for sequence in wanting}
        self._clients = None in self._wanting
        parties = self._wanting | self._used_seconds.keys()
        self._allowances = {party: one for party, one in self._allowances.items() if party in parties}
        self._widths = {party: width for party, width in self._widths.items() if party in parties}

    def holds(self, sequence: DecodeSequence) -> bool:
        """Returns whether the sequence must wait, because its party has used its share and others want the target."""
        if not sequence.of_peer:
            return False
        party = sequence.request.client
        if self._clients and party in self._waiting:
            return True
        allowance = self._allowances.get(party) if len(self._wanting) > 1 else None
        return allowance is not None and allowance.spend(0.0) > 0

    def choose(
        self, running: Sequence[DecodeSequence], clients_waiting: int, seconds: Sequence[float], most: int
    ) -> list[DecodeSequence]:
        """Returns the running sequences of clients, and the peers' sequences that may take part in a step of at most
        `most` sequences. `clients_waiting`: clients' sequences that do not run yet. `seconds[i]`: a plain step of i + 1
        sequences; empty if not measured."""
        clients = clients_waiting + sum(not sequence.of_peer for sequence in running)
        parties: dict[str, list[DecodeSequence]] = {}
        for sequence in running:
            if sequence.of_peer and not self.holds(sequence):
                parties.setdefault(sequence.request.client, []).append(sequence)
        wanting = clients + sum(map(len, parties.values()))
        places = []
        for party, sequences in parties.items():
            # A party's turn is as old as its youngest token, or the party with most sequences would always be next.
            latest = max(one.stats.last_token or 0.0 for one in sequences)
            sequences.sort(key=lambda one: (rests(one), one.stats.last_token or 0.0))  # oldest token first
            others = wanting - len(sequences)
            if others:  # a place is left for what comes next
                room = min(most - others - 1, affordable_sequences(seconds, others, self._widths.get(party, 1.0)))
                del sequences[max(1, room) :]
            places += [(place, self._used_seconds.get(party, 0.0), latest, one) for place, one in enumerate(sequences)]
        if clients:
            places.sort(key=lambda place: place[:3])
            width = max((self._widths.get(party, 1.0) for party in parties), default=1.0)
            del places[max(1, min(most - clients - 1, affordable_sequences(seconds, clients, width))) :]
        chosen = {sequence.id for *_, sequence in places}
        return [sequence for sequence in running if not sequence.of_peer or sequence.id in chosen]

    def charge_prefill(self, sequence: DecodeSequence, seconds: float) -> None:
        """Charges a sequence for a slice of its text, by the target or by a drafter."""
        sequence.seconds += seconds
        if not sequence.of_peer:
            self._took(seconds, seconds, {})
        else:
            self._took(seconds, 0.0, {sequence.request.client: 1})

    def charge_step(self, taking_part: Sequence[DecodeSequence], step: DecodeStep) -> None:
        """Charges a step to the parties in it. Clients count by the time that their tokens would have taken without
        peers; peers share the rest by their positions."""
        clients, tokens, positions = 0, 0, dict[str, int]()
        for sequence, result in zip(taking_part, step.sequences, strict=True):
            if not sequence.of_peer:
                clients, tokens = clients + 1, tokens + 1 + len(result.accepted)
                continue
            party, width = sequence.request.client, 1 + result.drafted
            positions[party] = positions.get(party, 0) + width
            self._widths[party] = self._widths.get(party, 1.0) * (1 - _RECENT) + width * _RECENT
        seconds, (tokens_before, took) = (
            step.draft_seconds + step.verify_seconds,
            self._alone.get(clients, (0.0, 0.0)),
        )
        if not positions:
            self._alone[clients] = tokens_before * _KEPT + tokens, took * _KEPT + seconds
            self._took(seconds, seconds, {})
        else:  # part is always charged, so that clients sometimes run alone and are measured
            alone = tokens * took / tokens_before if tokens_before else 0.0
            self._took(seconds, min(alone, seconds * (1 - _LEAST_PART)), positions)

    def _took(self, seconds: float, clients: float, parties: Mapping[str, int]) -> None:
        """Charges `seconds` of the target. `clients`: the seconds that the clients' sequences alone would have taken.
        `parties`: positions computed for each peer, by which peers share the difference."""
        remembered = max(0.0, 1 - seconds / _OF_LATE_SECONDS)
        self._used_seconds = {
            party: used * remembered
            for party, used in self._used_seconds.items()
            if used * remembered > _LITTLE_SECONDS
        }
        all_positions = sum(parties.values())
        for party, positions in parties.items():
            if self._part_of_peer < 1:
                fresh = TokenBucket(self._part_of_peer, _BURST_SECONDS, longest=1.0, clock=self._clock)
                self._allowances.setdefault(party, fresh).spend(seconds * positions / all_positions)
            if self._clients:
                used = (seconds - clients) * positions / all_positions
                self._used_seconds[party] = self._used_seconds.get(party, 0.0) + used
        if not self._clients:
            return
        self._ahead = max(0.0, self._ahead + seconds - clients / _CLIENTS_PART)
        if self._used_seconds and self._ahead > (0.0 if self._waiting else _AHEAD_SECONDS):
            part = (1 - _CLIENTS_PART) * _OF_LATE_SECONDS / len(self._used_seconds)
            bound = min(part, max(self._used_seconds.values()))
            self._waiting = {party for party, used in self._used_seconds.items() if used >= bound}
        else:
            self._waiting = set()


def affordable_sequences(seconds: Sequence[float], others: int, width: float) -> int:
    """Returns how many sequences of `width` positions each can join `others` sequences of one position without more
    than doubling the step's time; at least 1. `seconds[i]`: a plain step of i + 1 sequences; if unknown, as many as
    `others` may join."""
    if not seconds or not seconds[0]:
        return max(1, others)

    def step(positions: float) -> float:
        count = len(seconds)
        slope = (seconds[-1] - seconds[0]) / max(1, count - 1)
        return (
            seconds[max(1, round(positions)) - 1] if positions <= count else seconds[-1] + slope * (positions - count)
        )

    bound, most = _LONGER * step(others), 1
    while most < 2 * len(seconds) and step(others + (most + 1) * width) <= bound:
        most += 1
    return most
