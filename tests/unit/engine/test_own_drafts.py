"""What a peer is granted, and proposes nothing for, is drafted for by this daemon's own drafter."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from draftd.core import DRAFT_MODEL, PEER, PROMPT_LOOKUP, DrafterName, FinishReason, SamplingParams
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import CalibratedCosts, StepCosts
from draftd.engine.observer import EngineObserver
from tests.rig import Rig, automatic, autoregressive, request
from tests.scripted import scripted_models
from tests.scripted_edge import Edge

PROMPT = [3, 1, 4, 1, 5]
OWN = automatic(4, DRAFT_MODEL, PEER)
SAMPLED = SamplingParams(temperature=4.0, seed=7)


class Steps(EngineObserver):
    """Drafted tokens, by who is said to have drafted them."""

    def __init__(self) -> None:
        self.drafted: Counter[DrafterName | None] = Counter()

    def on_step(self, request, result, gap):
        self.drafted[result.drafter] += result.drafted


def cheap_drafts() -> DepthControl:
    """A step takes a second, whatever is drafted; a drafter takes a token of a text in for a hundredth of that."""
    kinds = (DRAFT_MODEL, PROMPT_LOOKUP)
    drafted = {kind: {(1, depth): 1.0 + 0.01 * depth for depth in (1, 4)} for kind in kinds}
    return DepthControl(StepCosts(CalibratedCosts({1: 1.0}, drafted, {}, 1, {DRAFT_MODEL: 0.01})), 4)


def text(sampling: SamplingParams, tokens: int = 120) -> list[int]:
    plain = request(PROMPT, autoregressive(), max_tokens=tokens, sampling=sampling)
    return Rig(scripted_models(0.8)).run([plain])[0].tokens


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
def test_verifier_drafts_on_its_own_only_for_number_of_tokens_that_edge_peer_granted(sampling):
    expected, steps = text(sampling), Steps()
    rig, edge = Rig(scripted_models(0.8), depth=cheap_drafts(), observer=steps), Edge(PROMPT)
    sink = rig.add(edge.asked(OWN, 8, 120, sampling))
    rig.scheduler.step()
    assert not rig.scheduler.local.drafting.nbytes, "without a grant no draft takes the text in"
    edge.receive()
    for proposes in (False, True, False):
        before = len(edge.answer)
        if proposes:
            edge.send([*expected[before : before + 7], (expected[before + 7] + 1) % 255])
            edge.rest(rig)
            assert len(edge.answer) == before + 8
        else:
            edge.send([], run=40)
            edge.rest(rig)
            assert len(edge.answer) == before + 40
    assert edge.answer == expected[: len(edge.answer)]
    own = [one for one in edge.verdicts if one.own_drafted]
    assert not any(one.drafted or one.accepted for one in own)
    assert len(own) > 10 < max(len(one.tokens) for one in own) * len(own)
    assert steps.drafted[PEER] == sum(one.drafted for one in edge.verdicts) == 8
    assert steps.drafted[DRAFT_MODEL] == sum(one.own_drafted for one in edge.verdicts)
    assert all(one.share_seconds > one.verify_seconds for one in own), "its drafts are charged for"
    edge.send([], run=200)
    rig.drain()
    assert sink.done.reason is FinishReason.LENGTH
    assert sink.tokens == expected


def test_verifiers_drafts_for_a_resumed_seeded_peer_text_are_all_accepted():
    expected = text(SAMPLED)
    rig, edge = Rig(scripted_models(1.0), depth=cheap_drafts()), Edge([*PROMPT, *expected[:30]])
    rig.add(replace(edge.asked(OWN, 8, 60, SAMPLED), answered=30))
    rig.scheduler.step()
    edge.receive()
    edge.send([], run=50)
    edge.rest(rig)
    assert edge.answer == expected[30:81]
    drafted = sum(one.own_drafted for one in edge.verdicts)
    assert 0 < drafted == sum(len(one.tokens) - 1 for one in edge.verdicts)


def test_edge_peer_proposal_of_84_tokens_makes_verifier_free_its_own_draft_cache():
    expected = text(SamplingParams())
    rig, edge = Rig(scripted_models(0.8), depth=cheap_drafts()), Edge(PROMPT)
    rig.add(edge.asked(OWN, 8, 120))
    rig.scheduler.step()
    edge.receive()
    edge.send([], run=30)
    edge.rest(rig)
    drafter = rig.scheduler.local.drafting.drafters[DRAFT_MODEL]
    assert drafter.nbytes
    edge.send(expected[31:115])
    edge.rest(rig)
    assert not drafter.nbytes
    assert edge.answer == expected[: len(edge.answer)]


@pytest.mark.parametrize("how", ["lowered", "failed"])
def test_verifier_still_accepts_peer_proposals_after_its_drafter_is_lost(how, monkeypatch):
    expected = text(SamplingParams())
    rig, edge = Rig(scripted_models(0.8), depth=cheap_drafts()), Edge(PROMPT)
    sink = rig.add(edge.asked(OWN, 8, 60))
    rig.scheduler.step()
    edge.receive()
    edge.send([], run=20)
    while not edge.verdicts[-1].own_drafted:
        rig.scheduler.step()
    edge.receive()
    if how == "lowered":
        rig.scheduler.lower(0, frozenset(), "memory is short")
    else:
        monkeypatch.setattr(rig.scheduler.local.drafting.drafters[DRAFT_MODEL], "propose", None)
    told = len(edge.verdicts)
    edge.rest(rig)
    assert not any(one.own_drafted for one in edge.verdicts[told:])
    assert not rig.scheduler.local.drafting.nbytes
    edge.send(expected[len(edge.answer) : len(edge.answer) + 8])
    edge.rest(rig)
    assert edge.verdicts[-1].accepted == 8
    edge.send([], run=60)
    rig.drain()
    assert sink.tokens == expected[:60]
    assert not sink.done.degraded
    assert sink.done.lowered


def test_verifier_charges_draft_prefill_time_to_peers_share():
    rig, edge, taken = Rig(scripted_models(0.8), depth=cheap_drafts()), Edge(PROMPT), list[float]()
    rig.add(edge.asked(OWN, 8, 120, SamplingParams()))
    rig.scheduler.step()
    edge.receive()
    rig.scheduler.local._shares.charge_prefill = lambda sequence, seconds: taken.append(seconds)
    edge.send([], run=40)
    edge.rest(rig)
    assert rig.scheduler.local.drafting.nbytes
    assert sum(taken) > 0
