"""What a peer drafts is verified with the daemon's own requests, and its text is the target's own."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import DRAFT_MODEL, PEER, PROMPT_LOOKUP, DecodeRequest, FinishReason, SamplingParams
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import CalibratedCosts, StepCosts
from draftd.engine.limits import Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels
from draftd.engine.remote.peer import PeerSequence
from draftd.engine.remote.verifier_link import Proposal, Verdict
from draftd.errors import InvalidRequest
from tests.models.tiny import tiny
from tests.rig import Collected, Rig, automatic, autoregressive, pair, request, speculative, steady_timer, tiny_llama
from tests.scripted_edge import Edge
from tests.unit.engine.test_states import recurrences
from tests.wait_until import loaded, until

PROMPTS = [[5, 6, 7, 8], [9] * 30, [3, 1, 4, 1, 5], [2, 7, 1, 8]]
SAMPLED = SamplingParams(temperature=0.8, seed=11)


def own_caches() -> Any:
    model = tiny_llama(5, sliding=24)
    model._draftd_not_batched = "its caches are to be mlx-lm's own"
    return model


MODELS = {
    "attention": lambda: tiny_llama(3, scale=3.0),
    "window": lambda: tiny_llama(5, sliding=24, scale=3.0),
    "chunked": lambda: tiny("llama4"),
    "recurrent": lambda: recurrences(2),
    "own caches": own_caches,
}


@pytest.fixture(scope="module", params=MODELS)
def models(request):
    return pair(MODELS[request.param](), tiny_llama(4))


@pytest.fixture(scope="module")
def llama():
    return pair(MODELS["attention"](), None)


def texts(models: LoadedModels, sampling: list[SamplingParams], tokens: int) -> list[list[int]]:
    asked = [
        request(prompt, autoregressive(), max_tokens=tokens, sampling=one)
        for prompt, one in zip(PROMPTS, sampling, strict=False)
    ]
    return [sink.tokens for sink in Rig(models).run(asked)]


@pytest.mark.parametrize("seed", range(2))
def test_verifier_text_is_the_targets_own_whatever_peers_propose(models, seed):
    chance, tokens = random.Random(seed), 40
    sampling = [SamplingParams(), SAMPLED, SamplingParams(), SAMPLED]
    expected = texts(models, sampling, tokens)
    rig, edges = Rig(models, max_batch=2 if seed else 8), [Edge(prompt) for prompt in PROMPTS[:3]]
    own = request(PROMPTS[3], automatic(4), max_tokens=tokens, sampling=sampling[3])
    asked = [edge.request(chance.choice([0, 1, 4, 8]), tokens, sampling[i]) for i, edge in enumerate(edges[:2])]
    asked.append(edges[2].asked(automatic(4, DRAFT_MODEL, PROMPT_LOOKUP, PEER), 8, tokens, sampling[2]))
    sinks = [rig.add(one) for one in [*asked, own]]
    for _ in range(2000):
        if rig.scheduler.idle:
            break
        for edge, text in zip(edges, expected, strict=False):
            if edge.finished is None and edge.verdicts and chance.random() < 0.4:
                edge.whim(chance, text)
        rig.scheduler.step()
    for edge, sink, text in zip(edges, sinks, expected, strict=False):
        edge.receive()
        assert edge.answer[:tokens] == text == sink.tokens
        assert edge.finished is FinishReason.LENGTH
        counts = sink.done.stats.counts
        assert sum(one.drafted + one.own_drafted for one in edge.verdicts) == counts.drafted
        assert sum(len(one.tokens) - 1 for one in edge.verdicts) == counts.accepted
    assert sinks[3].tokens == expected[3]


def test_verdict_to_edge_reports_accepted_tokens_queue_time_verify_time_and_batch_load(llama):
    (text,) = texts(llama, [SamplingParams()], 12)
    rig, edge = Rig(llama, max_batch=4), Edge(PROMPTS[0])
    sink = rig.add(replace(edge.request(4, 12), logprobs=1))
    rig.scheduler.step()
    edge.receive()
    (first,) = edge.verdicts
    assert (first.length, first.tokens, first.drafted, first.load) == (4, (text[0],), 0, 0.25)
    edge.send([*text[1:4], (text[4] + 1) % 32, *text[5:9]])
    rig.scheduler.step()
    verdict = edge.verdicts[-1]
    assert (verdict.length, verdict.tokens, verdict.accepted, verdict.drafted) == (5, tuple(text[1:5]), 3, 4)
    assert [one.logprob for one in verdict.logprobs] == [one.logprob for one in sink.logprobs[1:]]
    assert 0 < verdict.share_seconds == pytest.approx(verdict.verify_seconds)
    assert verdict.queue_seconds > 0
    assert edge.peer.wasted == 4
    assert rig.scheduler.local.resting == 1


def test_tokens_granted_by_edge_peer_are_decoded_in_pipelined_steps_with_local_requests(llama):
    expected = texts(llama, [SamplingParams()] * 2, 20)
    rig, edge = Rig(llama, timer=steady_timer()), Edge(PROMPTS[0])
    rig.add(edge.request(4, 20))
    sink = rig.add(request(PROMPTS[1], autoregressive(), max_tokens=20))
    rig.scheduler.step()
    edge.receive()
    edge.send([], run=10)
    for _ in range(9):
        rig.scheduler.step()
        assert rig.scheduler.local._ahead is not None
    rig.scheduler.step()
    edge.receive()
    edge.send(expected[0][11:14])
    rig.scheduler.step()
    rig.scheduler.step()
    edge.receive()
    assert (edge.answer, edge.verdicts[-1].accepted) == (expected[0][:15], 3)
    assert sink.tokens == expected[1][: len(sink.tokens)]


def test_edge_proposal_is_verified_although_step_launched_early_was_for_cancelled_request(llama):
    rig, edge = Rig(llama, timer=steady_timer()), Edge(PROMPTS[0])
    rig.add(edge.request(4, 20))
    own = request(PROMPTS[1], autoregressive(), max_tokens=20)
    rig.add(own)
    for _ in range(3):
        rig.scheduler.step()
    assert rig.scheduler.local._ahead is not None
    edge.receive()
    edge.send([1])
    rig.scheduler.end({own.id: FinishReason.CANCELLED})
    rig.scheduler.step()
    assert len(edge.verdicts) == 2


def test_cancelled_resting_peer_sequence_leaves_its_text_in_prefix_cache(models):
    rig, edge = Rig(models, prefix_bytes=1 << 24, timer=steady_timer()), Edge(PROMPTS[1])
    rig.add(wanted := edge.request(4, 200))
    rig.scheduler.step()
    edge.receive()
    edge.send([], run=40)
    rig.add(request(PROMPTS[0], autoregressive(), max_tokens=60))
    for _ in range(50):
        rig.scheduler.step()
    assert rig.scheduler.local.resting == 1
    rig.scheduler.end({wanted.id: FinishReason.CANCELLED})
    edge.receive()
    again = rig.add(request([*edge.text, 1, 2], autoregressive(), max_tokens=1))
    rig.drain()
    assert again.done.stats.cached_tokens == len(edge.text) - 1


def test_verification_step_waits_briefly_for_another_peers_expected_proposal(llama):
    now = 0.0
    prices = CalibratedCosts({1: 1.0, 2: 1.1}, {PROMPT_LOOKUP: {(1, 1): 1.0, (2, 1): 1.1}}, {}, 1, {})
    rig = Rig(llama, clock=lambda: now, gather_seconds=0.5, depth=DepthControl(StepCosts(prices), 4))
    edges = [Edge(prompt, clock=lambda: now) for prompt in PROMPTS[:2]]
    for edge in edges:
        rig.add(edge.request(4, 40))
    rig.scheduler.step()

    def at(moment: float, *sending: int) -> list[int]:
        nonlocal now
        now = moment
        for number in sending:
            edges[number].receive()
            edges[number].send([1])
        rig.scheduler.step()
        return [len(edge.verdicts) for edge in edges]

    assert at(1.0, 0) == [2, 1]  # nothing is known of when the other comes
    assert at(1.4, 1) == [2, 2]
    assert at(2.4, 0) == [2, 2]  # the other took 1.4 s last time
    assert rig.scheduler.pause == pytest.approx(0.5)
    assert at(2.7, 1) == [3, 3]
    assert at(3.8, 0) == [3, 3]
    assert at(4.4) == [4, 3]  # it has not come
    rig.add(request(PROMPTS[2], autoregressive(), max_tokens=40))
    assert at(4.5) == [4, 3]
    assert at(5.3, 0) == [5, 3]  # and where the daemon has requests of its own, nothing waits


@pytest.fixture
def heard():
    """A peer's sequence of which the text is 1 2 3 4, and its verdicts."""
    verdicts: list[Verdict] = []
    peer = PeerSequence(7, [1, 2, 3, 4], verdicts.append)
    return peer, verdicts


def test_newer_peer_proposal_replaces_pending_tokens_where_it_differs(heard):
    peer, _ = heard
    assert peer.offer(Proposal(7, 4, 4, (5, 6, 7)))
    assert peer.offer(Proposal(7, 6, 6, (8,)))
    assert list(peer.guess([1, 2, 3, 4], 9)) == [5, 6, 8]
    assert peer.wasted == 1
    for again in (Proposal(7, 4, 4, (5, 6)), Proposal(7, 6, 6, (8,)), Proposal(7, 2, 2, (3, 4))):
        assert peer.offer(again)
        assert list(peer.guess([1, 2, 3, 4], 9)) == [5, 6, 8]
    for stale in (Proposal(7, 4, 3, (5,)), Proposal(7, 6, 5, (8,)), Proposal(7, 9, 8), Proposal(7, 0, 4)):
        assert not peer.offer(stale)
    assert peer.stale == 4


def test_late_peer_proposal_is_used_as_far_as_it_agrees_with_decided_text(heard):
    peer, _ = heard
    assert peer.offer(Proposal(7, 4, 4, run=2))
    peer.guess([1, 2, 3, 4], 4)
    peer.report_step([5], 0, 0)
    assert peer.offer(Proposal(7, 3, 3, (4, 5, 6, 7), run=3))
    assert list(peer.guess([1, 2, 3, 4, 5], 9)) == [6, 7]
    peer.report_step([6, 7, 8], 2, 2)
    assert peer.offer(Proposal(7, 5, 5, (7, 7)))
    assert not peer.due([1, 2, 3, 4, 5, 6, 7, 8])


def test_edge_peer_grant_of_undrafted_tokens_is_not_used_up_by_proposed_tokens(heard):
    peer, verdicts = heard
    peer.offer(Proposal(7, 4, 4, (5,), run=2))
    peer.offer(Proposal(7, 4, 4, (5,), run=2))
    text = [1, 2, 3, 4]
    while peer.due(text):
        drafted = list(peer.guess(text, 4))
        peer.report_step([*drafted, 9], len(drafted), len(drafted))
        text += verdicts[-1].tokens
    assert text == [1, 2, 3, 4, 5, 9, 9, 9]


def test_failed_verification_step_does_not_change_text_of_peer_sequences(llama):
    expected = texts(llama, [SamplingParams()] * 2, 12)
    rig, edges = Rig(llama), [Edge(prompt) for prompt in PROMPTS[:2]]
    sinks = [rig.add(edge.request(4, 12)) for edge in edges]
    rig.scheduler.step()
    edges[0].receive()
    edges[0].send(expected[0][1:4])
    rig.target._batch.caches.rollback = None  # type: ignore[assignment, method-assign]
    rig.scheduler.step()
    assert [edge.finished for edge in edges] == [None, None]
    for _ in range(20):
        for edge in edges:
            edge.receive()
            edge.send([], run=1)
        rig.scheduler.step()
    assert [sink.tokens for sink in sinks] == expected
    assert [edge.answer for edge in edges] == expected
    assert sinks[0].done.degraded
    assert not sinks[1].done.degraded


@pytest.fixture
def engine(llama):
    worker = EngineWorker(lambda progress: llama, limits=Limits(max_batch=2, max_draft_tokens=2))
    worker.start()
    loaded(worker)
    yield worker
    worker.close()


def asked(worker: EngineWorker, edge: Edge, tokens: int = 40) -> tuple[DecodeRequest, Collected]:
    wanted, sink = edge.request(4, tokens), Collected()
    worker.submit(wanted, sink)
    until(lambda: bool(edge.verdicts), 30, "the first token")
    return wanted, sink


def test_engine_with_only_resting_peers_sleeps_and_wakes_on_proposal(engine):
    edges = [Edge(prompt, engine.wake) for prompt in PROMPTS]
    for edge in edges:  # more than decode together
        asked(engine, edge)
    until(lambda: engine.status().resting == 4, 10, "rest")
    steps = 0

    def counted(step: Any = engine._engine.scheduler.step) -> None:
        nonlocal steps
        steps += 1
        step()

    engine._engine.scheduler.step = counted
    time.sleep(0.2)
    assert steps <= 2
    for edge in edges:
        before = len(edge.verdicts)
        edge.receive()
        edge.send([1, 2])
        until(lambda edge=edge, before=before: len(edge.verdicts) > before, 0.4, "a verdict")
    assert engine.step_seconds > 0 < engine.prefill_seconds


def test_resting_peer_sequence_is_cancelled_at_once(engine):
    wanted, sink = asked(engine, Edge(PROMPTS[0], engine.wake))
    until(lambda: engine.status().resting == 1, 10, "rest")
    engine.cancel(wanted.id)
    until(lambda: sink.outcome is not None, 0.4, "the end")
    assert sink.done.reason is FinishReason.CANCELLED
    until(lambda: (engine.status().resting, engine.status().kv_cache_bytes) == (0, 0), 10, "its caches to go")


def test_closing_engine_cancels_resting_peer_sequences(engine):
    _, sink = asked(engine, Edge(PROMPTS[0], engine.wake))
    assert engine.close(0.1)
    assert sink.done.reason is FinishReason.CANCELLED


def test_client_request_for_peer_drafter_is_refused(engine):
    with pytest.raises(InvalidRequest):
        engine.submit(request(PROMPTS[0], speculative(4, PEER)), Collected())
