"""The prefix cache: key-value caches of earlier texts, reused by texts that begin in the same way.

Each model has a store that lives as long as its caches, so reloaded weights never find prefixes of the old ones. All
stores share one limit; the least recently used prefixes are dropped first.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from draftd.engine.cache.base import CachedPrefix, Caches, CacheSnapshot, KVSegment
from draftd.engine.cache.pins import LEAST
from draftd.engine.cache.trie import Node, Tokens, TokenTrie, pack_tokens
from draftd.engine.memory import give_back
from draftd.errors import NotServing

_log = logging.getLogger(__name__)


class PrefixCache:
    """The limit and the order of use of all stores. Engine thread only; other threads may read the numbers."""

    def __init__(self, limit_bytes: int = 0) -> None:
        """`limit_bytes` 0 keeps nothing."""
        self.limit = limit_bytes
        self.bound = limit_bytes  # bytes allowed now: less than the limit while memory is short
        self.bytes = 0  # bytes in use
        # The least recently used first. A child comes before its parent, because using a child uses its parent.
        self._order: OrderedDict[Node[Any], PrefixStore] = OrderedDict()
        self._stores: list[PrefixStore] = []
        self.given_back: Callable[[], None] | None = None  #: called after memory was returned to the system
        #: Called with each text, and how many of its tokens a store has kept or already had.
        self.listener: Callable[[PrefixStore, Sequence[int], int], None] | None = None

    @property
    def texts(self) -> int:
        """Texts kept now, except those that another text continues: the count of the store that has most, usually the
        target's."""
        return max((store.texts for store in self._stores), default=0)

    def store(self, caches: Caches) -> PrefixStore:
        """Returns a store for one model's caches; `give_up` releases it."""
        store = SegmentStore(self) if caches.segmented else SnapshotStore(self)
        self._stores.append(store)
        return store

    def give_up(self, store: PrefixStore) -> None:
        """Drops everything in a store and closes it for good. May be called twice."""
        store.clear()
        if store in self._stores:
            self._stores.remove(store)

    def allow(self, share: float) -> None:
        """Allows this share of the limit from now on, and returns memory beyond it to the system."""
        self.bound = int(self.limit * share)
        self.shed(self.bound)

    def shed(self, to_bytes: int) -> int:
        """Drops the least recently used values until at most `to_bytes` are in use. Returns the bytes given back to the
        system."""
        before = self.bytes
        self._evict(to_bytes)
        if self.bytes < before:
            give_back()
            if self.given_back is not None:
                self.given_back()
        return before - self.bytes

    # calls of stores

    def fits(self, nbytes: int) -> bool:
        """Makes room for `nbytes` more. Returns whether they fit."""
        if nbytes > self.bound:
            return False
        self._evict(self.bound - nbytes)
        return True

    def mark_used(self, store: PrefixStore, nodes: Iterable[Node[Any]]) -> None:
        """Marks nodes as just used, the deepest first."""
        for node in nodes:
            self._order[node] = store
            self._order.move_to_end(node)

    def add_bytes(self, nbytes: int) -> None:
        """Adds `nbytes` to the bytes in use."""
        self.bytes += nbytes

    def forget(self, node: Node[Any]) -> None:
        """Removes a node whose value is dropped from the bytes and the order of use."""
        assert node.value is not None
        self.bytes -= node.value.nbytes
        self._order.pop(node, None)

    def _evict(self, to_bytes: int) -> None:
        while self.bytes > max(0, to_bytes):
            node, store = next(iter(self._order.items()))
            store.drop(node)


class PrefixStore(ABC):
    """The prefixes of one model's caches. Engine thread only. All `tokens` start at the beginning of a text."""

    _trie: TokenTrie[Any]

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    @property
    def open(self) -> bool:
        """Whether the store may keep anything."""
        return self._cache.bound > 0

    @property
    @abstractmethod
    def texts(self) -> int:
        """Texts kept, without those that another text continues."""

    @abstractmethod
    def find(self, tokens: Sequence[int], most: int) -> list[CachedPrefix]:
        """Returns the kept prefixes that together cover the longest known beginning of `tokens`, at most `most` tokens;
        none if it is too short to be useful."""

    def shared_length(self, tokens: Sequence[int], most: int) -> int:
        """Returns how many of the first `most` tokens belong to a kept text but cannot be reused from it; 0 if `find`
        covers them."""
        return 0

    def keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        """Keeps the first `length` of `tokens` from row `row` of `caches`, unless they are known already or do not
        fit."""
        if length < LEAST or not self.open:
            return
        try:
            self._keep(tokens, caches, row, length)
            if self._cache.listener is not None:
                self._cache.listener(self, tokens, length)
        except NotServing:
            raise  # a rank was lost: the engine must know
        except Exception as error:  # costs a later request time, this one nothing
            _log.warning("a request's cache could not be kept for later requests", exc_info=error)

    @abstractmethod
    def known_length(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first tokens `find` would cover, without marking anything as used."""

    @abstractmethod
    def put(self, tokens: Sequence[int], value: CachedPrefix) -> None:
        """Keeps a prefix extracted elsewhere, covering the last positions of `tokens`, if it fits."""

    @abstractmethod
    def _keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None: ...

    @abstractmethod
    def drop(self, node: Node[Any]) -> None:
        """Drops the value of a node that no kept text continues."""

    def clear(self) -> None:
        for node in reversed(list(self._trie.nodes())):
            if node.value is not None:
                self.drop(node)


class SegmentStore(PrefixStore):
    """Prefixes in segments: texts that begin alike share memory, and a longer text adds only its own part."""

    def __init__(self, cache: PrefixCache) -> None:
        super().__init__(cache)
        self._trie: TokenTrie[KVSegment] = TokenTrie(lambda value, n: value.split(n))

    @property
    def texts(self) -> int:
        return self._trie.leaves

    def find(self, tokens: Sequence[int], most: int) -> list[CachedPrefix]:
        path = self._trie.path(pack_tokens(tokens[:most]))
        if sum(n for _, n in path) < LEAST:
            return []
        self._cache.mark_used(self, [node for node, _ in reversed(path)])
        return [value.head(n) for node, n in path if (value := node.value) is not None]

    def known_length(self, tokens: Sequence[int]) -> int:
        return sum(n for _, n in self._trie.path(pack_tokens(tokens)))

    def put(self, tokens: Sequence[int], value: CachedPrefix) -> None:
        assert isinstance(value, KVSegment)
        start = len(tokens) - value.length

        def rest(shared: int) -> KVSegment:
            return value if shared == start else value.copy(shared - start, value.length)

        if self.known_length(tokens) >= start:
            self._add(pack_tokens(tokens), value.nbytes // value.length, rest)

    def _keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        each = caches.position_bytes
        length = min(length, self._cache.bound // each) if each else 0
        if length < LEAST:
            return
        text = pack_tokens(tokens[:length])
        assert len(text) == length, "the cache holds more than the text"

        def rest(shared: int) -> KVSegment:
            value = caches.extract(row, shared, length)
            assert isinstance(value, KVSegment)
            return value

        self._add(text, each, rest)

    def _add(self, text: Tokens[int], each: int, rest: Callable[[int], KVSegment]) -> None:
        """Adds the unknown part of a text. `rest(n)` returns the positions after the first n; each takes `each`
        bytes."""
        path = self._trie.path(text)
        shared = sum(n for _, n in path)
        self._cache.mark_used(self, [node for node, _ in reversed(path)])
        if shared == len(text) or not self._cache.fits((len(text) - shared) * each):
            return
        if any(node.parent is None for node, _ in path):  # the node was dropped to make room
            return
        value = rest(shared)
        leaf = self._trie.grow(text)
        leaf.value = value
        self._cache.add_bytes(value.nbytes)
        self._cache.mark_used(self, self._trie.above(leaf))

    def drop(self, node: Node[KVSegment]) -> None:
        self._cache.forget(node)
        self._trie.remove(node)


class SnapshotStore(PrefixStore):
    """Prefixes kept as whole snapshots. A snapshot serves a text that continues it, and, if it can be cut, a text that
    shares its beginning."""

    def __init__(self, cache: PrefixCache) -> None:
        super().__init__(cache)
        self._trie: TokenTrie[CacheSnapshot] = TokenTrie(lambda value, n: (None, value))
        self._texts = 0

    @property
    def texts(self) -> int:
        return self._texts

    def find(self, tokens: Sequence[int], most: int) -> list[CachedPrefix]:
        for node, length in self._candidates(tokens[:most]):
            if (value := node.value) is not None and (cut := value.cut(length)) is not None:
                self._cache.mark_used(self, [node])
                return [cut]
        return []

    def known_length(self, tokens: Sequence[int]) -> int:
        lengths = (n for node, n in self._candidates(tokens) if (value := node.value) is not None and value.least <= n)
        return next(lengths, 0)

    def put(self, tokens: Sequence[int], value: CachedPrefix) -> None:
        assert not isinstance(value, KVSegment)
        assert value.length == len(tokens)
        if self.known_length(tokens) < len(tokens):
            self._add(pack_tokens(tokens), value)

    def _candidates(self, tokens: Sequence[int]) -> list[tuple[Node[CacheSnapshot], int]]:
        """Returns the nodes that can serve a beginning of this text and its length, the longest first."""
        path = self._trie.path(pack_tokens(tokens))
        shared = sum(n for _, n in path)
        if not path or shared < LEAST:
            return []
        candidates = [(node, node.end) for node, n in reversed(path) if n == len(node.edge) and node.end >= LEAST]
        if (longer := self._serves(path[-1][0], shared)) is not None:
            candidates.insert(0, (longer, shared))
        return candidates

    def shared_length(self, tokens: Sequence[int], most: int) -> int:
        return sum(n for _, n in self._trie.path(pack_tokens(tokens[:most])))

    def _keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        text = pack_tokens(tokens[:length])
        assert len(text) == length, "the cache holds more than the text"
        path = self._trie.path(text)
        if sum(n for _, n in path) == length and (there := self._serves(path[-1][0], length)) is not None:
            self._cache.mark_used(self, [there])
            return
        value = caches.extract(row, 0, length)
        if value is not None:
            assert not isinstance(value, KVSegment)
            self._add(text, value)

    def _add(self, text: Tokens[int], value: CacheSnapshot) -> None:
        path = self._trie.path(text)
        before = [node for node, n in path if n == len(node.edge) and node.value is not None]
        for node in before:  # a snapshot that this one can be cut to need not be kept as well
            if value.least <= node.end:
                self._let_go(node)
        if self._cache.fits(value.nbytes):
            leaf = self._trie.grow(text)
            leaf.value = value
            self._texts += 1
            self._cache.add_bytes(value.nbytes)
            self._cache.mark_used(self, [leaf])
        for node in before:
            self._trie.prune(node)

    def drop(self, node: Node[CacheSnapshot]) -> None:
        self._let_go(node)
        self._trie.prune(node)

    def _serves(self, node: Node[CacheSnapshot], length: int) -> Node[CacheSnapshot] | None:
        """Returns a node, from this one down, whose snapshot has exactly the first `length` tokens or can be cut to
        them."""
        for other in self._trie.below(node):
            if (value := other.value) is not None and (other.end == length or value.least <= length):
                return other
        return None

    def _let_go(self, node: Node[CacheSnapshot]) -> None:
        self._cache.forget(node)
        node.value = None
        self._texts -= 1
