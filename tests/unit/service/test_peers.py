"""A verifier's record of a peer: its pace, its unread messages, whether it is new."""

from __future__ import annotations

import asyncio
import time

import pytest

from draftd.engine.remote.verifier_link import Proposal, Verdict
from draftd.errors import ClientStalled
from draftd.service.peers import (
    MOST_UNREAD,
    NEW_EDGES,
    PAUSE_UNREAD,
    Peer,
    PeerConnection,
    VerifiedSequence,
    count_verdict,
)
from tests.wire_edge import opened


def test_verifier_throttles_edge_messages_that_earn_no_verdicts() -> None:
    async def seconds(verdicts: bool) -> float:
        connection, began = PeerConnection(Peer("e"), "address"), time.monotonic()
        for _ in range(200):
            if verdicts:
                connection.peer.pace.earn(4.0)
            await connection.throttle()
        return time.monotonic() - began

    assert asyncio.run(seconds(verdicts=False)) >= 72 / 200 - 0.1
    assert asyncio.run(seconds(verdicts=True)) < 0.2


def test_verifier_cuts_off_an_edge_with_4096_unread_messages() -> None:
    async def read() -> None:
        connection = PeerConnection(Peer("e"), "address")
        for message in range(MOST_UNREAD + 100):
            connection.put(message)
        await connection.next()

    with pytest.raises(ClientStalled, match="4096 messages were not read"):
        asyncio.run(read())


def held(connection: PeerConnection, number: int) -> VerifiedSequence:
    return VerifiedSequence(
        connection,
        opened(number, [1, 2, 3], 3, 10),
        10,
        None,
        mailbox=None,  # type: ignore[arg-type]
        on_message=lambda *told: None,
        wake=lambda: None,
        span=None,  # type: ignore[arg-type]
        deepest=8,
    )


def test_verifier_pauses_steps_for_an_edge_with_too_many_unread_messages() -> None:
    woken = list[bool]()

    async def due() -> list[bool]:
        connection = PeerConnection(Peer("e"), "address", wake=lambda: woken.append(True))
        one = held(connection, 1)
        one.proposals.offer(Proposal(1, 3, 3, run=100))
        found = [one.proposals.due([1, 2, 3])]
        for message in range(PAUSE_UNREAD):
            connection.put(message)
        found.append(one.proposals.due([1, 2, 3]))
        await connection.next()
        return [*found, one.proposals.due([1, 2, 3])]

    assert asyncio.run(due()) == [True, False, True]
    assert woken == [True], "or what waits for that would wait for the next that comes"


def peer_with(edge: str, sequences: int) -> Peer:
    peer = Peer(edge)
    connection = PeerConnection(peer, "address")
    for number in range(sequences):
        peer.open[number] = held(connection, number)
        peer.open[number].began = True
    return peer


def verdicts(peer: Peer, number: int) -> None:
    for _ in range(number):
        count_verdict(peer.open[0], Verdict(0, 3, (7,), 0, 0))


def test_edge_counts_as_new_until_its_32nd_verdict() -> None:
    peer = peer_with("e", 1)
    verdicts(peer, 31)
    assert peer.share_key == NEW_EDGES
    verdicts(peer, 1)
    assert peer.share_key == "e"
