"""Sampled speculative text has exactly the target's distribution.

Two random models over six tokens; the joint distribution of the first four tokens (1,296 cells: the prompt's forward
gives the first, speculation the rest) is computed exactly from the target alone and compared with what the engine
emits, by Pearson's chi-squared test with cells of expectation below 5 pooled. Bound: the seeds are fixed, so a correct
engine passes always; p must exceed 1e-3. A wrong acceptance rule is told apart with the same samples: p falls below
1e-9.
"""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from draftd.core import DrafterKind, SamplingParams
from draftd.engine import sampling as sampling_module
from draftd.engine import verification
from draftd.engine.sampling import Sampling
from tests.rig import Rig, autoregressive, pair, request, speculative, tiny_llama

VOCAB, LENGTH, SAMPLES, BATCH = 6, 4, 4000, 50
PROMPT = [5]  # one token, so that thousands of requests start at little cost
REPEATING = [1, 5, 2, 5, 2, 1, 5, 2]

PARAMS = {
    "temperature": SamplingParams(temperature=0.8),
    "hot": SamplingParams(temperature=1.7),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "top_k": SamplingParams(temperature=1.2, top_k=3),
    "min_p": SamplingParams(temperature=1.0, min_p=0.3),
}


@pytest.fixture(scope="module")
def models():
    return pair(tiny_llama(1, vocab=VOCAB), tiny_llama(5, vocab=VOCAB), vocab=VOCAB)


def exact(models, params: SamplingParams, prompt=PROMPT) -> np.ndarray:
    """Joint probabilities of all texts of LENGTH tokens, from the target alone, in the order of itertools.product."""
    texts = list(itertools.product(range(VOCAB), repeat=LENGTH))
    full = mx.array([prompt + list(text) for text in texts])
    logits = models.target(full)[:, len(prompt) - 1 : -1]
    p = Sampling([params] * len(texts)).distribution(logits)
    chosen = mx.take_along_axis(p, mx.array(texts)[..., None], axis=-1)[..., 0]
    return np.array(mx.prod(chosen, axis=1)).astype(float)


def sample(models, params: SamplingParams, plan, prompt=PROMPT, samples=SAMPLES) -> np.ndarray:
    """How often each text came, over requests with seeds of their own."""
    requests = [
        request(
            prompt,
            plan,
            max_tokens=LENGTH,
            sampling=SamplingParams(params.temperature, params.top_p, params.top_k, params.min_p, seed=s),
        )
        for s in range(samples)
    ]
    counts = np.zeros(VOCAB**LENGTH)
    for sink in batches(models, requests):
        counts[sum(token * VOCAB ** (LENGTH - 1 - i) for i, token in enumerate(sink.tokens))] += 1
    return counts


def batches(models, requests):
    rig = Rig(models)
    for start in range(0, len(requests), BATCH):
        yield from rig.run_together(requests[start : start + BATCH])


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    expected = probabilities / probabilities.sum() * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 1e-9:
        if observed[-1] > 0:
            return 0.0
        observed, expected = observed[:-1], expected[:-1]
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("depth", [1, 2])
def test_speculative_text_has_the_targets_distribution(models, name, depth):
    params = PARAMS[name]
    assert p_value(sample(models, params, speculative(depth)), exact(models, params)) > 1e-3


def test_prompt_lookup_keeps_the_targets_distribution(models):
    params = PARAMS["temperature"]
    plan = speculative(2, DrafterKind.PROMPT_LOOKUP)
    counts = sample(models, params, plan, REPEATING, samples=1500)
    assert p_value(counts, exact(models, params, REPEATING)) > 1e-3


def test_autoregressive_text_has_the_targets_distribution(models):
    params = PARAMS["top_p"]
    assert p_value(sample(models, params, autoregressive()), exact(models, params)) > 1e-3


def _always(p, q, drafted, depths, u_accept, u_next):
    return accept(p, q, drafted, depths, mx.zeros_like(u_accept), u_next)


def _no_residual(p, q, drafted, depths, u_accept, u_next):
    n, _ = accept(p, q, drafted, depths, u_accept, u_next)
    return n, sampling_module.draw(mx.take_along_axis(p, n[:, None, None], axis=1)[:, 0], u_next)


def _untransformed_draft(p, q, drafted, depths, u_accept, u_next):
    flat = mx.softmax(0.2 * mx.log(q + 1e-9), axis=-1)
    return accept(p, flat, drafted, depths, u_accept, u_next)


accept = sampling_module.accept


@pytest.mark.parametrize("broken", [_always, _no_residual, _untransformed_draft])
def test_the_test_notices_a_broken_acceptance_rule(models, monkeypatch, broken):
    monkeypatch.setattr(verification, "accept", broken)
    params = PARAMS["temperature"]
    assert p_value(sample(models, params, speculative(2)), exact(models, params)) < 1e-9


def test_a_drafted_token_stands_as_often_as_the_distributions_overlap(models):
    """sum(min(p, q)), which is more than the sum(p q) that accepting equal samples, as mlx-lm does, would give."""
    params = PARAMS["temperature"]
    texts = mx.array([[*PROMPT, first] for first in range(VOCAB)])
    sampling = Sampling([params] * VOCAB)
    p, q = (sampling.distribution(model(texts))[:, -1] for model in (models.target, models.draft))
    first = sampling.distribution(models.target(texts))[0, len(PROMPT) - 1]  # of the prompt's own
    requests = [
        request(PROMPT, speculative(1), max_tokens=3, sampling=SamplingParams(0.8, seed=s)) for s in range(SAMPLES)
    ]
    counts = [sink.done.stats.counts for sink in batches(models, requests)]
    measured = sum(c.accepted for c in counts) / sum(c.drafted for c in counts)
    overlap = (first * mx.minimum(p, q).sum(axis=-1)).sum().item()
    assert measured == pytest.approx(overlap, abs=4 * (overlap * (1 - overlap) / SAMPLES) ** 0.5)
    assert measured > (first * (p * q).sum(axis=-1)).sum().item() + 0.05
