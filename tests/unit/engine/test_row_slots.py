"""Rows join, leave and grow in place: what is held and what is copied stays in proportion to what is needed."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.step import places_after
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


def batch(lengths: list[int], most_rows: int | None = 8) -> tuple[BatchedCaches, list[list[int]]]:
    caches, texts = BatchedCaches(MODEL, most_rows), list[list[int]]()
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
def test_who_leaves_together_leaves_as_one_after_the_other(rows, data):
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
def test_any_order_of_any_rows_may_be_kept(data):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    caches, texts = batch(lengths, data.draw(st.sampled_from([None, 6])))
    keep = data.draw(st.permutations(range(len(lengths))).map(lambda p: p[: max(1, len(p) - 2)]))
    caches.select(keep)
    check(caches, [texts[i] for i in keep])


def test_a_joining_sequence_that_was_expected_costs_only_its_row():
    caches, texts = batch([200] * 3)
    new, text = row(caches, 700, 3)
    caches.expect([700])
    check(caches, texts, forwards=LAYERS)
    assert caches.nbytes == 4 * 768 * POSITION
    held = [id(array) for array in caches.arrays()]
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    caches.join(new)
    mx.eval(caches.arrays())
    assert mx.get_peak_memory() - before < 200 * POSITION, "no array was copied whole"
    assert [id(array) for array in caches.arrays()] == held
    caches.expect([])
    check(caches, [*texts, text])


def test_a_step_copies_no_array():
    caches, texts = batch([300, 310, 320])
    check(caches, texts, forwards=LAYERS)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(caches.forward(mx.array([[7]] * 3), [1] * 3), caches.arrays())
    assert mx.get_peak_memory() - before < caches.nbytes / LAYERS / 2


def test_who_leaves_is_replaced_by_the_last_row_alone():
    caches, texts = batch([300] * 8)
    check(caches, texts, forwards=LAYERS)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    caches.select(places_after(8, [2]))
    mx.eval(caches.arrays())
    assert mx.get_peak_memory() - before <= 3 * 512 * POSITION  # a row, and no more than what is being worked on
    check(caches, [texts[i] for i in places_after(8, [2])])


def test_arrays_grow_a_few_layers_at_a_time_and_before_they_must():
    caches, texts = batch([188, 150])
    sizes = []
    for _ in range(LAYERS):
        texts = [[*text, 7] for text in texts]
        caches.forward(mx.array([[7], [7]]), [1, 1])
        sizes.append(caches.nbytes // POSITION)
    assert sizes == [512, 512, 512, 512]
    texts = [[*text, 7] for text in texts]
    for _ in range(LAYERS):
        caches.forward(mx.array([[7], [7]]), [1, 1])
        caches.rollback([len(text) for text in texts])
        sizes.append(caches.nbytes // POSITION)
    assert sizes[LAYERS:] == [640, 768, 896, 1024]
    check(caches, texts)


def test_what_the_longest_row_needed_is_given_back_once_it_has_left():
    caches, texts = batch([40, 1400, 30, 20])
    check(caches, texts, forwards=LAYERS)
    assert caches.nbytes == 4 * 1536 * POSITION
    keep = places_after(4, [1])
    caches.select(keep)
    texts = [texts[i] for i in keep]
    sizes = []
    for _ in range(LAYERS):
        check(caches, texts)
        sizes.append(caches.nbytes // POSITION)
    assert sizes == [(4 - k) * 1536 + k * 256 for k in range(1, LAYERS + 1)]


def test_what_is_not_twice_too_much_is_kept():
    caches, texts = batch([400] * 4)
    check(caches, texts, forwards=LAYERS)
    for rows in (4, 3):
        caches.select(places_after(rows, [0]))
        texts = [texts[i] for i in places_after(rows, [0])]
    check(caches, texts, forwards=LAYERS)
    assert caches.nbytes == 4 * 512 * POSITION


@pytest.mark.parametrize(("most_rows", "slots"), [(None, 8), (8, 8), (6, 6), (5, 5)])
def test_room_for_rows_doubles_and_stops_at_the_most_there_may_be(most_rows, slots):
    caches, _ = batch([10] * 5, most_rows)
    assert caches.allocation.slots == slots


def test_a_row_with_nothing_in_it_joins_those_with_something_and_the_other_way():
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


def test_slots_that_are_given_back_are_memory_that_is_given_back():
    caches, texts = batch([180] * 8)
    check(caches, texts, forwards=LAYERS)
    caches.select([0, 1])
    before = mx.get_active_memory()
    check(caches, texts[:2], forwards=LAYERS)
    assert caches.nbytes == 2 * 256 * POSITION
    assert before - mx.get_active_memory() > 5 * 256 * POSITION
