"""Sampling parameters as distributions, checked against a plain computation in double precision."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from draftd.core import LEAST_TEMPERATURE, SamplingParams
from draftd.engine.sampling.transforms import Sampling


def plainly(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """One distribution, in mlx-lm's order: top_p, min_p, top_k, temperature."""
    kept = logits.astype(np.float64)
    p = np.exp(kept - kept.max())
    p /= p.sum()
    if params.top_p < 1:
        order = np.argsort(-p)
        beyond = np.cumsum(p[order]) - p[order] >= params.top_p
        kept[order[beyond]] = -np.inf
    if params.min_p > 0:
        kept[p < params.min_p * p.max()] = -np.inf
    if params.top_k:
        kept[np.argsort(-kept)[params.top_k :]] = -np.inf
    scaled = kept / params.temperature
    mass = np.exp(scaled - scaled.max())
    return mass / mass.sum()


WAYS = [
    SamplingParams(0.8),
    SamplingParams(5.0),
    SamplingParams(0.05),
    SamplingParams(1.0, top_p=0.7),
    SamplingParams(0.6, min_p=0.05),
    SamplingParams(1.3, top_k=7),
    SamplingParams(0.9, top_p=0.9, top_k=20, min_p=0.01),
]


EDGES = [
    SamplingParams(LEAST_TEMPERATURE),
    SamplingParams(1e-10),
    SamplingParams(1e-38),
    SamplingParams(1e-290),
    SamplingParams(1.0, top_p=1e-38),
    SamplingParams(1.0, top_p=1e-46),
    SamplingParams(1.0, top_p=5e-324),
    SamplingParams(1.0, min_p=1e-38),
    SamplingParams(1.0, min_p=1e-46),
    SamplingParams(1.0, min_p=1.0),
    SamplingParams(1.0, top_k=1),
    SamplingParams(1.0, top_k=2**31 - 1),
    SamplingParams(1e-38, top_p=1e-46, top_k=1, min_p=1.0),
]


def test_extreme_sampling_parameters_give_exact_distribution_in_float32() -> None:
    logits = mx.random.normal((1, 3, 500), key=mx.random.key(2)) * 30.0
    beside = SamplingParams(0.8, top_p=0.9, min_p=0.01, top_k=20)
    for params in EDGES:
        expected = [plainly(one, params) for one in np.array(logits)[0]]
        for ways in ([params], [params, beside]):  # alone, and beside one that needs what it does not
            found = np.array(Sampling(ways).distribution(mx.repeat(logits, len(ways), axis=0), [0] * len(ways)))
            for position in range(3):
                assert found[0, position] == pytest.approx(expected[position], rel=1e-4, abs=1e-7), (params, len(ways))
        seeded = np.array(Sampling([replace(params, seed=4)]).choose(logits, [0]))
        for position in range(3):
            assert expected[position][seeded[0, position]] > 0, params


@pytest.mark.parametrize("spread", [1.0, 4.0, 30.0])
def test_batched_sampling_gives_each_row_the_distribution_of_its_parameters(spread: float) -> None:
    logits = mx.random.normal((len(WAYS), 3, 500), key=mx.random.key(1)) * spread
    found = np.array(Sampling(WAYS).distribution(logits, [0] * len(WAYS)))
    for row, params in enumerate(WAYS):
        for position in range(3):
            expected = plainly(np.array(logits)[row, position], params)
            assert found[row, position] == pytest.approx(expected, rel=1e-4, abs=1e-7)
            assert (found[row, position][expected == 0] == 0).all(), "what is filtered has no mass at all"
            assert found[row, position].sum() == pytest.approx(1, abs=1e-5)
