"""The prefix cache: key-value caches of finished prompts and their answers, for requests that begin alike.

Bounded by bytes, over all models; what was not used for longest goes first. What a text is computed from is always
copied out of it, so that letting go never touches a request that runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from draftd.engine.cache import Caches
from draftd.engine.memory import give_back
from draftd.engine.shelves import Shelf, shelf_of
from draftd.engine.trie import Node


class PrefixCache:
    """Engine thread only; the numbers may be read on any."""

    def __init__(self, limit_bytes: int = 0) -> None:
        """`limit_bytes` 0 keeps nothing."""
        self._limit = self._bound = limit_bytes
        self._bytes = 0
        self._order: OrderedDict[Node[Any], Shelf] = OrderedDict()  # the least recently used first; a child so before
        self._shelves: list[Shelf] = []  # its parent, which is used whenever it is

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
        return max((shelf.texts for shelf in self._shelves), default=0)

    def shelf(self, caches: Caches) -> Shelf:
        """A place for what such caches hold, of one model; `give_up` takes it back."""
        shelf = shelf_of(caches, self)
        self._shelves.append(shelf)
        return shelf

    def give_up(self, shelf: Shelf) -> None:
        """All that this shelf keeps goes, and nothing more is found or kept there. No error where that was done."""
        shelf.clear()
        if shelf in self._shelves:
            self._shelves.remove(shelf)

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

    # what the shelves ask

    def room(self, nbytes: int) -> bool:
        if nbytes > self._bound:
            return False
        self._evict(self._bound - nbytes)
        return True

    def used(self, shelf: Shelf, nodes: Sequence[Node[Any]]) -> None:
        for node in nodes:
            self._order[node] = shelf
            self._order.move_to_end(node)

    def forget(self, nodes: Sequence[Node[Any]]) -> None:
        for node in nodes:
            self._order.pop(node, None)

    def held(self, nbytes: int) -> None:
        self._bytes += nbytes

    def _evict(self, to_bytes: int) -> None:
        while self._bytes > max(0, to_bytes):
            node, shelf = next(iter(self._order.items()))
            shelf.drop(node)
