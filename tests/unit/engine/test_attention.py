"""Rows of unlike length are attended apart, and give what they gave together."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import base
from mlx_lm.models.cache import make_prompt_cache

from draftd.engine.cache.batched import BatchedCaches, CacheLayout
from draftd.engine.cache.model_layers import take_rows_apart
from draftd.engine.pair import load_models


@pytest.fixture(scope="module")
def target(nano_pair):
    return load_models(nano_pair.draft, nano_pair.draft, progress=lambda line: None)


def text(length: int, seed: int, vocabulary: int) -> mx.array:
    return mx.array([[random.Random(seed * 31 + i).randrange(1, vocabulary) for i in range(length)]], dtype=mx.uint32)


@pytest.mark.parametrize(("lengths", "width"), [((12, 450, 20, 25), 1), ((30, 31, 33, 450), 5)])
def test_attention_on_rows_of_unequal_length_gives_logits_of_each_row_alone(
    target, lengths: tuple[int, ...], width: int, monkeypatch
) -> None:
    """Against mlx-lm's own cache, a row at a time; and against all rows in one call."""
    model, vocabulary = target.target, target.info.vocab_size
    texts = [text(n, i, vocabulary) for i, n in enumerate(lengths)]
    coming = mx.concatenate([text(width, 100 + i, vocabulary) for i in range(len(lengths))])

    alone = []
    for i, one in enumerate(texts):
        cache = make_prompt_cache(model)
        model(one, cache=cache)
        alone.append(model(coming[i : i + 1], cache=cache))

    def together(call_cost: int | None = None) -> tuple[mx.array, list[int]]:
        caches = BatchedCaches(model, CacheLayout(True, apart=take_rows_apart(model), call_cost=call_cost))
        for one in texts:
            joining = caches.fresh()
            joining.forward(one, [one.shape[1]])
            caches.join(joining)
        calls.clear()
        logits = caches.forward(coming, [width] * len(lengths))
        mx.eval(logits)
        return logits, sorted({rows for rows in calls if rows})

    calls: list[int] = []
    real = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(
        mx.fast, "scaled_dot_product_attention", lambda q, *a, **k: (calls.append(q.shape[0]), real(q, *a, **k))[1]
    )
    apart, taken = together()
    assert taken == [1, 3], "the long one by itself"
    assert np.allclose(np.array(apart), np.array(mx.concatenate(alone)), atol=2e-4)
    each, taken = together(call_cost=0)
    assert taken == [1]
    assert np.allclose(np.array(apart), np.array(each), atol=2e-4)


def test_split_row_attention_patches_only_layers_of_given_model(target) -> None:
    assert take_rows_apart(target.target)
    assert take_rows_apart(target.target), "a second time changes nothing"
    own = type(target.target.layers[0].self_attn)
    theirs = own.__base__
    assert own.__name__ == theirs.__name__
    assert own.__call__.__globals__["scaled_dot_product_attention"].__wrapped__ is base.scaled_dot_product_attention
    assert theirs.__call__.__globals__["scaled_dot_product_attention"] is base.scaled_dot_product_attention
    assert vars(sys.modules[own.__module__])["scaled_dot_product_attention"] is base.scaled_dot_product_attention


def test_split_row_attention_leaves_model_without_mlx_lm_attention_unpatched(tmp_path: Path) -> None:
    from tests.scripted import scripted_models

    assert not take_rows_apart(scripted_models(0.7).target)
