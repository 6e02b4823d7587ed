"""A compressed trie over token ids (a radix tree): what is kept of texts, found by how they begin.

A node is the stretch of tokens by which its texts go on after its parent's; texts that begin alike share nodes. What a
node holds is the caller's; a node that is cut in two asks for both parts of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")

Tokens = array  # of "I": compared and cut at the speed of memory


def pack_tokens(tokens: Sequence[int]) -> Tokens[int]:
    """Token ids as the trie wants them."""
    return array("I", tokens)


def alike(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens at the beginning that both have in common."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # alike up to `low`, not up to `high`
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Node(Generic[V]):
    """A stretch of tokens, `edge`, that follows its parent's. `end` is how long the text is with it."""

    __slots__ = ("children", "edge", "end", "parent", "value")

    def __init__(self, edge: Tokens[int], parent: Node[V] | None, value: V | None) -> None:
        self.edge, self.parent, self.value = edge, parent, value
        self.end: int = len(edge) + (0 if parent is None else parent.end)
        self.children: dict[int, Node[V]] = {}


class TokenTrie(Generic[V]):
    """Texts that begin alike. `split(value, n)` gives a node's value to its first `n` tokens and to the rest."""

    def __init__(self, split: Callable[[V, int], tuple[V | None, V | None]]) -> None:
        self._split = split
        self._root: Node[V] = Node(pack_tokens(()), None, None)
        self.leaves = 0

    def path(self, tokens: Tokens[int]) -> list[tuple[Node[V], int]]:
        """The nodes along a text as far as it is known, each with how many tokens of its edge are the text's: all of
        them but for the last node, of which at least one is."""
        path: list[tuple[Node[V], int]] = []
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                break
            n = alike(child.edge, tokens[at : at + len(child.edge)])
            path.append((child, n))
            if n < len(child.edge):
                break
            node, at = child, at + n
        return path

    def grow(self, tokens: Tokens[int]) -> Node[V]:
        """The node where a text ends, which is not empty: made, with no value, where there was none."""
        path = self.path(tokens)
        node, at = self._root, 0
        for child, n in path:
            node, at = child if n == len(child.edge) else self._cut(child, n), at + n
        if at < len(tokens):
            leaf = Node(tokens[at:], node, None)
            self.leaves += bool(node.children) or node is self._root
            node.children[tokens[at]] = leaf
            node = leaf
        return node

    def remove(self, node: Node[V]) -> None:
        """Takes a leaf away."""
        assert not node.children
        assert node.parent is not None
        parent = node.parent
        del parent.children[node.edge[0]]
        node.parent = node.value = None
        self.leaves -= bool(parent.children) or parent is self._root

    def prune(self, node: Node[V]) -> None:
        """Takes a node without a value away, and those before it, as far as they lead to no value."""
        while node.parent is not None and not node.children and node.value is None:
            parent = node.parent
            self.remove(node)
            node = parent

    def nodes(self) -> Iterator[Node[V]]:
        """All, each before those that go on from it."""
        for child in self._root.children.values():
            yield from self.below(child)

    @staticmethod
    def below(node: Node[V]) -> Iterator[Node[V]]:
        """A node and all that go on from it, each before those that go on from it."""
        pending = [node]
        while pending:
            node = pending.pop()
            yield node
            pending += node.children.values()

    @staticmethod
    def above(node: Node[V]) -> Iterator[Node[V]]:
        """A node and those before it, the deepest first."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _cut(self, node: Node[V], n: int) -> Node[V]:
        """Cuts a node in two; the first part, which is the new one."""
        assert node.parent is not None
        head, tail = (None, None) if node.value is None else self._split(node.value, n)
        first = Node(node.edge[:n], node.parent, head)
        node.parent.children[node.edge[0]] = first
        node.edge, node.parent, node.value = node.edge[n:], first, tail
        first.children[node.edge[0]] = node
        return first
