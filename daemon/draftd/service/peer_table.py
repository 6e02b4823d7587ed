"""All peers of a verifier, connected or remembered, and what each may have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from draftd.errors import TooManyPeers, TooManySequences, TooManyTokens
from draftd.service.peers import Peer, sum_counts
from draftd.settings.remote import VerifySettings
from draftd.strategies import PeerCounts, VerificationStatus
from draftd.token_bucket import TokenBucket

RETRY_SECONDS = 5.0
_NEW_EDGES_PER_SECOND = 1.0  # edges never seen before
_MOST_NEW_EDGES = 64.0  # at once
_REMEMBERED = 4  # peers, for each that may be connected


class PeerTable:
    """The peers by edge, in the order of their latest connections. Event loop only, except `status`."""

    def __init__(self, limits: VerifySettings, capacity: int) -> None:
        """`capacity`: of the engine's queue."""
        self._limits, self._capacity = limits, capacity
        self._peers: OrderedDict[str, Peer] = OrderedDict()
        self._forgotten = PeerCounts()  # counts of forgotten peers
        self._new_edges = TokenBucket(_NEW_EDGES_PER_SECOND, _MOST_NEW_EDGES)

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def get(self, edge: str) -> Peer | None:
        return self._peers.get(edge)

    def status(self, refusals: dict[str, int]) -> VerificationStatus:
        """Returns connections, counts and open sequences. `refusals`: by reason. Any thread."""
        peers = [(one.connection, one.total(), len(one.open)) for one in self]
        connected = {at.address: counts for at, counts, _ in peers if at is not None}
        total = sum_counts([self._forgotten, *(counts for _, counts, _ in peers)])
        total.refused = sum(refusals.values())
        return VerificationStatus(connected, total, sum(held for _, _, held in peers), refusals)

    def admit(self, edge: str) -> Peer:
        """Returns the peer of an edge that connects. Raises TooManyPeers."""
        earlier, connected, most = self._peers.get(edge), self._connected, self._limits.peers
        if connected >= most:
            raise TooManyPeers(
                f"{connected} peers are connected, and at most {most} may be (verify.peers)", retry_after=RETRY_SECONDS
            )
        if earlier is None and (seconds := self._new_edges.take()):
            raise TooManyPeers("new edges connect too fast", retry_after=seconds)
        peer = self._peers[edge] = earlier or Peer(edge)
        self._peers.move_to_end(edge)
        return peer

    def surplus(self) -> list[Peer]:
        """Returns the disconnected peers whose open sequences have to end because there are too many peers: those that
        were disconnected first."""
        disconnected = [peer for peer in self if peer.connection is None and peer.open]
        disconnected.sort(key=lambda peer: peer.lost_since)
        return disconnected[: max(0, self._connected + len(disconnected) - self._limits.peers)]

    def forget(self) -> None:
        """Forgets the peers that connected longest ago, if there are too many."""
        spare = len(self._peers) - _REMEMBERED * self._limits.peers
        for edge, peer in list(self._peers.items()):
            if spare > 0 and peer.connection is None and not peer.sequences:
                self._forgotten = sum_counts([self._forgotten, self._peers.pop(edge).counts])
                spare -= 1

    def same_share(self, peer: Peer) -> list[Peer]:
        """Returns the peers that share a key with `peer`, itself included."""
        return [other for other in self if other.share_key == peer.share_key]

    def check_limits(self, peer: Peer, tokens: int) -> None:
        """Raises TooManySequences or TooManyTokens if the peer may not open a sequence of `tokens` tokens."""
        most, context = self._limits.sequences_per_peer, self._limits.tokens_per_peer
        if len(peer.open) >= most:
            why = f"{len(peer.open)} sequences are open, and a peer may have {most} (verify.sequences_per_peer)"
            raise TooManySequences(why, retry_after=RETRY_SECONDS)
        waiting = sum(other.waiting for other in self)
        own_waiting = sum(other.waiting for other in self.same_share(peer))
        if waiting + own_waiting >= max(1, self._capacity // 2):
            why = f"{waiting} sequences of peers wait, {own_waiting} of this share: half of the queue is for clients, "
            why += "and a peer leaves as many places to other peers as it takes"
            raise TooManySequences(why, retry_after=RETRY_SECONDS)
        if peer.reserved + tokens > context:
            why = f"{tokens} tokens of context and {peer.reserved} of open sequences"
            why += f" are more than a peer may have: {context} (verify.tokens_per_peer)"
            raise TooManyTokens(why, retry_after=RETRY_SECONDS)

    @property
    def _connected(self) -> int:
        return sum(peer.connection is not None for peer in self._peers.values())
