"""Ragged caches hold what separate caches would, however rows grow, shrink, join and leave."""

from __future__ import annotations

import random

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from draftd.engine.cache import window
from draftd.engine.cache.base import RollbackFailed, last, pad_rows
from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.per_sequence import PerSequenceCaches
from tests.rig import tiny_llama

MODEL = tiny_llama(3)
SLIDING = tiny_llama(5, sliding=4, layers=3)


def reference(tokens: list[int], model=MODEL) -> np.ndarray:
    """Logits after `tokens`, from a forward with no cache at all."""
    return np.array(model(mx.array([tokens]))[0, -1])


def check(caches, texts: list[list[int]], model=MODEL) -> None:
    """One more token for every row gives what the whole text alone gives."""
    logits = caches.forward(mx.array([[7]] * len(texts)), [1] * len(texts))
    for i, text in enumerate(texts):
        np.testing.assert_allclose(np.array(logits[i, -1]), reference([*text, 7], model), atol=2e-5)
    caches.rollback([len(text) for text in texts])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(
    ("layout", "model"), [(BatchedCaches, MODEL), (PerSequenceCaches, MODEL), (BatchedCaches, SLIDING)]
)
def test_kv_cache_rows_stay_exact_through_joins_rollbacks_and_removals(layout, model, data):
    caches = layout(model)
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
        check(caches, texts, model)
        if len(texts) > 1 and data.draw(st.booleans()):
            keep = data.draw(st.permutations(range(len(texts))).map(lambda p: sorted(p[: max(1, len(p) - 1)])))
            caches.select(keep)
            texts = [texts[i] for i in keep]
            check(caches, texts, model)


@pytest.mark.parametrize("seed", range(4))
def test_sliding_window_cache_stays_exact_and_bounded_over_long_texts(monkeypatch, seed):
    monkeypatch.setattr(window, "_LEAST_ROOM", 3)
    monkeypatch.setattr(window, "_SPARE", seed % 2)
    dice, caches, texts, held = random.Random(seed), BatchedCaches(SLIDING), list[list[int]](), set[int]()
    for step in range(60):
        if len(texts) < 3 and step % 5 == 0:
            prompt = [dice.randrange(32) for _ in range(dice.randint(1, 30))]
            new = caches.fresh(len(prompt))
            for start in range(0, len(prompt), 11):
                part = prompt[start : start + 11]
                new.forward(mx.array([part]), [len(part)])
            caches.join(new)
            texts.append(prompt)
        widths = [dice.randint(1, 6) for _ in texts]
        block = [[dice.randrange(32) for _ in range(max(widths))] for _ in texts]
        caches.forward(mx.array(block), widths)
        for text, row, width in zip(texts, block, widths, strict=True):
            text += row[: dice.randint(1, width)]
        caches.rollback([len(text) for text in texts])
        if step % 4 == 0:
            check(caches, texts, SLIDING)
        if step == 40:
            caches.select([2, 0])
            texts = [texts[2], texts[0]]
        held |= {group.capacity for group in caches._layers[1].groups}  # type: ignore[attr-defined]
    assert max(map(len, texts)) > 100
    assert max(held) <= 3 + seed % 2 + 11, "what the next query sees, spare, the widest slice of a prompt"


def test_kv_cache_capacity_grows_with_text_length():
    caches = make_caches(MODEL).fresh()
    text = [i % 31 for i in range(300)]
    for start in range(0, 300, 7):
        part = text[start : start + 7]
        caches.forward(mx.array([part]), [len(part)])
    check(caches, [text])
    positions = caches.nbytes / (2 * 2 * 2 * 8 * 4)  # layers, keys and values, heads, dim, fp32
    assert 300 < positions <= 1.25 * 300 + 64


def test_removing_all_rows_frees_kv_cache_arrays():
    caches = make_caches(MODEL)
    new = caches.fresh()
    new.forward(mx.array([[1, 2, 3]]), [3])
    caches.join(new)
    assert caches.nbytes > 0
    caches.select([])
    assert caches.nbytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_wrapped_ring_cache_rolls_back_to_state_before_recent_forwards(seed):
    """mlx-lm's own caches. What was right of the last forwards is fed again."""
    dice, text = random.Random(seed), [1, 2, 3]
    caches = PerSequenceCaches(SLIDING, forwards=3).fresh()
    caches.forward(mx.array([text]), [3])
    for _ in range(20):
        held = list(text)
        for _ in range(dice.randint(1, 3)):
            block = [dice.randrange(32) for _ in range(dice.randint(1, 4))]
            fed = [*held[caches.lengths[0] :], *block]
            logits = caches.forward(mx.array([fed]), [len(fed)])
            held += block
            np.testing.assert_allclose(np.array(logits[0, -1]), np.array(SLIDING(mx.array([held]))[0, -1]), atol=1e-4)
        text = held[: dice.randint(len(text), len(held))]
        (reached,) = caches.rollback([len(text)])
        assert reached <= len(text)
    assert len(text) > 2 * 16
    with pytest.raises(RollbackFailed):
        caches.rollback([3])


class Noting:
    """A last layer that notes how many positions of each row it was given."""

    widths: list[int]

    def __call__(self, x):
        self.widths.append(x.shape[1])
        return super().__call__(x)

    def as_linear(self, x):
        self.widths.append(x.shape[1])
        return super().as_linear(x)


class NotingLinear(Noting, nn.Linear):
    pass


class NotingEmbedding(Noting, nn.Embedding):
    def __call__(self, x):
        return nn.Embedding.__call__(self, x)


def ends_in_lm_head(model):
    model.lm_head.__class__ = NotingLinear
    return model.lm_head


def ends_in_its_embedding(model):
    model.args.tie_word_embeddings = True
    model.model.embed_tokens.__class__ = NotingEmbedding
    return model.model.embed_tokens


@pytest.mark.parametrize("layout", [BatchedCaches, PerSequenceCaches])
@pytest.mark.parametrize("ending", [ends_in_lm_head, ends_in_its_embedding])
def test_lm_head_computes_logits_of_requested_positions_only(ending, layout):
    model = tiny_llama(7)
    head = ending(model)
    texts = [[3, 1, 4, 1, 5], [2, 7], [9]]
    widths = [len(text) for text in texts]
    caches = layout(model).fresh(*widths)
    head.widths = []
    logits = caches.forward(pad_rows(texts), widths, at=last(widths))
    assert logits.shape == (3, 1, 32)
    assert set(head.widths) == {1}
    for i, text in enumerate(texts):
        np.testing.assert_allclose(np.array(logits[i, 0]), reference(text, model), atol=2e-5)
    head.widths = []
    caches.forward(mx.array([[1, 2], [3, 4], [5, 6]]), [2, 2, 2])  # and of all, where all are asked for
    assert set(head.widths) == {2}


def test_model_with_nonstandard_head_name_gives_correct_last_logits():
    model = tiny_llama(7)

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.args, self.model, self.layers, self.embed_out = model.args, model.model, model.layers, model.lm_head

        def __call__(self, tokens, cache):
            return self.embed_out(self.model(tokens, cache))

    texts = [[3, 1, 4, 1, 5], [2, 7]]
    logits = BatchedCaches(Other()).fresh(5, 2).forward(pad_rows(texts), [5, 2], at=last([5, 2]))
    assert logits.shape == (2, 1, 32)
    for i, text in enumerate(texts):
        np.testing.assert_allclose(np.array(logits[i, 0]), reference(text, model), atol=2e-5)
