"""Sampled speculative text has exactly the target's distribution.

Of rows without a seed, whose drafted tokens are accepted by the ratio of two probabilities, and of rows that each have
a seed, and take what the target and its noise choose. Two random models over three tokens; the joint distribution of
the first four tokens (81 cells: the prompt's forward gives the first, speculation the rest) is computed exactly from
the target alone and compared with what the engine emits, by Pearson's chi-squared test with cells of expectation below
5 pooled. Bound: all dice are fixed, so a correct engine passes always; p must exceed 1e-3. A wrong acceptance rule is
told apart with the same samples: p falls below 1e-6.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from draftd.core import DRAFT_HEAD, PROMPT_LOOKUP, SamplingParams
from draftd.engine.sampling import acceptance as acceptance_rule
from draftd.engine.sampling.noise import Noise
from draftd.engine.sampling.transforms import Sampling
from tests.rig import Rig, autoregressive, pair, request, speculative, tiny_llama
from tests.rigged_head import with_random_head

VOCAB, LENGTH, SAMPLES, BATCH = 3, 4, 480, 60
PROMPT = [2]  # one token, so that thousands of requests start at little cost
REPEATING = [1, 0, 2, 0, 2, 1, 0, 2]

PARAMS = {
    "temperature": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "top_k": SamplingParams(temperature=1.2, top_k=2),
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
    p = Sampling([params] * len(texts)).distribution(logits, [0] * len(texts))
    chosen = mx.take_along_axis(p, mx.array(texts)[..., None], axis=-1)[..., 0]
    return np.array(mx.prod(chosen, axis=1)).astype(float)


def sample(models, params, plan, prompt=PROMPT, samples=SAMPLES, answer=None, seeds=False) -> np.ndarray:
    """How often each text came, of requests without a seed or each with its own. `answer` runs them, together unless
    said."""
    requests = [
        request(prompt, plan, max_tokens=LENGTH, sampling=replace(params, seed=s if seeds else None))
        for s in range(samples)
    ]
    return tally((answer or batches)(models, requests))


def tally(sinks) -> np.ndarray:
    counts = np.zeros(VOCAB**LENGTH)
    for sink in sinks:
        assert sink.done.degraded == ""
        counts[sum(token * VOCAB ** (LENGTH - 1 - i) for i, token in enumerate(sink.tokens))] += 1
    return counts


def batches(models, requests):
    rig = Rig(models)
    for start in range(0, len(requests), BATCH):
        yield from rig.run_together(requests[start : start + BATCH])


def one_by_one(models, requests):
    """As the daemon takes them: each prompt is taken in by itself, and joins those that are running."""
    return Rig(models, max_batch=25).run(requests)


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


@pytest.mark.parametrize(("name", "depth"), [("temperature", 1), *((name, 2) for name in PARAMS)])
def test_sampled_speculative_text_follows_target_distribution(models, name, depth):
    params = PARAMS[name]
    assert p_value(sample(models, params, speculative(depth)), exact(models, params)) > 1e-3


def test_sampled_text_drafted_by_prompt_lookup_follows_target_distribution(models):
    params = PARAMS["temperature"]
    plan = speculative(2, PROMPT_LOOKUP)
    counts = sample(models, params, plan, REPEATING)
    assert p_value(counts, exact(models, params, REPEATING)) > 1e-3


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_sampled_text_drafted_by_draft_head_follows_target_distribution(models, name):
    params, with_head = PARAMS[name], with_random_head(models)
    counts = sample(with_head, params, speculative(2, DRAFT_HEAD), answer=one_by_one)
    assert p_value(counts, exact(models, params)) > 1e-3


def test_sampled_autoregressive_text_follows_target_distribution(models):
    params = PARAMS["top_p"]
    assert p_value(sample(models, params, autoregressive()), exact(models, params)) > 1e-3


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_speculative_text_across_many_seeds_follows_target_distribution(models, name):
    params = PARAMS[name]
    assert p_value(sample(models, params, speculative(2), seeds=True), exact(models, params)) > 1e-3


def test_seeded_and_unseeded_rows_in_one_batch_each_follow_target_distribution(models):
    params = PARAMS["temperature"]
    asked = [
        request(PROMPT, speculative(2), max_tokens=LENGTH, sampling=replace(params, seed=s // 2 if s % 2 else None))
        for s in range(2 * SAMPLES)
    ]
    sinks = list(batches(models, asked))
    for part in (sinks[::2], sinks[1::2]):
        assert p_value(tally(part), exact(models, params)) > 1e-3


def test_speculative_text_of_staggered_requests_follows_target_distribution(models):
    params = PARAMS["temperature"]
    counts = sample(models, params, speculative(2), samples=300, answer=one_by_one)
    last_two = (counts.reshape(-1, VOCAB**2).sum(axis=0), exact(models, params).reshape(-1, VOCAB**2).sum(axis=0))
    assert p_value(*last_two) > 1e-3  # all four would be too many cells


def _always(p, q, u_accept, u_next, drafted, depths):
    return accept(p, q, mx.zeros_like(u_accept), u_next, drafted, depths)


def _no_residual(p, q, u_accept, u_next, drafted, depths):
    n, _ = accept(p, q, u_accept, u_next, drafted, depths)
    return n, acceptance_rule.draw(mx.take_along_axis(p, n[:, None, None], axis=1)[:, 0], u_next)


def _untransformed_draft(p, q, u_accept, u_next, drafted, depths):
    flat = mx.softmax(0.2 * mx.log(q + 1e-9), axis=-1)
    return accept(p, flat, u_accept, u_next, drafted, depths)


accept = acceptance_rule.accept_by_ratio


@pytest.mark.parametrize("broken", [_always, _no_residual, _untransformed_draft])
def test_chi_squared_test_detects_broken_acceptance_rule(models, monkeypatch, broken):
    monkeypatch.setattr(acceptance_rule, "accept_by_ratio", broken)
    params = PARAMS["temperature"]
    assert p_value(sample(models, params, speculative(2)), exact(models, params)) < 1e-6


def test_chi_squared_test_detects_repeated_sampling_noise(models, monkeypatch):
    block = Noise.block

    def stuck(noise, starts, first, *rest):
        return block(noise, [0] * len(starts), 0, *rest)

    monkeypatch.setattr(Noise, "block", stuck)
    params = PARAMS["temperature"]
    counts = sample(models, params, speculative(2), seeds=True)
    assert p_value(counts, exact(models, params)) < 1e-6


def overlaps(models, params):
    """p and q, vocabulary × vocabulary, after each first token, and how probable that one is."""
    texts = mx.array([[*PROMPT, first] for first in range(VOCAB)])
    sampling, starts = Sampling([params] * VOCAB), [0] * VOCAB
    p, q = (sampling.distribution(model(texts), starts)[:, -1] for model in (models.target, models.draft))
    return p, q, sampling.distribution(models.target(texts), starts)[0, len(PROMPT) - 1]  # of the prompt's own


def stood(models, params, seeds: bool) -> float:
    """Of the tokens drafted in the second place."""
    requests = [
        request(PROMPT, speculative(1), max_tokens=3, sampling=replace(params, seed=s if seeds else None))
        for s in range(SAMPLES)
    ]
    counts = [sink.done.stats.counts for sink in batches(models, requests)]
    return sum(c.accepted for c in counts) / sum(c.drafted for c in counts)


def deviation(share: float) -> float:
    return float((share * (1 - share) / SAMPLES) ** 0.5)


def test_unseeded_draft_acceptance_rate_equals_overlap_of_draft_and_target(models):
    """sum(min(p, q)), which is more than the sum(p q) that accepting equal samples, as mlx-lm does, would give."""
    params = PARAMS["temperature"]
    p, q, first = overlaps(models, params)
    measured = stood(models, params, seeds=False)
    overlap = (first * mx.minimum(p, q).sum(axis=-1)).sum().item()
    assert measured == pytest.approx(overlap, abs=4 * deviation(overlap))
    assert measured > (first * (p * q).sum(axis=-1)).sum().item() + 0.05


def test_seeded_draft_acceptance_rate_is_what_shared_sampling_noise_predicts(models):
    """sum over x of 1 / sum over y of max(p(y)/p(x), q(y)/q(x)): at least (1 - TV)/(1 + TV), at most 1 - TV."""
    params = PARAMS["temperature"]
    p, q, first = overlaps(models, params)
    ratios = mx.maximum(p[:, None, :] / p[:, :, None], q[:, None, :] / q[:, :, None])
    both = (1 / ratios.sum(axis=-1)).sum(axis=-1)
    apart = 0.5 * mx.abs(p - q).sum(axis=-1)
    assert mx.all(both >= (1 - apart) / (1 + apart)).item()
    assert mx.all(both <= 1 - apart).item()
    expected = (first * both).sum().item()
    assert stood(models, params, seeds=True) == pytest.approx(expected, abs=4 * deviation(expected))
