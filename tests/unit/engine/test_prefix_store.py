"""What is kept of texts is found by how they begin, is exact, and is bounded: against a model that keeps every text."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from draftd.engine.cache import window
from draftd.engine.cache.base import CachedPrefix, KVSegment
from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.per_sequence import PerSequenceCaches
from draftd.engine.cache.pins import LEAST
from draftd.engine.cache.prefix_store import PrefixCache, SegmentStore
from draftd.engine.cache.trie import TokenTrie, alike, pack_tokens
from tests.rig import tiny_llama

EACH = 8  # bytes of a position: a key and a value, each one number
TOKENS = st.integers(0, 2)


class Texts:
    """Caches in which the key and the value of a position are its token; one row."""

    segmented = True
    position_bytes = EACH

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.extracted: list[tuple[int, int]] = []

    def extract(self, row: int, start: int, end: int) -> CachedPrefix:
        self.extracted.append((start, end))
        part = mx.array(self.tokens[start:end], dtype=mx.float32)[None, None, :, None]
        return KVSegment([[part, part + 0]], end - start)


def told(kept: list[CachedPrefix]) -> list[int]:
    """The tokens that what was found holds."""
    for piece in kept:
        assert isinstance(piece, KVSegment)
        assert piece.layers[0][0].shape[2] == piece.length
    return [int(t) for piece in kept for t in piece.layers[0][1][0, 0, :, 0].tolist()]  # type: ignore[union-attr]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def beginnings(texts: Sequence[Sequence[int]]) -> int:
    """Positions that texts hold which share what they have in common."""
    return len({tuple(text[: i + 1]) for text in texts for i in range(len(text))})


@st.composite
def texts(draw):
    """Some that begin alike: each goes on from a part of one before it."""
    out: list[list[int]] = []
    for _ in range(draw(st.integers(1, 7))):
        base = draw(st.sampled_from(out)) if out and draw(st.booleans()) else []
        runs = draw(st.lists(st.tuples(TOKENS, st.integers(1, 20)), min_size=1, max_size=5))
        more = [token for token, n in runs for _ in range(n)]
        out.append([*base[: draw(st.integers(len(base) // 2, len(base)))], *more])
    return out


@settings(max_examples=60, deadline=None)
@given(texts(), texts())
def test_prefix_store_finds_longest_common_beginning_and_stores_shared_parts_once(kept, asked):
    budget = PrefixCache(1 << 30)
    store = budget.store(Texts([]))  # type: ignore[arg-type]
    known: list[list[int]] = []
    for text in kept:
        store.keep(text, Texts(text), 0, len(text))  # type: ignore[arg-type]
        if len(text) >= LEAST:
            known.append(text)
        assert budget.bytes == EACH * beginnings(known)
    for text in [*kept, *asked]:
        longest = max((common(text, other) for other in known), default=0)
        assert told(store.find(text, len(text))) == (text[:longest] if longest >= LEAST else [])
        assert len(told(store.find(text, 20))) <= 20
    ends = {tuple(t) for t in known if not any(len(o) > len(t) and o[: len(t)] == t for o in known)}
    assert budget.texts == len(ends)


@settings(max_examples=60, deadline=None)
@given(texts(), st.integers(0, 90), st.data())
def test_prefix_cache_stays_within_byte_bound_and_finds_only_true_beginnings_of_text(kept, positions, data):
    budget = PrefixCache(EACH * positions)
    stores = [budget.store(Texts([])) for _ in range(2)]  # type: ignore[arg-type]
    for text in kept:
        data.draw(st.sampled_from(stores)).keep(text, Texts(text), 0, len(text))  # type: ignore[arg-type]
        assert budget.bytes <= budget.bound
        for store in stores:
            other = data.draw(st.sampled_from(kept))
            found = told(store.find(other, len(other)))
            assert found == other[: len(found)]
        if data.draw(st.integers(0, 3)) == 0:
            most = data.draw(st.integers(0, EACH * positions))
            before = budget.bytes
            assert budget.shed(most) == before - budget.bytes
            assert budget.bytes <= most
    assert budget.bytes == sum(_held(store) for store in stores)
    for store in stores:
        budget.give_up(store)
    assert (budget.bytes, budget.texts) == (0, 0)


def _held(store: object) -> int:
    assert isinstance(store, SegmentStore)
    return sum(node.value.nbytes for node in store._trie.nodes() if node.value is not None)


def test_prefix_store_copies_only_new_tokens_of_an_extended_text():
    budget = PrefixCache(1 << 20)
    text = [i % 7 for i in range(100)]
    store, caches = budget.store(Texts(text)), Texts(text)  # type: ignore[arg-type]
    for length in (40, 40, 100, 70):
        store.keep(text, caches, 0, length)  # type: ignore[arg-type]
    assert caches.extracted == [(0, 40), (40, 100)]
    assert (budget.bytes, budget.texts) == (100 * EACH, 1)


def test_prefix_store_evicts_the_least_recent_text_from_its_end():
    budget = PrefixCache(100 * EACH)
    store = budget.store(Texts([]))  # type: ignore[arg-type]
    old, new = [1] * 20 + [2] * 20, [2] * 40
    for text in (old[:20], old, new):
        store.keep(text, Texts(text), 0, len(text))  # type: ignore[arg-type]
    store.find(old[:30], 30)
    store.keep([3] * 40, Texts([3] * 40), 0, 40)  # type: ignore[arg-type]
    assert not store.find(new, 40)
    assert len(told(store.find(old, 40))) == 40
    store.find([3] * 40, 40)
    budget.shed(70 * EACH)
    assert len(told(store.find(old, 40))) == 20
    assert len(told(store.find([3] * 40, 40))) == 40


def test_prefix_store_keeps_beginning_of_text_larger_than_its_bound():
    budget = PrefixCache(50 * EACH)
    store = budget.store(Texts([]))  # type: ignore[arg-type]
    text = [i % 5 for i in range(80)]
    store.keep(text, Texts(text), 0, 80)  # type: ignore[arg-type]
    assert told(store.find(text, 80)) == text[:50]


def test_prefix_cache_is_emptied_while_memory_is_short_and_refilled_later():
    budget = PrefixCache(80 * EACH)
    store = budget.store(Texts([]))  # type: ignore[arg-type]
    text = [1] * 40

    def keep() -> None:
        store.keep(text, Texts(text), 0, 40)  # type: ignore[arg-type]

    keep()
    budget.allow(0.0)
    assert (budget.bytes, store.open) == (0, False)
    keep()
    assert budget.bytes == 0
    budget.allow(1.0)
    keep()
    assert budget.bytes == 40 * EACH


def test_prefix_whose_copy_fails_is_not_stored():
    class Broken(Texts):
        def extract(self, row: int, start: int, end: int) -> CachedPrefix:
            raise MemoryError("no more")

    budget = PrefixCache(1 << 20)
    store = budget.store(Texts([]))  # type: ignore[arg-type]
    store.keep([1] * 40, Broken([1] * 40), 0, 40)  # type: ignore[arg-type]
    assert (budget.bytes, store.find([1] * 40, 40)) == (0, [])


@given(st.lists(TOKENS, max_size=50), st.lists(TOKENS, max_size=50))
def test_common_beginning_length_of_two_token_sequences_is_counted_in_tokens_not_bytes(a, b):
    assert alike(pack_tokens(a), pack_tokens(b)) == common(a, b)
    assert alike(pack_tokens(a), pack_tokens(a + b)) == len(a)


def test_token_trie_counts_leaves_as_texts_are_removed():
    trie: TokenTrie[int] = TokenTrie(lambda value, n: (None, value))
    nodes = [trie.grow(pack_tokens(text)) for text in ([1, 2, 3], [1, 2, 4], [1, 2, 3, 5], [6])]
    assert trie.leaves == 3
    for node, left in ((nodes[2], 3), (nodes[0], 2), (nodes[1], 2), (nodes[3], 1)):
        trie.remove(node)
        assert trie.leaves == left
    assert [list(node.edge) for node in trie.nodes()] == [[1, 2]]


@pytest.mark.parametrize("layout", [BatchedCaches, PerSequenceCaches])
def test_kv_caches_restored_from_prefix_store_give_exact_logits(layout):
    """In a batch, after rollbacks, and cut back to what two texts share."""
    model = tiny_llama(3)
    running = BatchedCaches(model) if layout is BatchedCaches else PerSequenceCaches(model)
    budget = PrefixCache(1 << 20)
    store = budget.store(running)
    base = [(i * 11) % 31 for i in range(300)]
    lengths = [270, 40, 133]
    for length in lengths:
        new = running.fresh()
        new.forward(mx.array([base[:length]]), [length])
        running.join(new)
    running.forward(mx.array([[5, 6, 7], [1, 2, 3], [9, 9, 9]]), [3, 2, 3])
    running.rollback([271, 40, 135])
    kept = [[*base[:270], 5], base[:40], [*base[:133], 9, 9]]
    for row, text in enumerate(kept):
        store.keep(text, running, row, len(text))
    running.select([1])
    asked = [[*kept[0], 8], [*kept[2], 4], [*base[:100], 30], [*kept[2][:134], 30]]
    for text, known in zip(asked, [271, 135, 100, 134], strict=True):
        caches = running.fresh()
        caches.restore(store.find(text, len(text) - 1))
        assert caches.lengths == [known]
        logits = caches.forward(mx.array([text[known:]]), [len(text) - known])
        assert mx.allclose(logits[0, -1], model(mx.array([text]))[0, -1], atol=2e-5)
        running.join(caches)
    logits = running.forward(mx.array([[3]] * 5), [1] * 5)
    for i, text in enumerate([base[:40], *asked]):
        assert mx.allclose(logits[i, -1], model(mx.array([[*text, 3]]))[0, -1], atol=2e-5)


def test_wrapped_ring_cache_prefix_serves_only_texts_that_extend_it():
    model = tiny_llama(4, sliding=32)
    running = PerSequenceCaches(model)
    store = PrefixCache(1 << 20).store(running)
    base = [(i * 11) % 31 for i in range(60)]
    caches = running.fresh()
    for start, end in ((0, 20), (20, 50)):
        caches.forward(mx.array([base[start:end]]), [end - start])
        store.keep(base, caches, 0, end)
    assert store.texts == 2, "a ring cannot give back what came before it was full"
    store.keep(base, caches, 0, 45)
    assert store.texts == 2, "nor be cut"
    for text, known in ((base, 50), (base[:49], 20), ([*base[:30], 3], 20), (base[:18], 17)):
        found = store.find(text, len(text) - 1)
        again = running.fresh()
        again.restore(found)
        assert again.lengths == [known]
        logits = again.forward(mx.array([text[known:]]), [len(text) - known])
        assert mx.allclose(logits[0, -1], model(mx.array([text]))[0, -1], atol=2e-5)
    assert len(store.find(base, 59)) == 1, "what was handed out was not written to"


class WithASpareCache:
    """A model that has a cache which it never uses."""

    def __init__(self, model):
        self._model = model

    def make_cache(self):
        return [KVCache() for _ in range(3)]

    def modules(self):
        return self._model.modules()

    def __call__(self, tokens, cache):
        return self._model(tokens, cache=cache[:2])


def test_never_used_layer_cache_is_stored_and_restored_as_empty():
    model = WithASpareCache(tiny_llama(3))
    running = BatchedCaches(model)
    store, caches = PrefixCache(1 << 20).store(running), running.fresh()
    base = [(i * 11) % 31 for i in range(40)]
    caches.forward(mx.array([base[:30]]), [30])
    store.keep(base, caches, 0, 30)
    again = running.fresh()
    again.restore(store.find(base, 39))
    logits = again.forward(mx.array([base[30:]]), [10])
    assert mx.allclose(logits[0, -1], model(mx.array([base]), [None, None, None])[0, -1], atol=2e-5)


def test_sliding_window_prefix_serves_only_texts_still_within_its_window(monkeypatch):
    monkeypatch.setattr(window, "_LEAST_ROOM", 8)
    model = tiny_llama(4, sliding=8)
    running = make_caches(model)
    store = PrefixCache(1 << 20).store(running)
    base = [(i * 11) % 31 for i in range(90)]
    caches = running.fresh(90)
    for start in range(0, 80, 5):
        caches.forward(mx.array([base[start : start + 5]]), [5])
        if start in (15, 75):
            store.keep(base, caches, 0, start + 5)
    running.join(caches)
    store.keep(base, running, 0, 40)
    assert store.texts == 2, "the windows have gone on from there"
    for text, known in ((base, 80), (base[:78], 77), (base[:50], 20), ([*base[:18], 3], 18), (base[:17], 16)):
        again = running.fresh()
        again.restore(store.find(text, len(text) - 1))
        assert again.lengths == [known]
        logits = again.forward(mx.array([text[known:]]), [len(text) - known])
        assert mx.allclose(logits[0, -1], model(mx.array([text]))[0, -1], atol=2e-5)
    logits = running.forward(mx.array([[base[80]]]), [1])
    assert mx.allclose(logits[0, -1], model(mx.array([base[:81]]))[0, -1], atol=2e-5)


def test_longer_prefix_of_truncatable_caches_replaces_its_shorter_beginnings():
    model = tiny_llama(3)
    running = PerSequenceCaches(model)
    budget = PrefixCache(1 << 20)
    store, caches = budget.store(running), running.fresh()
    base = [(i * 11) % 31 for i in range(60)]
    for start, end in ((0, 20), (20, 40), (40, 60)):
        caches.forward(mx.array([base[start:end]]), [end - start])
        store.keep(base, caches, 0, end)
    assert (store.texts, budget.bytes) == (1, caches.nbytes)
    budget.shed(0)
    assert (store.texts, budget.bytes) == (0, 0)
    assert not list(store._trie.nodes())  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", [BatchedCaches, PerSequenceCaches])
def test_prefix_cache_byte_count_matches_mlx_memory_and_is_freed_when_shed(layout):
    model = tiny_llama(3)
    running = BatchedCaches(model) if layout is BatchedCaches else PerSequenceCaches(model)
    budget = PrefixCache(64 << 20)
    store = budget.store(running)
    gc.collect()  # or what an earlier test left would be freed meanwhile
    before = mx.get_active_memory()
    for first in range(3):
        caches = running.fresh()
        text = [first, *[(i * 11) % 31 for i in range(4000)]]
        caches.forward(mx.array([text]), [len(text)])
        mx.eval(caches.arrays())
        store.keep(text, caches, 0, 3000 if layout is BatchedCaches else 4001)
        store.keep(text[:2000] + [30] * 20, caches, 0, 2000)
        caches.clear()
        del caches
    slack = 32 * 16384  # for each array, what MLX may leave at its end
    assert 0 <= mx.get_active_memory() - before - budget.bytes < slack
    assert budget.bytes == 3 * (3000 if layout is BatchedCaches else 4096) * 256
    text = [0, *[(i * 11) % 31 for i in range(1000)], 17, 18]
    assert store.find(text, 1003)
    store.keep(text, _of(running, text), 0, 1003)  # cuts what is kept in two
    assert mx.get_active_memory() - before - budget.bytes < slack
    budget.shed(budget.bytes // 2)
    assert mx.get_active_memory() - before - budget.bytes < slack
    budget.shed(0)
    assert mx.get_active_memory() - before < slack


def _of(running, text):
    caches = running.fresh()
    caches.forward(mx.array([text]), [len(text)])
    return caches
