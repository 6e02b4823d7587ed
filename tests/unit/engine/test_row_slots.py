"""Rows join, leave and grow: what is held and what is copied stays in proportion to what is needed."""

from __future__ import annotations

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.engine.cache.base import places_after
from draftd.engine.cache.batched import BatchedCaches, CacheLayout
from draftd.engine.cache.model_layers import take_rows_apart
from tests.rig import tiny_llama

MODEL = tiny_llama(3, layers=4)
LAYERS, POSITION = 4, 4 * 2 * 2 * 8 * 4  # bytes: layers, keys and values, heads, dim, fp32


def row(caches: BatchedCaches, length: int, seed: int = 0) -> tuple[BatchedCaches, list[int]]:
    """One that may join, and its text."""
    text = [(7 * i + seed) % 31 for i in range(length)]
    new = caches.fresh(length)
    new.forward(mx.array([text]), [length])
    mx.eval(new.arrays())
    return new, text


def batch(lengths: list[int], apart: bool = True) -> tuple[BatchedCaches, list[list[int]]]:
    caches, texts = BatchedCaches(MODEL, CacheLayout(True, apart=apart and take_rows_apart(MODEL))), list[list[int]]()
    for seed, length in enumerate(lengths):
        new, text = row(caches, length, seed)
        caches.join(new)
        texts.append(text)
    return caches, texts


def check(caches: BatchedCaches, texts: list[list[int]], forwards: int = 1) -> None:
    for _ in range(forwards):
        caches.rollback([len(text) for text in texts])
        logits = caches.forward(mx.array([[7]] * len(texts)), [1] * len(texts))
        mx.eval(logits, caches.arrays())
    for i, text in enumerate(texts):
        alone = np.array(MODEL(mx.array([[*text, 7]]))[0, -1])
        np.testing.assert_allclose(np.array(logits[i, -1]), alone, atol=2e-5)
    caches.rollback([len(text) for text in texts])


@given(rows=st.integers(1, 9), data=st.data())
def test_removing_rows_together_gives_same_slots_as_one_after_another(rows, data):
    gone = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
    places = list(range(rows))
    for one in gone:
        at = places.index(one)
        after = places_after(len(places), [at])
        places = [places[i] for i in after]
    assert places_after(rows, gone) == places
    assert sorted(places) == [i for i in range(rows) if i not in gone]
    assert sum(place != one for place, one in enumerate(places)) <= len(gone)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_kv_cache_rows_can_be_selected_in_any_order(data):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    caches, texts = batch(lengths, data.draw(st.booleans()))
    keep = data.draw(st.permutations(range(len(lengths))).map(lambda p: p[: max(1, len(p) - 2)]))
    caches.select(keep)
    check(caches, [texts[i] for i in keep])


def allowed(texts: list[list[int]]) -> int:
    """Bytes: a quarter more than the tokens take, and 64 positions for each row."""
    return sum(5 * len(text) // 4 + 64 for text in texts) * POSITION


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("lengths", [[900] + [10] * 7, [10, 20, 40, 80, 160, 320, 640], [300] * 8, [700, 690, 5]])
def test_kv_cache_memory_is_proportional_to_tokens_for_rows_of_unequal_length(lengths, apart):
    caches, texts = batch(lengths, apart)
    for _ in range(3):
        check(caches, texts, forwards=2 * LAYERS)
        assert caches.nbytes <= allowed(texts)
        texts = [text + [7] * 9 for text in texts]
        while caches.lengths[0] < len(texts[0]):
            caches.forward(mx.array([[7]] * len(texts)), [1] * len(texts))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_kv_cache_memory_stays_proportional_while_rows_join_leave_and_grow(data):
    caches, texts = (
        BatchedCaches(MODEL, CacheLayout(True, apart=data.draw(st.booleans()) and take_rows_apart(MODEL))),
        list[list[int]](),
    )
    for seed in range(12):
        if texts and data.draw(st.integers(0, 3)) == 0:
            keep = places_after(len(texts), sorted(data.draw(st.sets(st.integers(0, len(texts) - 1)))))
            caches.select(keep)
            texts = [texts[i] for i in keep]
        elif len(texts) < 6:
            new, text = row(caches, data.draw(st.sampled_from([1, 5, 30, 100, 400])), seed)
            caches.join(new)
            texts.append(text)
        assert caches.nbytes <= allowed(texts)
        if texts:
            widths = data.draw(st.lists(st.integers(1, 9), min_size=len(texts), max_size=len(texts)))
            caches.forward(mx.array([[7] * max(widths)] * len(texts)), widths)
            texts = [text + [7] * width for text, width in zip(texts, widths, strict=True)]
            assert caches.nbytes <= allowed(texts)
    if texts:
        check(caches, texts)


def test_joining_row_copies_no_kv_cache_array():
    caches, texts = batch([200] * 3)
    check(caches, texts, forwards=LAYERS)
    new, text = row(caches, 700, 3)
    held = [id(array) for array in (*caches.arrays(), *new.arrays())]
    caches.join(new)
    assert sorted(id(array) for array in caches.arrays()) == sorted(held)
    check(caches, [*texts, text])


def test_kv_cache_rows_of_similar_length_share_one_array():
    caches, texts = batch([100, 110, 120, 900])
    check(caches, texts, forwards=LAYERS)
    assert [group.rows for group in caches._attention[0].groups] == [(0, 1, 2), (3,)]
    together, _ = batch([100, 110, 120, 900], apart=False)
    together.forward(mx.array([[7]] * 4), [1] * 4)
    assert len(together.window(None).groups) == 2, "as few as the memory allows"


def test_decode_step_copies_no_whole_kv_cache_array():
    caches, texts = batch([300, 310, 320])
    check(caches, texts, forwards=2 * LAYERS)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(caches.forward(mx.array([[7]] * 3), [1] * 3), caches.arrays())
    assert mx.get_peak_memory() - before < caches.nbytes / LAYERS / 2


def test_last_kv_cache_row_moves_to_a_removed_rows_place_without_copying_remaining_rows():
    caches, texts = batch([300] * 8)
    for _ in range(11):  # its arrays are nearly full: so many slots are not too much for seven rows
        caches.forward(mx.array([[7] * 8] * 8), [8] * 8)
        texts = [text + [7] * 8 for text in texts]
    check(caches, texts)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    caches.select(places_after(8, [2]))
    mx.eval(caches.arrays())
    assert mx.get_peak_memory() - before <= 3 * 512 * POSITION  # a row, and no more than what is being worked on
    check(caches, [texts[i] for i in places_after(8, [2])])


def test_kv_cache_layers_grow_one_after_another_over_several_steps():
    caches, texts = batch([188])
    sizes = []
    while len(set(sizes)) < 2 or sizes[-1] != sizes[-2]:
        texts = [[*text, 7] for text in texts]
        caches.forward(mx.array([[7]]), [1])
        sizes.append(caches.nbytes // POSITION)
    steps = [after - before for before, after in pairwise(sizes) if after != before]
    assert len(steps) == LAYERS
    assert len(set(steps)) == 1
    check(caches, texts)


def test_empty_and_filled_kv_cache_rows_can_join_one_batch():
    for lengths in ([0, 3], [3, 0], [0, 0, 2]):
        caches, texts = BatchedCaches(MODEL), list[list[int]]()
        for length in lengths:
            new = caches.fresh(length)
            text = list(range(length))
            if text:
                new.forward(mx.array([text]), [length])
            caches.join(new)
            texts.append(text)
        check(caches, texts)


def test_removing_rows_returns_their_kv_cache_memory():
    caches, texts = batch([180] * 8)
    check(caches, texts, forwards=2 * LAYERS)
    before = mx.get_active_memory()
    caches.select([0, 1])
    mx.eval(caches.arrays())
    assert caches.nbytes <= allowed(texts[:2])
    assert before - mx.get_active_memory() > 5 * 180 * POSITION
    check(caches, texts[:2])


def test_kv_cache_row_left_out_of_steps_rejoins_batch_without_copying_arrays():
    caches, texts = batch([40, 40, 40])
    for _ in range(3):  # each lies alone from its first rest on
        caches.join(caches.split([0], rest=True))
    check(caches, texts)
    for _ in range(6):
        held = {id(array) for array in caches.arrays()}
        alone = caches.split([0], rest=True)
        texts = [*texts[1:], texts[0]]
        check(caches, texts[:2])
        caches.join(alone)
        check(caches, texts)
        assert len(caches.windows[None].groups) == 3
        assert {id(array) for array in caches.arrays()} == held
