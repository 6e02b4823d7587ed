"""Sampled text has exactly the target's distribution while depths vary, by row and by step, and drafts stop early.

As tests/unit/engine/test_acceptance.py has it: the joint distribution of the first tokens is computed from the target
alone and compared with what the engine emits, by Pearson's chi-squared test, whose p must exceed 1e-3. All dice are
fixed, so a correct engine passes always. Depths are automatic, by prices that are drawn anew for each step; rows that
may draft more, less, or not at all, and by prompt lookup, decode side by side in batches of 300. A depth may hang on
what has been drawn, and on distributions: one that hangs on the very token that it keeps or leaves is told apart with
the same samples, p falling below 1e-6.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP
from draftd.engine.drafters import draft_model as drafting
from draftd.engine.drafters.base import Draft
from draftd.engine.drafters.draft_model import DraftModel
from tests.random_costs import random_depth_control
from tests.rig import Rig, automatic, autoregressive, pair, request, speculative, tiny_llama
from tests.unit.engine.test_acceptance import (
    BATCH,
    LENGTH,
    PARAMS,
    PROMPT,
    REPEATING,
    SAMPLES,
    VOCAB,
    exact,
    p_value,
    tally,
)

LOOKUP = PROMPT_LOOKUP
PLANS = [automatic(3), automatic(1), automatic(2), autoregressive()]


@pytest.fixture(scope="module")
def models():
    return pair(tiny_llama(1, vocab=VOCAB), tiny_llama(5, vocab=VOCAB), vocab=VOCAB)


def sampled(models, params, plans=PLANS, prompt=PROMPT, samples=SAMPLES):
    """What was emitted, and how each request was drafted for."""
    asked = [request(prompt, plans[i % len(plans)], max_tokens=LENGTH, sampling=params) for i in range(samples)]
    rig, sinks = Rig(models, depth=random_depth_control(2)), []
    for start in range(0, samples, BATCH):
        sinks += rig.run_together(asked[start : start + BATCH])
    return sinks


def p_of(models, params, sinks, prompt=PROMPT):
    return p_value(tally(sinks), exact(models, params, prompt))


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_depths_varying_by_row_and_step_preserve_target_distribution(models, name):
    sinks = sampled(models, PARAMS[name])
    assert p_of(models, PARAMS[name], sinks) > 1e-3
    for i in range(len(PLANS)):  # and those of each plan by themselves, which are fewer
        assert p_of(models, PARAMS[name], sinks[i :: len(PLANS)]) > 1e-3
    counts = [sink.done.stats.counts for sink in sinks]
    assert sum(c.parked_steps for c in counts) > 0
    drafted = {tuple(c.drafted_per_position) for c in counts}
    assert len(drafted) > 4, "of one kind only: nothing was proven"


def test_automatic_depth_beside_fixed_depth_rows_preserves_target_distribution(models):
    params = PARAMS["temperature"]
    assert p_of(models, params, sampled(models, params, [automatic(3), speculative(2), autoregressive()])) > 1e-3


def test_prompt_lookup_mixed_with_draft_model_preserves_target_distribution(models):
    params = PARAMS["temperature"]
    plans = [automatic(2, DRAFT_MODEL, LOOKUP), automatic(2, LOOKUP), automatic(3)]
    sinks = sampled(models, params, plans, REPEATING)
    assert p_of(models, params, sinks, REPEATING) > 1e-3


def cut(monkeypatch, keeps) -> None:
    """Has a draft end before its first token of which `keeps`, given all that was drawn and its distributions, says no:
    a list of rows, each of booleans by place."""
    propose = DraftModel.propose

    def cautious(self, rows, depths, sampling) -> Draft:
        draft = propose(self, rows, depths, sampling)
        assert draft.q is not None
        kept = keeps(draft.tokens, draft.q).tolist()
        ends = [next((at for at, good in enumerate(row) if not good), len(row)) for row in kept]
        return replace(draft, depths=[min(d, end) for d, end in zip(draft.depths, ends, strict=True)])

    monkeypatch.setattr(drafting.DraftModel, "propose", cautious)


def test_draft_stopping_at_low_confidence_preserves_target_distribution(models, monkeypatch):
    """Of the distribution that a token is to be drawn from, before it is."""
    params = PARAMS["temperature"]
    cut(monkeypatch, lambda tokens, q: q.max(axis=-1) > 0.45)
    sinks = sampled(models, params, [speculative(3), automatic(3)])
    assert p_of(models, params, sinks) > 1e-3
    drafted = [sink.done.stats.counts.drafted_per_position for sink in sinks[::2]]
    stopped = sum(len(one) < 2 for one in drafted)
    assert 0.05 * len(drafted) < stopped < 0.95 * len(drafted), "all or none stopped early: nothing was proven"


def test_chi_squared_test_detects_draft_truncated_by_probability_of_its_dropped_token(models, monkeypatch):
    params = PARAMS["temperature"]
    cut(monkeypatch, lambda tokens, q: mx.take_along_axis(q, tokens[..., None], axis=-1)[..., 0] > 0.4)
    assert p_of(models, params, sampled(models, params, [speculative(2)])) < 1e-6


def test_chi_squared_test_detects_depth_depending_on_a_token_not_yet_drawn(models, monkeypatch):
    params = PARAMS["temperature"]
    cut(monkeypatch, lambda tokens, q: mx.repeat(tokens[:, :1] != 2, tokens.shape[1], axis=1))
    assert p_of(models, params, sampled(models, params, [automatic(2)])) < 1e-6
