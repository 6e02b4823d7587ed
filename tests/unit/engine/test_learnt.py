"""What was learnt outlives the process, and a document that is not what it should be is refused by name."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import DEEPEST, Batch, CalibratedCosts, StepCosts
from draftd.engine.depth.saved import LearntCosts
from draftd.engine.limits import RemoteLimits
from draftd.engine.remote.mode_control import RemoteControl
from draftd.engine.sequence import DecodeSequence
from draftd.errors import ConfigError
from tests.rig import Collected, automatic, request
from tests.scripted import scripted_models
from tests.scripted_link import MODEL
from tests.simulated_machine import Machine, Simulation
from tests.unit.engine.test_depth import CODE, MOST, ask, mild


def trained() -> tuple[Machine, LearntCosts]:
    where = Machine(wider=mild, stands={CODE: [0.9, 0.8]}, dice=random.Random(3))
    simulation = Simulation(where, MOST, prices=where.prices(MOST))
    simulation.run([ask(800)])
    return where, simulation.depth.learnt()


def test_learned_costs_survive_a_json_round_trip_without_machine_speed_offsets() -> None:
    _, learnt = trained()
    document = json.loads(json.dumps(learnt.to_document()))
    again = LearntCosts.of_document(document)
    assert (again.prices, again.acceptance, again.remote) == (learnt.prices, learnt.acceptance, learnt.remote)
    assert not again.offsets, "how the machine was then says nothing about it now"
    assert again.to_document() == document


def test_learned_costs_are_rescaled_to_a_machine_of_another_speed() -> None:
    where, learnt = trained()
    where.slowdown = 3.0
    costs = StepCosts(learnt.prices)
    costs.calibrate(CalibratedCosts({1: 3 * where.plain(1)}))
    assert costs.plain(Batch(1)) == pytest.approx(3 * where.plain(1), rel=0.05)
    assert costs.by_depth(DRAFT_MODEL, Batch(1), 4)[4] == pytest.approx(3 * where.round(1, 4), rel=0.1)
    depth = DepthControl(costs, MOST, acceptance=learnt.rates(MOST + 1))
    rates = depth.acceptance.rates((DRAFT_MODEL, False, False, WorkloadClass.CODE))
    assert rates[0] == pytest.approx(0.9, abs=0.06)
    assert rates[1] == pytest.approx(0.8, abs=0.06)
    first, _ = Simulation(where, MOST, depth=depth).run([ask(120)])
    _, best = where.best(1, [0.9, 0.8], MOST)
    assert 3 * first > 0.85 * best


def test_learned_remote_costs_are_reused_only_for_the_same_verifier_model() -> None:
    first, workload, kind = RemoteControl(RemoteLimits()), WorkloadClass.CODE, DRAFT_MODEL
    first.follow(MODEL)
    sequence = DecodeSequence.of(replace(request([1, 2, 3], automatic(4)), workload=workload), Collected(), 100)
    for _ in range(20):
        first.costs.learn_verify(0, 0.01)
        first.costs.learn_verify(4, 0.016)
        first.costs.learn_streaming(workload, 16, 0.08, drafted=True)
        first.costs.learn_draft(kind, 4, 0.004)
        first.acceptance.learn(sequence, kind, 4, 4)
    document = json.loads(json.dumps(replace(trained()[1], remote=first.learnt()).to_document()))
    again, other = RemoteControl(RemoteLimits()), RemoteControl(RemoteLimits())
    again.recalled = other.recalled = LearntCosts.of_document(document).remote
    assert again.learnt() == first.learnt(), "it is kept, whether or not the verifier is reached"
    again.follow(replace(MODEL, step_seconds=0.02))  # half as fast as it was
    times = again.costs.times(0.015, kind, 4, workload)
    assert (times.plain, times.verify[4], times.draft) == pytest.approx((0.01, 0.032, 0.001))
    assert not again.costs.streaming_unmeasured(workload)
    assert again.acceptance.rates((kind, False, False, workload))[0] > 0.85
    other.follow(replace(MODEL, fingerprint="0" * 64))
    assert other.costs.streaming_unmeasured(workload)
    assert not other.acceptance.evidence


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"remote": {"fingerprint": ""}}, "learnt.remote"),
        ({"version": 0}, "learnt.version"),
        ({"plain": None}, "learnt.plain"),
        ({"plain": [[1, -1.0]]}, "learnt.plain[0]"),
        ({"plain": [[0, 1.0]]}, "learnt.plain[0]"),
        ({"plain": [[1, True]]}, "learnt.plain[0]"),
        ({"context": "long"}, "learnt.context"),
        ({"drafted": [[7, 1, 1, 1.0]]}, "learnt.drafted[0]"),
        ({"drafted": [["draft_model", 1, 99, 1.0]]}, "learnt.drafted[0]"),
        ({"drafted": [["draft_model", 1]]}, "learnt.drafted[0]"),
        ({"acceptance": [["draft_model", False, False, "opera", [], []]]}, "learnt.acceptance[0]"),
        ({"acceptance": [["draft_model", False, False, None, [1.0], [1.0]]]}, "learnt.acceptance[0]"),
    ],
)
def test_learned_costs_document_with_invalid_field_is_refused_naming_the_field(
    change: dict[str, Any], field: str
) -> None:
    _, learnt = trained()
    with pytest.raises(ConfigError) as refused:
        LearntCosts.of_document(learnt.to_document() | change)
    assert refused.value.field.startswith(field)


def test_learned_costs_document_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(ConfigError):
        LearntCosts.of_document([])


def test_restarted_engine_reuses_acceptance_and_measures_lookup_costs_before_any_request(running) -> None:
    models = scripted_models(0.9, step_seconds=0.002)
    engine = running(lambda: models, max_draft_tokens=4)
    engine.answer(request([1, 2, 3], automatic(4), max_tokens=60))
    assert engine.worker.close()
    learnt = engine.worker.learnt()
    assert learnt is not None
    assert learnt.acceptance
    again = running(lambda: models, max_draft_tokens=4, learnt=learnt)
    known = again.worker.learnt()
    assert known is not None
    assert set(known.prices.drafted[PROMPT_LOOKUP]) >= {(1, 1), (1, 4)}, "what the first request needs is measured anew"
    assert again.worker.close()
    kept = again.worker.learnt()
    assert kept is not None
    assert set(kept.acceptance) == set(learnt.acceptance)


def drafting_costs(ratio: float, accepted: float, drafts: float = 100.0) -> LearntCosts:
    """Of a draft model whose step with one token takes so many times a plain one."""
    prices = CalibratedCosts({1: 0.1}, {DRAFT_MODEL: {(1, 1): 0.1 * ratio, (1, 4): 0.15 * ratio}}, {}, 32)
    counts = ((drafts,) * DEEPEST, (drafts * accepted,) * DEEPEST)
    return LearntCosts(prices, {(DRAFT_MODEL, False, False, None): counts})


@pytest.mark.parametrize(
    ("learnt", "said"),
    [
        (drafting_costs(4.86, 0.98), "4.86 times as long .* 97% of these .* at best 0.65 times"),
        (drafting_costs(1.1, 0.05), "1.10 times as long .* at best 0.96 times"),
        (
            drafting_costs(4.86, 0.98, drafts=3.0),
            "4.86 times as long .* even if all these tokens .* at best 0.69 times",
        ),
        (drafting_costs(1.1, 0.7), "^$"),
    ],
)
def test_draft_model_costing_more_than_it_saves_gets_warning_with_figures(learnt: LearntCosts, said: str) -> None:
    worth = learnt.worth(DRAFT_MODEL, 4)
    assert worth is not None
    assert re.search(said, worth.warning), worth.warning


def test_draft_model_is_not_rated_before_enough_is_measured() -> None:
    assert drafting_costs(1.2, 0.98, drafts=3.0).worth(DRAFT_MODEL, 4) is None
    assert drafting_costs(4.86, 0.98).worth(DRAFT_MODEL, 0) is None
    assert LearntCosts(CalibratedCosts()).worth(DRAFT_MODEL, 4) is None
