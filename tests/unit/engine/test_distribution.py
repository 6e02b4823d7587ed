"""Sampling parameters as distributions, checked against a plain computation in double precision."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from draftd.core import SamplingParams
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


@pytest.mark.parametrize("spread", [1.0, 4.0, 30.0])
def test_each_row_has_the_distribution_that_its_parameters_say(spread: float) -> None:
    logits = mx.random.normal((len(WAYS), 3, 500), key=mx.random.key(1)) * spread
    found = np.array(Sampling(WAYS).distribution(logits, [0] * len(WAYS)))
    for row, params in enumerate(WAYS):
        for position in range(3):
            expected = plainly(np.array(logits)[row, position], params)
            assert found[row, position] == pytest.approx(expected, rel=1e-4, abs=1e-7)
            assert (found[row, position][expected == 0] == 0).all(), "what is filtered has no mass at all"
            assert found[row, position].sum() == pytest.approx(1, abs=1e-5)
