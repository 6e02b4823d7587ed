"""Same seed, same text: however it is decoded, and whoever is decoded beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan, SamplingParams
from draftd.engine.depth.explorer import PlainMeasurement
from draftd.engine.drafters.base import Draft
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.drafters.prompt_lookup import PromptLookup
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import StepPlan
from tests.rig import Rig, automatic, autoregressive, pair, request, speculative, tiny_llama

PROMPT, TOKENS = [1, 5, 2, 5, 2, 1, 5, 2], 28
WAYS = {
    "plain": SamplingParams(temperature=1.0, seed=4),
    "filtered": SamplingParams(temperature=0.9, top_p=0.9, top_k=12, min_p=0.02, seed=2**64 - 1),
}
LOOKUP = speculative(3, PROMPT_LOOKUP)


@pytest.fixture(scope="module")
def models():
    return pair(tiny_llama(1, scale=2.0), tiny_llama(2, scale=2.0))


@pytest.fixture(scope="module")
def expected(models):
    """By way, decoded alone and autoregressively."""
    return {name: text(Rig(models), way, autoregressive()) for name, way in WAYS.items()}


def ask(way: SamplingParams, plan: DecodePlan, prompt: Sequence[int] = PROMPT, tokens: int = TOKENS):
    return request(prompt, plan, max_tokens=tokens, sampling=way)


def text(rig: Rig, way: SamplingParams, plan: DecodePlan) -> list[int]:
    (sink,) = rig.run([ask(way, plan)])
    assert sink.done.degraded == ""
    counts = sink.done.stats.counts
    assert not plan.max_draft_tokens or 0 < counts.accepted < counts.drafted, "blocks that stand and blocks that fall"
    return sink.tokens


def test_different_or_missing_seed_gives_a_different_text(models, expected):
    assert expected["plain"] != text(Rig(models), replace(WAYS["plain"], seed=8), autoregressive())
    assert expected["plain"] != text(Rig(models), replace(WAYS["plain"], seed=None), autoregressive())
    assert len(set(expected["plain"])) > 8, "a sampled text"


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("depth", [1, 2, 3, 5, 8])
def test_seeded_text_does_not_depend_on_draft_depth(models, expected, name, depth):
    assert text(Rig(models), WAYS[name], speculative(depth)) == expected[name]


@pytest.mark.parametrize("name", WAYS)
def test_seeded_text_is_the_same_with_prompt_lookup(models, expected, name):
    assert text(Rig(models), WAYS[name], LOOKUP) == expected[name]


@pytest.mark.parametrize(("beside", "batch"), [("seeds", 4), ("greedy", 4), ("no seeds", 4), ("all", 8)])
def test_seeded_text_does_not_depend_on_sampling_or_drafters_of_batch_neighbours(models, expected, beside, batch):
    """Neighbours come, go and draft at other depths, with other drafters; what they filter is no matter of this row."""
    neighbours = {
        "seeds": [SamplingParams(1.3, top_p=0.5, seed=s) for s in range(batch)],
        "greedy": [SamplingParams()] * batch,
        "no seeds": [SamplingParams(1.3, min_p=0.1), SamplingParams(0.7, top_k=4)] * batch,
    }
    neighbours["all"] = [way for ways in zip(*neighbours.values(), strict=False) for way in ways]
    plans = [autoregressive(), speculative(1), LOOKUP, speculative(4)]
    others = [
        ask(way, plans[i % 4], [3] * (i + 1), tokens=4 + 3 * i) for i, way in enumerate(neighbours[beside][:batch])
    ]
    for plan in (autoregressive(), speculative(2), LOOKUP):
        asked = {name: ask(way, plan) for name, way in WAYS.items()}
        sinks = Rig(models, max_batch=batch, prefill_chunk=3).run([*others[:1], *asked.values(), *others[1:]])
        assert [sink.tokens for sink in sinks[1:3]] == [expected[name] for name in asked]
        assert all(sink.done.degraded == "" for sink in sinks)
        for sink, other in zip([*sinks[:1], *sinks[3:]], others, strict=True):
            if other.sampling.greedy:
                alone = request(other.prompt, autoregressive(), max_tokens=other.max_tokens)
                assert [sink.tokens] == [sink.tokens for sink in Rig(models).run([alone])]


@pytest.mark.parametrize("beside", [7, None])
def test_draft_identical_to_target_is_always_accepted_with_shared_seed(beside):
    """At every place of a block: both choose with the same noise, alone and beside a row without a seed."""
    same = pair(tiny_llama(1, scale=2.0), tiny_llama(1, scale=2.0))
    ways = [WAYS["plain"], replace(WAYS["plain"], seed=beside)]
    for sink in Rig(same).run([ask(way, speculative(4)) for way in ways]):
        counts = sink.done.stats.counts
        assert counts.rollbacks == 0
        assert counts.accepted_per_position[:3] == counts.drafted_per_position[:3]


class Fickle(DraftModel):
    """Proposes now the whole block, now a part of it."""

    steps = 0

    def propose(self, rows: Sequence[DecodeSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        self.steps += 1
        return super().propose(
            rows, [max(1, (self.steps * 7 + 3 * i) % (d + 1)) for i, d in enumerate(depths)], sampling
        )


def test_seeded_text_does_not_depend_on_draft_blocks_that_end_early(models, expected):
    rig = Rig(models, drafters={DRAFT_MODEL: Fickle(models.draft, 32)})
    asked = [ask(WAYS["filtered"], speculative(6)), ask(WAYS["plain"], speculative(5))]
    assert [sink.tokens for sink in rig.run(asked)] == [expected["filtered"], expected["plain"]]


def test_seeded_text_does_not_depend_on_autoregressive_measurement_steps(models, expected):
    rig = Rig(models, measurement=PlainMeasurement(1e-6))
    (sink,) = rig.run([ask(WAYS["plain"], speculative(3))])
    counts = sink.done.stats.counts
    assert sink.tokens == expected["plain"]
    assert 0 < counts.drafts < counts.steps - 3


def test_seeded_text_does_not_depend_on_automatic_depth(models, expected):
    plan = automatic(6, DRAFT_MODEL, PROMPT_LOOKUP)
    sinks = Rig(models).run([ask(way, plan) for way in (*WAYS.values(), SamplingParams(), SamplingParams(1.0))])
    assert [sink.tokens for sink in sinks[:2]] == list(expected.values())


class Failing(PromptLookup):
    """Fails in its fourth step."""

    left = 3

    def propose(self, rows: Sequence[DecodeSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        if not self.left:
            raise RuntimeError("planted")
        self.left -= 1
        return super().propose(rows, depths, sampling)


def test_seeded_text_is_unchanged_when_drafter_fails(models, expected):
    rig = Rig(models, drafters={PROMPT_LOOKUP: Failing()})
    (sink,) = rig.run([ask(WAYS["plain"], LOOKUP)])
    assert "planted" in sink.done.degraded
    assert sink.tokens == expected["plain"]


def test_seeded_text_is_unchanged_when_a_decode_step_fails(models, expected, monkeypatch):
    """The row is taken in anew from its text, and goes on from where it was."""
    rig = Rig(models)
    submit, left = rig.target.submit, 4

    def failing(plan: StepPlan) -> None:
        nonlocal left
        left -= plan.draft is not None
        if not left:
            left -= 1
            raise RuntimeError("planted")
        submit(plan)

    monkeypatch.setattr(rig.target, "submit", failing)
    (sink,) = rig.run([ask(WAYS["plain"], speculative(3))])
    assert "planted" in sink.done.degraded
    assert sink.tokens == expected["plain"]
