"""A seed's noise: standard Gumbel, and a function of seed and place alone."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from draftd.core import SamplingParams
from draftd.engine.sampling.noise import Noise
from draftd.engine.sampling.transforms import Sampling

FIXED = [[0.424626, 0.499203, -1.070412], [0.818059, 0.064776, -0.241157]]


def values(noise: mx.array) -> np.ndarray:
    return np.array(noise)


def test_seeded_noise_depends_only_on_seed_and_token_position() -> None:
    alone = values(Noise([7]).block([3], 0, 4, 50))[0]
    shared = Noise([1, 7, 2**64 - 1])
    assert np.array_equal(values(shared.block([0, 3, 900], 0, 4, 50))[1], alone)
    one = Noise([7])
    stepwise = [values(one.block([3], step, 1, 50, more=3 - step))[0, 0] for step in range(4)]
    assert np.array_equal(stepwise, alone)
    assert np.array_equal(values(Noise([7]).block([5], 0, 1, 50))[0, 0], alone[2])
    assert np.array_equal(values(Noise([7]).block([0], 5, 1, 50))[0, 0], alone[2])
    assert np.array_equal(values(one.block([5], 0, 1, 50))[0, 0], alone[2]), "another start is another block"


def test_seeded_noise_neither_uses_nor_changes_mlx_random_state() -> None:
    mx.random.seed(1)
    untouched = mx.random.uniform(shape=(3,)).tolist()
    mx.random.seed(1)
    first = values(Noise([7]).block([0], 0, 2, 50))
    assert mx.random.uniform(shape=(3,)).tolist() == untouched
    mx.random.seed(2)
    assert np.array_equal(values(Noise([7]).block([0], 0, 2, 50)), first)


def test_seeded_noise_matches_fixed_reference_values() -> None:
    """Texts with a seed can be had again after an update: the generator is part of what is promised."""
    found = values(Noise([7]).block([0], 0, 2, 3))[0]
    assert found == pytest.approx(np.array(FIXED), abs=1e-5)


def test_seeded_noise_is_standard_gumbel_and_uncorrelated() -> None:
    """Kolmogorov–Smirnov over 200,000 draws, p above 1e-3; 64 places and seeds that are neighbours correlate by less
    than five deviations. Nothing is drawn anew in another run."""
    of_places = values(Noise([0]).block([0], 0, 64, 3125))[0]
    assert stats.kstest(of_places.ravel(), "gumbel_r").pvalue > 1e-3
    of_seeds = values(Noise(list(range(64))).block([0] * 64, 0, 1, 3125))[:, 0]
    for many in (of_places, of_seeds):
        related = np.corrcoef(many) - np.eye(64)
        assert np.abs(related).max() < 5 / 3125**0.5


def test_sampling_with_top_k_of_one_gives_most_likely_token() -> None:
    """Whatever the noise: the other tokens have no mass."""
    logits = mx.random.normal((1, 500, 40), key=mx.random.key(3))
    chosen = Sampling([SamplingParams(2.0, top_k=1, seed=5)]).choose(logits, [0])
    assert mx.array_equal(chosen, mx.argmax(logits, axis=-1)).item()


def test_seeded_noise_is_finite_at_extreme_uniform_values(monkeypatch: pytest.MonkeyPatch) -> None:
    least, most = 0.0, float(np.nextafter(np.float32(1), np.float32(0)))
    monkeypatch.setattr(mx.random, "uniform", lambda shape, key: mx.array([least, 2.0**-30, 0.5, most]) + 0 * key[0])
    found = values(Noise([1]).block([0], 0, 1, 4))[0, 0]
    assert np.isfinite(found).all()
    assert found[1:] == pytest.approx([30 * np.log(2), -np.log(np.log(2)), -np.log(24 * np.log(2))], abs=1e-4)
    assert found[0] > found[1]


def test_sampling_filters_of_one_row_change_no_bit_of_another_row() -> None:
    """A near tie would fall otherwise."""
    logits = mx.random.normal((2, 30, 200), key=mx.random.key(4)) * 5
    row, filtering = SamplingParams(0.7), SamplingParams(1.0, top_p=0.8, min_p=0.01, top_k=50)
    alone = Sampling([row]).distribution(logits[:1], [0])
    beside = Sampling([row, filtering]).distribution(logits, [0, 0])
    assert mx.array_equal(alone, beside[:1]).item()


def test_seeded_noise_is_not_recompiled_for_new_batch_depth_or_vocabulary_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compiler would run for each of them while requests wait."""
    mx.eval(Noise([1]).block([0], 0, 1, 30))
    traced, maximum = 0, mx.maximum

    def counted(*values: mx.array) -> mx.array:
        nonlocal traced
        traced += 1
        return maximum(*values)

    monkeypatch.setattr(mx, "maximum", counted)
    for rows in (1, 2, 8):
        for depth in (1, 2, 5):
            mx.eval(Noise(list(range(rows))).block([0] * rows, 0, depth, 30 + depth))
    assert traced == 0
