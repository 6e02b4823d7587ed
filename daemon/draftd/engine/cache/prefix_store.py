"""The prefix cache: what is kept of texts' key-value caches, and what of that serves a text that begins alike.

Each model's caches have a store of their own, which goes with them: weights that are read anew find nothing that others
computed. All stores share one limit, and what was not used for longest goes first."""

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
    """The limit, and what was used last. Engine thread only; the numbers may be read on any."""

    def __init__(self, limit_bytes: int = 0) -> None:
        """`limit_bytes` 0 keeps nothing."""
        self.limit = limit_bytes
        self.bound = limit_bytes  # that may be held now: less than the limit while the machine's memory is short
        self.bytes = 0  # held now
        # The least recently used first. A child comes before its parent, which is used whenever it is.
        self._order: OrderedDict[Node[Any], PrefixStore] = OrderedDict()
        self._stores: list[PrefixStore] = []
        self.given_back: Callable[[], None] | None = None  #: called after memory was given back to the system
        #: Hears of each text of which a store has just kept, or had, so many tokens.
        self.listener: Callable[[PrefixStore, Sequence[int], int], None] | None = None

    @property
    def texts(self) -> int:
        """Kept now, those not counted that others continue. The target keeps more of them than a draft."""
        return max((store.texts for store in self._stores), default=0)

    def store(self, caches: Caches) -> PrefixStore:
        """For what such caches hold, of one model; `give_up` takes it back."""
        store = SegmentStore(self) if caches.segmented else SnapshotStore(self)
        self._stores.append(store)
        return store

    def give_up(self, store: PrefixStore) -> None:
        """All that this store keeps goes, and nothing more is found or kept there. No error where that was done."""
        store.clear()
        if store in self._stores:
            self._stores.remove(store)

    def allow(self, share: float) -> None:
        """From now on this share of the limit may be held; what is more goes, back to the system."""
        self.bound = int(self.limit * share)
        self.shed(self.bound)

    def shed(self, to_bytes: int) -> int:
        """Lets go of what was not used for longest until at most `to_bytes` are held; returns how many bytes that
        gave back to the system."""
        before = self.bytes
        self._evict(to_bytes)
        if self.bytes < before:
            give_back()
            if self.given_back is not None:
                self.given_back()
        return before - self.bytes

    # what stores ask

    def fits(self, nbytes: int) -> bool:
        """Makes room for so many bytes more; whether they fit."""
        if nbytes > self.bound:
            return False
        self._evict(self.bound - nbytes)
        return True

    def mark_used(self, store: PrefixStore, nodes: Iterable[Node[Any]]) -> None:
        """These were used now; the deepest comes first."""
        for node in nodes:
            self._order[node] = store
            self._order.move_to_end(node)

    def add_bytes(self, nbytes: int) -> None:
        """So many bytes more are held."""
        self.bytes += nbytes

    def forget(self, node: Node[Any]) -> None:
        """Stops counting and ordering a node whose value is dropped."""
        assert node.value is not None
        self.bytes -= node.value.nbytes
        self._order.pop(node, None)

    def _evict(self, to_bytes: int) -> None:
        while self.bytes > max(0, to_bytes):
            node, store = next(iter(self._order.items()))
            store.drop(node)


class PrefixStore(ABC):
    """The prefixes of one model's caches. Engine thread only. Tokens are a text's, from its beginning."""

    _trie: TokenTrie[Any]

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    @property
    def open(self) -> bool:
        """Whether anything may be kept at all."""
        return self._cache.bound > 0

    @property
    @abstractmethod
    def texts(self) -> int:
        """How many are kept, those not counted that others continue."""

    @abstractmethod
    def find(self, tokens: Sequence[int], most: int) -> list[CachedPrefix]:
        """What is kept of the longest known beginning of `tokens`, of at most `most` tokens, in order; nothing where
        that is too short to be of use."""

    def shared_length(self, tokens: Sequence[int], most: int) -> int:
        """How many of the first `most` tokens are those of a text that is kept, but cannot be found of it; 0 where all
        of them can."""
        return 0

    def keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        """Keeps what `caches` hold of the first `length` of `tokens` for their row `row`, as far as it is not known and
        fits."""
        if length < LEAST or not self.open:
            return
        try:
            self._keep(tokens, caches, row, length)
            if self._cache.listener is not None:
                self._cache.listener(self, tokens, length)
        except NotServing:
            raise  # a rank was lost
        except Exception as error:  # which costs a later request time, and this one nothing
            _log.warning("a request's cache could not be kept for later ones", exc_info=error)

    @abstractmethod
    def known_length(self, tokens: Sequence[int]) -> int:
        """How many of the first tokens `find` would find, each of them included. Nothing is used by that."""

    @abstractmethod
    def put(self, tokens: Sequence[int], value: CachedPrefix) -> None:
        """Keeps what was extracted elsewhere of the last positions of `tokens`, as many as it has, if it fits."""

    @abstractmethod
    def _keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None: ...

    @abstractmethod
    def drop(self, node: Node[Any]) -> None:
        """Lets go of one node's value, of which no text that is kept is a continuation."""

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
        return [node.value.head(n) for node, n in path if node.value is not None]

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
        """`rest` gives the positions after so many that are known, of which each takes `each` bytes."""
        path = self._trie.path(text)
        shared = sum(n for _, n in path)
        self._cache.mark_used(self, [node for node, _ in reversed(path)])
        if shared == len(text) or not self._cache.fits((len(text) - shared) * each):
            return
        if any(node.parent is None for node, _ in path):  # went to make room
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
    """Of caches that are kept as a whole. One serves a text that it is the beginning of, and where it can be cut back
    also one that it shares only the beginning with."""

    def __init__(self, cache: PrefixCache) -> None:
        super().__init__(cache)
        self._trie: TokenTrie[CacheSnapshot] = TokenTrie(lambda value, n: (None, value))
        self._texts = 0

    @property
    def texts(self) -> int:
        return self._texts

    def find(self, tokens: Sequence[int], most: int) -> list[CachedPrefix]:
        for node, length in self._candidates(tokens[:most]):
            if node.value is not None and (cut := node.value.cut(length)) is not None:
                self._cache.mark_used(self, [node])
                return [cut]
        return []

    def known_length(self, tokens: Sequence[int]) -> int:
        lengths = (n for node, n in self._candidates(tokens) if node.value is not None and node.value.least <= n)
        return next(lengths, 0)

    def put(self, tokens: Sequence[int], value: CachedPrefix) -> None:
        assert not isinstance(value, KVSegment)
        assert value.length == len(tokens)
        if self.known_length(tokens) < len(tokens):
            self._add(pack_tokens(tokens), value)

    def _candidates(self, tokens: Sequence[int]) -> list[tuple[Node[CacheSnapshot], int]]:
        """Where a beginning of this text may be had from, and how long that is; the longest first."""
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
        for node in before:  # what this one can be cut back to needs not be kept besides
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
        """A node from this one on whose value holds the first `length` tokens, or can be cut back to them."""
        for other in self._trie.below(node):
            if other.value is not None and (other.end == length or other.value.least <= length):
                return other
        return None

    def _let_go(self, node: Node[CacheSnapshot]) -> None:
        self._cache.forget(node)
        node.value = None
        self._texts -= 1
