"""Peers have two fifths of the engine's time while clients want it, by what the clients lose to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from draftd.engine.fair_share import PeersTime
from draftd.engine.remote.peer import PeerSequence
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, SequenceStep
from tests.edge import Edge
from tests.rig import Collected, Rig, autoregressive, pair, request, tiny_llama


def sequence(peer: str = "") -> DecodeSequence:
    asked = request([1, 2, 3], autoregressive())
    if peer:
        asked = replace(asked, peer=PeerSequence(1, lambda told: None), client=peer)
    return DecodeSequence.of(asked, Collected(), 100)


def served(
    depths: dict[str, int], each: float, *, most: float = 60.0, time: PeersTime | None = None
) -> tuple[float, Counter[str]]:
    """What a client gets over `most` seconds, of what it gets alone; and how many steps each peer had. A peer's
    sequence with so many drafted tokens makes a step longer by `each` part for every position."""
    client, peers, time = sequence(), {name: sequence(name) for name in depths}, time or PeersTime()
    seconds, tokens, steps = 0.0, 0, Counter[str]()
    while seconds < most:
        time.begin([client, *peers.values()])
        taking_part = [name for name, one in peers.items() if not time.holds(one)]
        took = 0.02 * (1 + each * sum(1 + depths[name] for name in taking_part))
        results = [SequenceStep(depth, [], 1, 0) for depth in (0, *(depths[name] for name in taking_part))]
        time.decoded([client, *(peers[name] for name in taking_part)], DecodeStep(results, 0.0, took, []))
        seconds, tokens = seconds + took, tokens + 1
        steps.update(taking_part)
    return tokens * 0.02 / seconds, steps


def test_clients_lose_two_fifths_to_peers_at_most() -> None:
    share, steps = served({"one": 0}, each=5.0)
    assert 0.58 < share < 0.7
    assert steps["one"] * 0.12 > 0.3 * 60


def test_peers_that_cost_clients_little_need_not_wait() -> None:
    share, steps = served({"one": 4, "other": 0}, each=0.03)
    assert share > 0.8
    assert min(steps.values()) > 0.98 * 60 / (0.02 * 1.18)


def test_the_peer_that_takes_most_waits_first() -> None:
    share, steps = served({"heavy": 8, "light": 0}, each=0.25)
    assert share > 0.58
    assert steps["light"] > 1.3 * steps["heavy"]


def test_what_a_peer_had_while_there_was_no_other_is_soon_forgotten() -> None:
    time = PeersTime()
    served({"light": 0}, each=0.3, most=10.0, time=time)
    _, steps = served({"heavy": 16, "light": 0}, each=0.3, most=1.0, time=time)
    assert steps["light"] > 20


def test_it_is_forgotten_while_no_client_asks_too() -> None:
    time, heavy = PeersTime(), sequence("heavy")
    served({"light": 0}, each=0.3, most=10.0, time=time)
    assert time._taken
    time.begin([heavy])
    for _ in range(20):
        time.decoded([heavy], DecodeStep([SequenceStep(16, [], 1, 0)], 0.0, 0.1, []))
    assert not time._taken


def test_peers_that_wait_hold_no_client_up() -> None:
    rig, edges = Rig(pair(tiny_llama(3, scale=3.0), None), prefill_chunk=4), [Edge([7] * 90), Edge([5, 6])]
    time, held = rig.scheduler.local._peers_time, True
    for edge in edges:
        rig.add(edge.request(0, 30))
    while not edges[1].verdicts:
        rig.scheduler.step()
    edges[1].send([], run=30)
    time.holds = lambda one: held and one.request.peer is not None  # type: ignore[method-assign]
    before = [len(edge.verdicts) for edge in edges]
    asked = [rig.add(request(prompt, autoregressive(), max_tokens=20)) for prompt in ([1, 2, 3], [4] * 100)]
    for _ in range(80):
        rig.scheduler.step()
    assert [len(one.tokens) for one in asked] == [20, 20]
    assert [len(edge.verdicts) for edge in edges] == before
    held = False
    for _ in range(60):
        rig.scheduler.step()
    assert all(len(edge.verdicts) > known for edge, known in zip(edges, before, strict=True))
