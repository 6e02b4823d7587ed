"""Peers have two fifths of the target's time while clients want it, each of them its part, and turns of that."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from draftd.engine.fair_share import FairShare, affordable_sequences
from draftd.engine.remote.peer import PeerSequence
from draftd.engine.remote.verifier_link import Proposal
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, SequenceStep
from tests.rig import Collected, Rig, autoregressive, pair, request, tiny_llama
from tests.scripted_edge import Edge


def sequence(peer: str = "") -> DecodeSequence:
    asked = request([1, 2, 3], autoregressive())
    if peer:
        asked = replace(asked, peer=PeerSequence(1, asked.prompt, lambda told: None), client=peer)
    return DecodeSequence.of(asked, Collected(), 100)


def served(
    depths: dict[str, int], each: float, *, most: float = 60.0, time: FairShare | None = None
) -> tuple[float, Counter[str]]:
    """What a client gets over `most` seconds, of what it gets alone; and how many steps each peer had. A peer's
    sequence with so many drafted tokens makes a step longer by `each` part for every position."""
    client, peers, time = sequence(), {name: sequence(name) for name in depths}, time or FairShare()
    seconds, tokens, steps = 0.0, 0, Counter[str]()
    while seconds < most:
        time.begin([client, *peers.values()])
        taking_part = [name for name, one in peers.items() if not time.holds(one)]
        took = 0.02 * (1 + each * sum(1 + depths[name] for name in taking_part))
        results = [SequenceStep(depth, [], 1, 0) for depth in (0, *(depths[name] for name in taking_part))]
        time.charge_step([client, *(peers[name] for name in taking_part)], DecodeStep(results, 0.0, took, []))
        seconds, tokens = seconds + took, tokens + 1
        steps.update(taking_part)
    return tokens * 0.02 / seconds, steps


def test_edge_peers_take_at_most_two_fifths_of_target_time_from_local_clients() -> None:
    share, steps = served({"one": 0}, each=5.0)
    assert 0.58 < share < 0.7
    assert steps["one"] * 0.12 > 0.3 * 60


def test_edge_peer_sequences_that_barely_slow_local_clients_are_not_held_back() -> None:
    share, steps = served({"one": 4, "other": 0}, each=0.03)
    assert share > 0.8
    assert min(steps.values()) > 0.98 * 60 / (0.02 * 1.18)


def test_edge_peer_using_most_target_time_is_held_back_first() -> None:
    share, steps = served({"heavy": 8, "light": 0}, each=0.25)
    assert share > 0.58
    assert steps["light"] > 1.3 * steps["heavy"]


def test_fair_share_soon_forgets_target_time_used_by_lone_edge_peer() -> None:
    time = FairShare()
    served({"light": 0}, each=0.3, most=10.0, time=time)
    _, steps = served({"heavy": 16, "light": 0}, each=0.3, most=1.0, time=time)
    assert steps["light"] > 20


def test_fair_share_forgets_edge_peer_usage_while_no_local_client_runs() -> None:
    time, heavy = FairShare(), sequence("heavy")
    served({"light": 0}, each=0.3, most=10.0, time=time)
    assert time._used_seconds
    time.begin([heavy])
    for _ in range(20):
        time.charge_step([heavy], DecodeStep([SequenceStep(16, [], 1, 0)], 0.0, 0.1, []))
    assert not time._used_seconds


def running(number: int, party: str = "", *, last_token: float = 0.0, due: bool = True) -> DecodeSequence:
    """A sequence that runs: of a client, or of a party of peers, with a step in hand."""
    made = sequence(party)
    made.id, made.stats.last_token = number, last_token
    if party and due:
        assert made.request.peer is not None
        made.request.peer.offer(Proposal(1, 3, 3, run=9))  # type: ignore[attr-defined]
    return made


def chosen(sequences: list[DecodeSequence], seconds: list[float], most: int = 8, waiting: int = 0) -> list[int]:
    shares = FairShare()
    shares.begin(sequences)
    return [one.id for one in shares.choose(sequences, waiting, seconds, most)]


CPU, GPU = [float(size) for size in range(1, 9)], [1 + size / 20 for size in range(8)]


def test_step_admits_edge_peer_sequences_up_to_twice_its_time_with_clients_alone() -> None:
    assert affordable_sequences(GPU, 1, 1.0) >= 8
    assert [affordable_sequences(CPU, 2, 1.0), affordable_sequences(CPU, 4, 2.0)] == [2, 2]
    assert affordable_sequences(CPU, 1, 9.0) == 1, "it has one all the same"
    assert affordable_sequences([], 3, 1.0) == 3
    assert chosen([running(1), *(running(number, "p") for number in range(2, 7))], CPU) == [1, 2]


def test_edge_peer_sequences_leave_one_batch_place_free_while_clients_want_the_target() -> None:
    sequences = [running(1), *(running(number, "p") for number in range(2, 9))]
    assert len(chosen(sequences, GPU)) == 7
    assert chosen([running(number, "p") for number in range(8)], CPU) == list(range(8)), "nothing else wants it"
    assert len(chosen([running(number, "p") for number in range(8)], CPU, waiting=1)) == 1


def test_edge_peer_sequence_with_pending_proposal_and_longest_wait_is_chosen_first() -> None:
    sequences = [running(1), running(2, "p", last_token=5.0), running(3, "p", last_token=4.0)]
    assert chosen(sequences, CPU) == [1, 3]
    sequences[2] = running(3, "p", last_token=4.0, due=False)
    assert chosen(sequences, CPU) == [1, 2]


def test_edge_peers_get_equal_steps_regardless_of_their_sequence_count() -> None:
    many = [running(number, "many", last_token=number) for number in range(2, 8)]
    shares, had, last = FairShare(), Counter[str](), 10.0
    sequences = [running(1), *many, running(9, "few", last_token=3.5)]
    for _ in range(20):
        shares.begin(sequences)
        for one in shares.choose(sequences, 0, CPU, 8):
            if one.of_peer:
                had[one.request.client] += 1
                last = one.stats.last_token = last + 1
    assert had == {"many": 10, "few": 10}


def test_edge_peer_is_limited_to_configured_share_while_another_uses_the_target() -> None:
    now = 0.0
    shares, peer, other = FairShare(0.25, lambda: now), running(1, "p"), running(2, "q")
    step, had = DecodeStep([SequenceStep(0, [], 1, 0)], 0.0, 0.01, []), 0.0
    for _ in range(200):  # it has all, and owes no more of that than a second gives
        shares.begin([peer])
        assert not shares.holds(peer)
        shares.charge_step([peer], step)
        now += 0.01
    for _ in range(1000):
        shares.begin([peer, other])
        if not shares.holds(peer):
            shares.charge_step([peer], step)
            had += 0.01
        now += 0.01
    assert 0.2 * 10 < had < 0.25 * 10 + 1.0
    whole = FairShare(1.0, lambda: now)
    whole.begin([peer, running(3, "q")])
    for _ in range(100):
        whole.charge_step([peer], DecodeStep([SequenceStep(0, [], 1, 0)], 0.0, 5.0, []))
    assert not whole.holds(peer), "no part of it was set"


def test_held_back_edge_peers_do_not_delay_local_client_requests() -> None:
    rig, edges = Rig(pair(tiny_llama(3, scale=3.0), None), prefill_chunk=4), [Edge([7] * 90), Edge([5, 6])]
    time, held = rig.scheduler.local._shares, True
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
