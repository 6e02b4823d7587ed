"""Ragged caches hold what separate caches would, however rows grow, shrink, join and leave."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.engine.cache.base import RollbackFailed
from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.cache.layouts import cannot_trim, make_caches, rollback_limit
from draftd.engine.cache.per_sequence import PerSequenceCaches
from tests.rig import tiny_llama

MODEL = tiny_llama(3)


def reference(tokens: list[int]) -> np.ndarray:
    """Logits after `tokens`, from a forward with no cache at all."""
    return np.array(MODEL(mx.array([tokens]))[0, -1])


def check(caches, texts: list[list[int]]) -> None:
    """One more token for every row gives what the whole text alone gives."""
    logits = caches.forward(mx.array([[7]] * len(texts)), [1] * len(texts))
    for i, text in enumerate(texts):
        np.testing.assert_allclose(np.array(logits[i, -1]), reference([*text, 7]), atol=2e-5)
    caches.rollback([len(text) for text in texts])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("layout", [BatchedCaches, PerSequenceCaches])
def test_rows_stay_exact_through_any_history(layout, data):
    caches = BatchedCaches(MODEL) if layout is BatchedCaches else PerSequenceCaches(MODEL)
    texts: list[list[int]] = []
    token = st.integers(0, 31)
    for _ in range(data.draw(st.integers(1, 6))):
        if not texts or data.draw(st.booleans()):
            prompt = data.draw(st.lists(token, min_size=1, max_size=6))
            new = caches.fresh()
            new.forward(mx.array([prompt]), [len(prompt)])
            caches.join(new)
            texts.append(list(prompt))
        widths = [data.draw(st.integers(0, 4)) for _ in texts]
        if max(widths):
            block = [[data.draw(token) for _ in range(max(widths))] for _ in texts]
            caches.forward(mx.array(block), widths)
            kept = [data.draw(st.integers(0, w)) for w in widths]
            for text, row, k in zip(texts, block, kept, strict=True):
                text += row[:k]
            caches.rollback([len(text) for text in texts])
        check(caches, texts)
        if len(texts) > 1 and data.draw(st.booleans()):
            keep = data.draw(st.permutations(range(len(texts))).map(lambda p: sorted(p[: max(1, len(p) - 1)])))
            caches.select(keep)
            texts = [texts[i] for i in keep]
            check(caches, texts)


def test_capacity_grows_past_a_step():
    caches = make_caches(MODEL).fresh()
    text = [i % 31 for i in range(300)]
    for start in range(0, 300, 7):
        part = text[start : start + 7]
        caches.forward(mx.array([part]), [len(part)])
    check(caches, [text])
    assert caches.nbytes == 2 * 2 * 512 * 2 * 8 * 4  # layers, keys and values, capacity, heads, dim, fp32


def test_all_rows_leaving_frees_the_arrays():
    caches = make_caches(MODEL)
    new = caches.fresh()
    new.forward(mx.array([[1, 2, 3]]), [3])
    caches.join(new)
    assert caches.nbytes > 0
    caches.select([])
    assert caches.nbytes == 0


def test_a_rotating_cache_refuses_once_the_ring_would_be_full():
    model = tiny_llama(4, sliding=16)
    assert rollback_limit(model) == 16
    caches = make_caches(model).fresh()
    assert isinstance(caches, PerSequenceCaches)
    caches.forward(mx.array([list(range(10))]), [10])
    assert caches.refusal(0, 5) == ""
    assert "rotating cache of 16 tokens is full" in caches.refusal(0, 6)
    caches.forward(mx.array([list(range(10))]), [10])
    assert "cannot be rolled back" in caches.refusal(0, 1)
    with pytest.raises(RollbackFailed):
        caches.rollback([19])


def test_a_hybrid_model_names_the_cache_that_cannot_be_trimmed():
    from mlx_lm.models.mamba import Model, ModelArgs

    args = ModelArgs(
        model_type="mamba",
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        state_size=4,
        num_hidden_layers=1,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=2,
    )
    assert "ArraysCache" in cannot_trim(Model(args))
