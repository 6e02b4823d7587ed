"""Rows of unlike length are attended apart, and give what they gave together."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import base
from mlx_lm.models.cache import make_prompt_cache

from draftd.engine.cache import attention
from draftd.engine.cache.attention import Run, runs
from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.pair import load_models


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([7], [(0, 1, 7)]),
        ([200, 210, 220, 250], [(0, 4, 250)]),
        ([200, 210, 250, 1500], [(0, 3, 250), (3, 4, 1500)]),
        ([1500, 200, 210], [(0, 1, 1500), (1, 3, 210)]),
        ([200, 900, 200], [(0, 1, 200), (1, 2, 900), (2, 3, 200)]),
        ([1500, 200, 210, 190, 1500], [(0, 1, 1500), (1, 4, 210), (4, 5, 1500)]),
        ([30, 170, 90, 150, 60, 120, 40, 160], [(0, 8, 170)]),
        ([900, 901, 902, 903], [(0, 4, 903)]),
    ],
)
def test_neighbours_that_are_about_as_long_share_a_call(
    lengths: list[int], expected: list[tuple[int, int, int]]
) -> None:
    assert runs(lengths) == [Run(*one) for one in expected]


def cost(cuts: Sequence[int], lengths: Sequence[int]) -> int:
    """Of runs that end before each of these rows."""
    return sum((b - a) * max(lengths[a:b]) + attention._CALL for a, b in pairwise([0, *cuts]))


def test_no_other_way_to_cut_costs_less() -> None:
    dice = random.Random(3)
    for _ in range(100):
        n = dice.randrange(1, 9)
        lengths = [dice.choice([dice.randrange(1, 300), dice.randrange(1, 4096)]) for _ in range(n)]
        found = runs(lengths)
        assert all(a.stop == b.start for a, b in pairwise(found))
        assert (found[0].start, found[-1].stop) == (0, n)
        assert all(longest == max(lengths[start:stop]) for start, stop, longest in found)
        every = [(*some, n) for size in range(n) for some in combinations(range(1, n), size)]
        assert cost([run.stop for run in found], lengths) == min(cost(cuts, lengths) for cuts in every)


def test_of_very_many_rows_none_is_left_out_either() -> None:
    found = runs([100] * 100)
    assert (found[0].start, found[-1].stop) == (0, 100)
    assert all(a.stop == b.start for a, b in pairwise(found))
    assert len(found) == 4


@pytest.fixture(scope="module")
def target(nano_pair):
    return load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)


def text(length: int, seed: int, vocabulary: int) -> mx.array:
    return mx.array([[random.Random(seed * 31 + i).randrange(1, vocabulary) for i in range(length)]], dtype=mx.uint32)


@pytest.mark.parametrize(("lengths", "width"), [((12, 450, 20, 25), 1), ((30, 31, 33, 450), 5)])
def test_every_row_gives_what_it_gives_alone(target, lengths: tuple[int, ...], width: int, monkeypatch) -> None:
    """Against mlx-lm's own cache, a row at a time; and against all rows in one call."""
    model, vocabulary = target.target, target.info.vocab_size
    texts = [text(n, i, vocabulary) for i, n in enumerate(lengths)]
    coming = mx.concatenate([text(width, 100 + i, vocabulary) for i in range(len(lengths))])

    alone = []
    for i, one in enumerate(texts):
        cache = make_prompt_cache(model)
        model(one, cache=cache)
        alone.append(model(coming[i : i + 1], cache=cache))

    def together() -> tuple[mx.array, list[int]]:
        caches = BatchedCaches(model, apart=attention.installed(model))
        for one in texts:
            joining = caches.fresh()
            joining.forward(one, [one.shape[1]])
            caches.join(joining)
        calls.clear()
        logits = caches.forward(coming, [width] * len(lengths))
        mx.eval(logits)
        return logits, [rows for rows in calls if rows]

    calls: list[int] = []
    real = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(
        mx.fast, "scaled_dot_product_attention", lambda q, *a, **k: (calls.append(q.shape[0]), real(q, *a, **k))[1]
    )
    apart, taken = together()
    expected = [run.stop - run.start for run in runs(lengths)]
    assert taken == expected * (len(taken) // len(expected))
    assert len(expected) > 1
    assert np.allclose(np.array(apart), np.array(mx.concatenate(alone)), atol=2e-4)
    monkeypatch.setattr(attention, "_CALL", 10**9)
    whole, taken = together()
    assert set(taken) == {len(lengths)}
    assert np.allclose(np.array(apart), np.array(whole), atol=2e-4)


def test_nothing_but_the_models_own_layers_is_changed(target) -> None:
    assert attention.installed(target.target)
    assert attention.installed(target.target), "a second time changes nothing"
    own = type(target.target.layers[0].self_attn)
    theirs = own.__base__
    assert own.__name__ == theirs.__name__
    assert own.__call__.__globals__["scaled_dot_product_attention"].__wrapped__ is base.scaled_dot_product_attention
    assert theirs.__call__.__globals__["scaled_dot_product_attention"] is base.scaled_dot_product_attention
    assert vars(sys.modules[own.__module__])["scaled_dot_product_attention"] is base.scaled_dot_product_attention


def test_a_model_that_asks_mlx_itself_is_left_as_it_is(tmp_path: Path) -> None:
    from tests.scripted import scripted_models

    assert not attention.installed(scripted_models(0.7).target)
