"""Sequences that another daemon's target decodes: their text is that target's, whatever comes between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    TARGET,
    DecodePlan,
    DecodeRequest,
    FinishReason,
    SamplingParams,
    WorkloadClass,
)
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.remote.verifier_link import OpenSequence, Proposal, Verdict
from draftd.strategies import Strategy, Verifier
from tests.rig import Rig, automatic, autoregressive, request, speculative
from tests.scripted import ScriptedModel, scripted_models
from tests.scripted_link import MODEL, Clock, Edge, Heard, ScriptedLink

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3]]
TOKENS = 40
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=4.0, seed=7)


def remote(plan: DecodePlan) -> DecodePlan:
    return replace(plan, strategy=Strategy.SPECULATIVE if plan.drafter else Strategy.REMOTE)


def asked(plan: DecodePlan, prompt=PROMPTS[0], **options) -> DecodeRequest:
    return request(prompt, remote(plan), max_tokens=TOKENS, **options)


@pytest.fixture(scope="module")
def texts():
    """What the remote target makes of each prompt, further than any request asks."""
    found = {}

    def of(prompt, sampling=GREEDY) -> list[int]:
        key = tuple(prompt), sampling
        if key not in found:
            one = request(prompt, autoregressive(), max_tokens=TOKENS + 40, sampling=sampling)
            found[key] = [*prompt, *Rig(scripted_models(0.8)).run([one])[0].tokens]
        return found[key]

    return of


@pytest.fixture
def answer(texts):
    return lambda prompt=PROMPTS[0], sampling=GREEDY: texts(prompt, sampling)[len(prompt) :][:TOKENS]


@pytest.fixture
def edge(texts):
    def made(*, acceptance: float = 0.8, limits=None, **link) -> Edge:
        def whole(opened: OpenSequence) -> list[int]:
            return texts(opened.tokens[: opened.options.prompt], opened.options.sampling)

        return Edge(Rig(scripted_models(acceptance)), ScriptedLink(whole, Clock(), **link), **(limits or {}))

    return made


def reconciled(edge: Edge, sinks: list[Heard]) -> None:
    """Both sides have counted the same."""
    edge.settle()
    there, here, stats = edge.link.counts, edge.remote.status, [sink.done.stats for sink in sinks]
    assert there.tokens - there.discarded == here.counts.tokens == sum(sink.remote.tokens for sink in sinks)
    assert there.drafted == sum(one.counts.drafted for one in stats) + here.late_drafted
    assert there.accepted == sum(one.counts.accepted for one in stats) + here.late_accepted
    assert there.verdicts == here.counts.verdicts + here.counts.late
    assert all(one.counts.emitted == one.counts.accepted + one.counts.steps - one.counts.cut for one in stats)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize(("depth", "round_trip"), [(0, 0.15), (1, 0.0), (1, 0.15), (4, 0.015), (8, 0.0), (8, 0.15)])
def test_remotely_verified_text_equals_remote_targets_own_text(edge, answer, depth, round_trip, sampling):
    one = edge(round_trip=round_trip)
    plan = speculative(depth) if depth else autoregressive()
    sinks = one.run(*(asked(plan, prompt, sampling=sampling) for prompt in PROMPTS))
    for prompt, sink in zip(PROMPTS, sinks, strict=True):
        assert sink.tokens == answer(prompt, sampling)
        assert sink.done.reason is FinishReason.LENGTH
        assert set(sink.verifiers) == {Verifier.REMOTE}
        assert bool(sink.done.stats.counts.drafted) == bool(depth)
    reconciled(one, sinks)


@pytest.mark.parametrize("round_trip", [0.0, 0.03, 0.3])
def test_remotely_verified_text_is_the_same_with_automatic_depth(edge, answer, round_trip):
    one = edge(round_trip=round_trip, acceptance=0.95)
    sinks = one.run(*(asked(automatic(8), prompt) for prompt in PROMPTS))
    assert [sink.tokens for sink in sinks] == [answer(prompt) for prompt in PROMPTS]
    reconciled(one, sinks)


def test_drafting_ahead_of_remote_verdicts_hides_round_trips(edge):
    def seconds(in_flight: int) -> tuple[float, Heard]:
        one = edge(acceptance=1.0, round_trip=0.05, limits={"in_flight": in_flight})
        (sink,) = one.run(asked(speculative(4)))
        return one.link.clock.now, sink

    (alone, waited), (ahead, hid) = seconds(1), seconds(4)
    assert waited.remote.hidden <= 1  # of the prefill
    assert hid.remote.hidden > hid.remote.verdicts // 2
    assert ahead < 0.6 * alone


def test_remote_proposals_discarded_unverified_are_counted_as_wasted(edge):
    (sink,) = edge(acceptance=0.0, round_trip=0.05).run(asked(speculative(4)))
    assert sink.done.stats.counts.accepted == 0
    assert sink.remote.proposed == sink.done.stats.counts.drafted + sink.remote.wasted
    assert sink.remote.hidden == 0 < sink.remote.wasted


def test_remote_and_local_sequences_decode_side_by_side_with_shared_draft_forwards(edge, answer, monkeypatch):
    one = edge(round_trip=0.02)
    drafter, together = one.rig.scheduler.local.drafting.drafters[DRAFT_MODEL], list[int]()
    propose = drafter.propose
    monkeypatch.setattr(drafter, "propose", lambda s, *rest: (together.append(len(s)), propose(s, *rest))[1])
    local = [one.rig.add(request(prompt, speculative(3), max_tokens=TOKENS)) for prompt in PROMPTS]
    sinks = one.run(*(asked(speculative(4), prompt) for prompt in PROMPTS))
    assert [sink.tokens for sink in (*local, *sinks)] == 2 * [answer(prompt) for prompt in PROMPTS]
    assert 3 in together


def test_remote_stream_grant_is_renewed_before_it_runs_out(edge, answer):
    for plan in (autoregressive(), automatic(8)):
        one = edge(round_trip=0.3, acceptance=0.3)
        (sink,) = one.run(asked(plan))
        assert sink.tokens == answer()
        assert one.link.clock.now == pytest.approx(0.3 + 0.01 * (TOKENS - 1))
        assert not any(isinstance(message, Proposal) and message.proposed for message in one.link.sent)
        assert bool(sink.done.stats.counts.draft_forwards) == bool(plan.drafter)  # to see whether it would pay


@pytest.mark.parametrize("own", [1, 7])
def test_edge_drafts_only_if_faster_than_the_verifiers_own_drafts(edge, texts, own):
    """A streamed token takes 11 ms / 2, or 17 ms / 8; a proposal of 4 tokens gives about 4 in 15 ms."""
    model = replace(MODEL, drafts=True)
    one = edge(round_trip=0.001, acceptance=0.9, own=own, model=model, limits={"in_flight": 1})
    sinks = []
    for _ in range(6):
        sinks += one.run(asked(automatic(4)))
    assert [sink.tokens for sink in sinks] == [texts(PROMPTS[0])[len(PROMPTS[0]) :][:TOKENS]] * 6
    pace = one.remote.control.costs.streaming(WorkloadClass.UNSPECIFIED)
    assert pace == pytest.approx((0.01 + 0.001 * own) / (own + 1), rel=0.3)
    assert bool(sinks[-1].remote.proposed) == (own == 1)
    assert not sinks[0].remote.proposed, "how fast it is alone was to be seen first"
    reconciled(one, sinks)


def test_duplicated_remote_messages_do_not_change_text_or_counts(edge, answer):
    one = edge(round_trip=0.02, twice=True)
    sinks = one.run(*(asked(speculative(4), prompt, sampling=SAMPLED) for prompt in PROMPTS))
    assert [sink.tokens for sink in sinks] == [answer(prompt, SAMPLED) for prompt in PROMPTS]
    reconciled(one, sinks)


def test_unseeded_sampled_request_gets_a_random_seed_for_remote_verification(edge):
    one = edge(prefill=1.0)
    for _ in range(2):
        one.add(asked(speculative(2), sampling=SamplingParams(temperature=0.8)))
    one.turn()
    seeds = {message.options.sampling.seed for message in one.link.sent if isinstance(message, OpenSequence)}
    assert len(seeds) == 2
    assert None not in seeds


class StopAt:
    """Ends the text after so many tokens."""

    def __init__(self, left: int) -> None:
        self.left = left

    def feed(self, tokens) -> int | None:
        self.left -= len(tokens)
        return len(tokens) + self.left if self.left <= 0 else None


def test_stop_condition_inside_remote_verdict_discards_the_tokens_after_it(edge, answer):
    one = edge(round_trip=0.03, acceptance=1.0)
    stopped, ended = one.run(
        asked(speculative(8), stop=StopAt(12)), replace(asked(speculative(8)), stop_ids=frozenset({answer()[6]}))
    )
    assert stopped.tokens == answer()[:12]
    assert ended.tokens == answer()[:7]
    assert stopped.done.reason is ended.done.reason is FinishReason.STOP
    reconciled(one, [stopped, ended])
    assert one.link.counts.discarded > 0


def test_remote_sequence_receives_no_tokens_after_cancellation_or_deadline(edge):
    one = edge(round_trip=0.1)
    ask, late = asked(speculative(4)), replace(asked(autoregressive()), deadline=0.2)
    sinks = [one.add(ask), one.add(late)]
    while not sinks[0].tokens:
        one.turn()
    one.scheduler.end({ask.id: FinishReason.CANCELLED})
    one.run()
    assert [sink.done.reason for sink in sinks] == [FinishReason.CANCELLED, FinishReason.DEADLINE]
    reconciled(one, sinks)
    assert one.remote.status.counts.late > 0


@pytest.mark.parametrize("seed", range(4))
def test_remote_text_has_no_lost_or_repeated_token_after_lost_connections(edge, answer, seed):
    """They are lost again and again, and resumed; once for good, where each goes on locally."""
    dice, one = random.Random(seed), edge(round_trip=0.02, acceptance=0.9)
    plans = speculative(4), automatic(8), autoregressive()
    sinks = [one.add(asked(plan, prompt)) for prompt, plan in zip(PROMPTS, plans, strict=True)]
    gone = 2 * seed
    for cut in range(8):
        for _ in range(dice.randrange(2 + 12 * (cut > 0))):
            one.turn()
        if cut <= gone:
            one.link.cut(resumed=cut < gone)
    one.run()
    for prompt, sink in zip(PROMPTS, sinks, strict=True):
        assert sink.tokens == answer(prompt)
        there = sink.remote.tokens
        assert sink.verifiers == [Verifier.REMOTE] * there + [Verifier.LOCAL] * (TOKENS - there)
        assert bool(sink.done.failed_over) == (there < TOKENS) == bool(sink.remote.failed_over)
    one.settle()
    counts = one.link.counts
    assert counts.tokens - counts.discarded == one.remote.status.counts.tokens


def test_remote_only_request_fails_with_retry_delay_when_verifier_is_lost(edge, answer):
    one = edge(round_trip=0.02)
    sink = one.add(replace(asked(speculative(4)), local_allowed=False))
    while len(sink.tokens) < 10:
        one.turn()
    assert one.remote.status.open_sequences == 1
    one.link.cut(resumed=False)
    one.link.up = False
    refused = one.add(replace(asked(autoregressive()), local_allowed=False))
    one.run()
    assert one.remote.status.open_sequences == 0
    assert sink.tokens == answer()[: len(sink.tokens)]
    assert refused.tokens == []
    for ended in (sink, refused):
        assert ended.done.reason is FinishReason.ERROR
        assert ended.done.unavailable == 3.0
        assert ended.done.failed_over == ""


LIES = {
    "goes on from token": lambda told: replace(told, length=told.length + 1),
    "of a vocabulary": lambda told: replace(told, tokens=(*told.tokens[:-1], 256)),
    "was not proposed": lambda told: replace(told, tokens=(*told.tokens, 1), accepted=told.accepted + 1, drafted=8),
    "accepted of": lambda told: replace(told, tokens=told.tokens * 2),
}


@pytest.mark.parametrize("lie", LIES)
def test_invalid_remote_verdict_makes_request_fail_over_to_local_target(edge, answer, lie):
    one = edge(round_trip=0.02)

    def tamper(told: Verdict) -> Verdict:
        return LIES[lie](told) if told.length > 20 else told

    one.link.tamper = tamper
    (sink,) = one.run(asked(speculative(4)))
    assert sink.tokens == answer()
    assert lie in sink.done.failed_over
    assert Verifier.LOCAL in sink.verifiers


def test_local_target_drafts_for_remote_verification_without_a_draft_model(texts, answer):
    local = scripted_models(1.0, with_draft=False)
    link = ScriptedLink(lambda opened: texts(PROMPTS[0]), Clock(), round_trip=0.01)
    one = Edge(Rig(local), link, own=lambda: DraftModel(local.target, 256))
    sink = one.add(asked(automatic(8, PROMPT_LOOKUP)))
    while one.link.clock.now < 0.1:
        one.turn()
    assert TARGET in one.rig.scheduler.local.drafting.drafters
    one.link.cut(resumed=False)
    one.run()
    assert sink.tokens == answer()
    assert 0 < sink.done.stats.counts.accepted == sink.done.stats.counts.drafted
    assert Verifier.LOCAL in sink.verifiers
    assert TARGET not in one.rig.scheduler.local.drafting.drafters


def test_remote_request_streams_the_same_text_after_its_drafter_fails(edge, answer):
    one = edge(round_trip=0.02)
    draft = one.rig.models.draft
    assert isinstance(draft, ScriptedModel)
    draft.fail_on_token = answer()[9]
    (sink,) = one.run(asked(speculative(4)))
    assert sink.tokens == answer()
    assert "scripted failure" in sink.done.degraded


def test_edge_complains_to_verifier_after_4096_messages_of_unknown_sequences(edge):
    one = edge()
    one.link.strays(4095)
    one.turn()
    assert not one.link.complaints
    one.link.strays(1)
    one.turn()
    assert one.link.complaints == ["the verifier sent 4096 messages of nothing that is open"]
