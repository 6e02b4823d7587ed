"""What a verifier holds of a peer: its share of the target, its pace, what it has not read, whose turn it is."""

from __future__ import annotations

import asyncio
import time

import pytest

from draftd.engine.remote.verifier_link import Step, Verdict
from draftd.errors import ClientStalled
from draftd.service.peers import (
    MOST_UNREAD,
    MOST_WAITED_FOR,
    NEW_EDGES,
    RECENT_SECONDS,
    Connection,
    HeldSequence,
    Outbox,
    Peer,
    count,
    prefill_share,
)
from draftd.service.rate_limits import Share
from draftd.service.turns import fair, give_turns, in_order
from tests.wire_edge import opened


def test_more_than_a_share_is_waited_for() -> None:
    share, now = Share(0.25), time.monotonic() + 100
    for step in range(200):  # of 10 ms each, with nobody else about
        share.took(0.01, now + step * 0.01)
    now += 2.0
    assert share.exceeded(now)
    assert share.exceeded(now + 0.9), "no more is owed than was taken of late"
    assert not share.exceeded(now + 1.1)
    used, taken = 0.0, now + 10.0
    for step in range(1000):  # ten seconds, in which others want it too
        if not share.exceeded(taken + step * 0.01):
            share.took(0.01, taken + step * 0.01)
            used += 0.01
    assert used == pytest.approx(0.25 * 10 + 1.0, abs=0.05)


def test_whole_shares_are_never_exceeded() -> None:
    share, now = Share(1.0), time.monotonic()
    for _ in range(100):
        share.took(5.0, now)
    assert not share.exceeded(now)


def test_messages_that_come_to_nothing_are_read_slowly() -> None:
    async def seconds(verdicts: bool) -> float:
        connection, began = Connection(Peer("e", Share(1.0), prefill_share()), "address"), time.monotonic()
        for _ in range(200):
            if verdicts:
                connection.peer.pace.earned(4.0)
            await connection.handled()
        return time.monotonic() - began

    assert asyncio.run(seconds(verdicts=False)) >= 72 / 200 - 0.1
    assert asyncio.run(seconds(verdicts=True)) < 0.2


def test_who_reads_nothing_is_cut_off() -> None:
    async def read() -> None:
        outbox = Outbox()
        for message in range(MOST_UNREAD + 100):
            outbox.put(message)
        await outbox.take()

    with pytest.raises(ClientStalled, match="4096 messages were not read"):
        asyncio.run(read())


def held(connection: Connection, number: int) -> HeldSequence:
    return HeldSequence(
        connection,
        opened(number, [1, 2, 3], 3, 10),
        10,
        None,
        mailbox=None,  # type: ignore[arg-type]
        heard=lambda *told: None,
        wake=lambda: None,
        span=None,  # type: ignore[arg-type]
        deepest=8,
    )


def test_nothing_is_decided_for_who_does_not_read() -> None:
    woken = list[bool]()

    async def due() -> list[bool]:
        connection = Connection(Peer("e", Share(1.0), prefill_share()), "address", wake=lambda: woken.append(True))
        one = held(connection, 1)
        one.steps.begin([1, 2, 3])
        one.steps.offer(Step(1, 3, 3, run=100))
        found = [one.steps.due([1, 2, 3])]
        for message in range(MOST_WAITED_FOR):
            connection.outbox.put(message)
        found.append(one.steps.due([1, 2, 3]))
        await connection.next()
        return [*found, one.steps.due([1, 2, 3])]

    assert asyncio.run(due()) == [True, False, True]
    assert woken == [True], "or what waits for that would wait for the next that comes"


def test_busy_sequences_take_turns() -> None:
    peer = Peer("e", Share(1.0), prefill_share())
    connection = Connection(peer, "address")
    for number in range(5):
        peer.open[number] = held(connection, number)
        peer.open[number].began = True
    now = time.monotonic()
    peer.open[4].active = now - RECENT_SECONDS  # it wants nothing
    turns = []
    for tick in range(4):
        peer.give_turns({*in_order(peer.busy(now))[2:]}, now + tick / 100)
        turns.append({number for number, one in peer.open.items() if one.steps.allowed} - {4})
    assert [len(turn) for turn in turns] == [2] * 4
    assert turns[0] | turns[1] == turns[2] | turns[3] == {0, 1, 2, 3}
    assert peer.open[4].steps.allowed
    assert peer.give_turns(set(), now), "those that waited go on"


def test_a_peer_makes_steps_at_most_twice_as_long() -> None:
    gpu, cpu = [1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert fair(gpu, 1, 1.0) >= 8
    assert fair(cpu, 2, 1.0) == 2
    assert fair(cpu, 4, 2.0) == 2
    assert fair(cpu, 1, 9.0) == 1, "it has one all the same"
    assert fair([], 3, 1.0) == 3


def peer_with(edge: str, sequences: int) -> Peer:
    peer = Peer(edge, Share(1.0), prefill_share())
    connection = Connection(peer, "address")
    for number in range(sequences):
        peer.open[number] = held(connection, number)
        peer.open[number].began = True
    return peer


def verdicts(peer: Peer, number: int) -> None:
    for _ in range(number):
        count(peer.open[0], Verdict(0, 3, (7,), 0, 0), time.monotonic())


def test_an_edge_is_new_until_something_has_come_of_it() -> None:
    peer, now = peer_with("e", 1), time.monotonic()
    of_new_edges = peer.prefill
    verdicts(peer, 31)
    assert (peer.party, peer.prefill) == (NEW_EDGES, of_new_edges)
    of_new_edges.took(5.0, now)
    verdicts(peer, 1)
    assert peer.party == "e"
    assert of_new_edges.exceeded(now)
    assert not peer.prefill.exceeded(now), "what others took it need not wait for any more"


def test_edges_that_are_new_have_the_place_of_one() -> None:
    known, new = peer_with("known", 2), [peer_with(f"new {number}", 2) for number in range(20)]
    verdicts(known, 32)
    seconds = [1.0, 2.0, 3.0, 4.0]
    had, ticks = list[set[str]](), 100
    for tick in range(ticks):
        now = time.monotonic() + tick / 1000
        give_turns([*new, known], 1, 8, seconds, now)
        had.append({one.edge for one in [*new, known] if any(held.steps.allowed for held in one.open.values())})
    assert sum("known" in edges for edges in had) >= ticks / 2 - 1, "beside one other it has half of what peers have"
    assert len(set[str]().union(*had)) == 21, "and each of those has its turn"
