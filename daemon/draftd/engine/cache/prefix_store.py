"""One model's part of the prefix cache: what is kept of its texts, and what of that serves a new one.

A store belongs to the drafter or verifier whose caches it keeps, and goes with it: weights that are read anew find
nothing that others computed."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from draftd.engine.cache.base import Caches, Kept, Snapshot, Stretch
from draftd.engine.cache.trie import Node, TokenTrie, packed
from draftd.engine.memory import give_back

_log = logging.getLogger(__name__)


LEAST = 16  # tokens: what is shorter costs as much to look up and copy as to compute


class Budget(Protocol):
    """What stores share: how much may be kept, and what was used last. A node is listed while it has a value."""

    @property
    def bound(self) -> int:
        """Bytes that may be kept."""
        ...

    def room(self, nbytes: int) -> bool:
        """Makes room for so many bytes more; whether they fit."""
        ...

    def used(self, store: PrefixStore, nodes: Sequence[Node[Any]]) -> None:
        """These were used now; the deepest comes first."""
        ...

    def forget(self, nodes: Sequence[Node[Any]]) -> None: ...

    def held(self, nbytes: int) -> None:
        """So many bytes more are held, or fewer."""
        ...


class PrefixStore(Protocol):
    """Engine thread only. Tokens are a text's, from its beginning."""

    @property
    def open(self) -> bool:
        """Whether anything may be kept at all."""
        ...

    def find(self, tokens: Sequence[int], most: int) -> list[Kept]:
        """What is kept of the longest known beginning of `tokens`, of at most `most` tokens, in order; nothing where
        that is too short to be of use."""
        ...

    def keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        """Keeps what `caches` hold of the first `length` of `tokens` for their row `row`, as far as it is not known and
        fits."""
        ...

    def drop(self, node: Node[Any]) -> None:
        """Lets go of one node's value, of which no text that is kept is a continuation."""
        ...

    def clear(self) -> None: ...

    @property
    def texts(self) -> int:
        """How many are kept, those not counted that others continue."""
        ...


class _PrefixStore:
    """What both kinds have in common."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    @property
    def open(self) -> bool:
        return self._budget.bound > 0

    def keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        if length < LEAST or not self.open:
            return
        try:
            self._keep(tokens, caches, row, length)
        except Exception as error:  # which costs a later request time, and this one nothing
            _log.warning("a request's cache could not be kept for later ones", exc_info=error)

    def _keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        raise NotImplementedError


class Stretches(_PrefixStore):
    """Of caches that can be kept in stretches: texts that begin alike share memory, one that goes on adds to it."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._trie: TokenTrie[Stretch] = TokenTrie(Stretch.split)

    @property
    def texts(self) -> int:
        return self._trie.leaves

    def find(self, tokens: Sequence[int], most: int) -> list[Kept]:
        path = self._trie.path(packed(tokens[:most]))
        if sum(n for _, n in path) < LEAST:
            return []
        self._budget.used(self, [node for node, _ in reversed(path)])
        return [_head(node.value, n) for node, n in path if node.value is not None]

    def _keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        each = caches.position_bytes
        length = min(length, self._budget.bound // each) if each else 0
        if length < LEAST:
            return
        text = packed(tokens[:length])
        assert len(text) == length, "the cache holds more than the text"
        path = self._trie.path(text)
        known = sum(n for _, n in path)
        self._budget.used(self, [node for node, _ in reversed(path)])
        if known == length or not self._budget.room((length - known) * each):
            return
        if any(node.parent is None for node, _ in path):  # went to make room
            return
        value = caches.extract(row, known, length)
        assert isinstance(value, Stretch)
        leaf = self._trie.grow(text)
        leaf.value = value
        self._budget.held(value.nbytes)
        self._budget.used(self, list(self._trie.above(leaf)))

    def drop(self, node: Node[Stretch]) -> None:
        assert node.value is not None
        self._budget.held(-node.value.nbytes)
        self._budget.forget([node])
        self._trie.remove(node)

    def clear(self) -> None:
        _clear(self._trie, self.drop)


class Snapshots(_PrefixStore):
    """Of caches that are kept as a whole. One serves a text that it is the beginning of, and where it can be cut back
    also one that it shares only the beginning with."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._trie: TokenTrie[Snapshot] = TokenTrie(lambda value, n: (None, value))
        self._texts = 0

    @property
    def texts(self) -> int:
        return self._texts

    def find(self, tokens: Sequence[int], most: int) -> list[Kept]:
        path = self._trie.path(packed(tokens[:most]))
        known = sum(n for _, n in path)
        if not path or known < LEAST:
            return []
        candidates = [(node, node.end) for node, n in reversed(path) if n == len(node.edge)]
        if (longer := self._serves(path[-1][0], known)) is not None:
            candidates.insert(0, (longer, known))
        for node, length in candidates:
            if node.value is not None and length >= LEAST and (cut := node.value.cut(length)) is not None:
                self._budget.used(self, [node])
                return [cut]
        return []

    def _keep(self, tokens: Sequence[int], caches: Caches, row: int, length: int) -> None:
        text = packed(tokens[:length])
        assert len(text) == length, "the cache holds more than the text"
        path = self._trie.path(text)
        if sum(n for _, n in path) == length and (there := self._serves(path[-1][0], length)) is not None:
            self._budget.used(self, [there])
            return
        value = caches.extract(row, 0, length)
        if value is None:
            return
        assert isinstance(value, Snapshot)
        before = [node for node, n in path if n == len(node.edge) and node.value is not None]
        for node in before:  # what this one can be cut back to needs not be kept besides
            if value.can_be_cut:
                self._let_go(node)
        if self._budget.room(value.nbytes):
            leaf = self._trie.grow(text)
            leaf.value = value
            self._texts += 1
            self._budget.held(value.nbytes)
            self._budget.used(self, [leaf])
        for node in before:
            self._tidy(node)

    def drop(self, node: Node[Snapshot]) -> None:
        self._let_go(node)
        self._tidy(node)

    def clear(self) -> None:
        _clear(self._trie, self.drop)

    def _serves(self, node: Node[Snapshot], length: int) -> Node[Snapshot] | None:
        """A node from this one on whose value holds the first `length` tokens, or can be cut back to them."""
        for other in self._trie.below(node):
            if other.value is not None and (other.end == length or other.value.can_be_cut):
                return other
        return None

    def _let_go(self, node: Node[Snapshot]) -> None:
        assert node.value is not None
        self._budget.held(-node.value.nbytes)
        self._budget.forget([node])
        node.value = None
        self._texts -= 1

    def _tidy(self, node: Node[Snapshot]) -> None:
        """Takes away what leads to no value."""
        while node.parent is not None and not node.children and node.value is None:
            parent = node.parent
            self._trie.remove(node)
            node = parent


def store_for(caches: Caches, budget: Budget) -> PrefixStore:
    """What keeps such caches."""
    return Stretches(budget) if caches.in_stretches else Snapshots(budget)


def _head(value: Stretch, n: int) -> Stretch:
    """The first `n` positions, to be read at once: they keep all of them alive."""
    return value if n == value.length else Stretch([a[:, :, :n] for a in value.arrays], n)


def _clear(trie: TokenTrie[Any], drop: Callable[[Node[Any]], None]) -> None:
    for node in reversed(list(trie.nodes())):
        if node.value is not None:
            drop(node)


class PrefixCache:
    """Engine thread only; the numbers may be read on any."""

    def __init__(self, limit_bytes: int = 0) -> None:
        """`limit_bytes` 0 keeps nothing."""
        self._limit = self._bound = limit_bytes
        self._bytes = 0
        self._order: OrderedDict[Node[Any], PrefixStore] = (
            OrderedDict()
        )  # the least recently used first; a child so before
        self._stores: list[PrefixStore] = []  # its parent, which is used whenever it is

    @property
    def bytes(self) -> int:
        """Held now."""
        return self._bytes

    @property
    def bound(self) -> int:
        """That may be held now: less than the limit while the machine's memory is short."""
        return self._bound

    @property
    def texts(self) -> int:
        """Kept now, those not counted that others continue. The target keeps more of them than a draft."""
        return max((store.texts for store in self._stores), default=0)

    def store(self, caches: Caches) -> PrefixStore:
        """A place for what such caches hold, of one model; `give_up` takes it back."""
        store = store_for(caches, self)
        self._stores.append(store)
        return store

    def give_up(self, store: PrefixStore) -> None:
        """All that this store keeps goes, and nothing more is found or kept there. No error where that was done."""
        store.clear()
        if store in self._stores:
            self._stores.remove(store)

    def allow(self, share: float) -> None:
        """From now on this share of the limit may be held; what is more goes, back to the system."""
        self._bound = int(self._limit * share)
        self.shed(self._bound)

    def shed(self, to_bytes: int) -> int:
        """Lets go of what was not used for longest until at most `to_bytes` are held; returns how many bytes that
        gave back to the system."""
        before = self._bytes
        self._evict(to_bytes)
        if self._bytes < before:
            give_back()
        return before - self._bytes

    # what the stores ask

    def room(self, nbytes: int) -> bool:
        if nbytes > self._bound:
            return False
        self._evict(self._bound - nbytes)
        return True

    def used(self, store: PrefixStore, nodes: Sequence[Node[Any]]) -> None:
        for node in nodes:
            self._order[node] = store
            self._order.move_to_end(node)

    def forget(self, nodes: Sequence[Node[Any]]) -> None:
        for node in nodes:
            self._order.pop(node, None)

    def held(self, nbytes: int) -> None:
        self._bytes += nbytes

    def _evict(self, to_bytes: int) -> None:
        while self._bytes > max(0, to_bytes):
            node, store = next(iter(self._order.items()))
            store.drop(node)
