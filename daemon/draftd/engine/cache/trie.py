"""A compressed trie over token ids (a radix tree) that finds values by how a text begins.

A node is a stretch of tokens that follows its parent's; texts that begin alike share nodes. The caller decides what a
node's value is, and how it is divided when a node is cut in two.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")

Tokens = array  # array("I"), which compares and slices at memory speed


def pack_tokens(tokens: Sequence[int]) -> Tokens[int]:
    """Returns token ids in the form that the trie stores."""
    return array("I", tokens)


def alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the length of the common beginning of two texts."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # equal up to `low`, not up to `high`
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Node(Generic[V]):
    """A stretch of tokens, `edge`, after its parent's. `end` is the length of the text up to the end of the edge."""

    __slots__ = ("children", "edge", "end", "parent", "value")

    def __init__(self, edge: Tokens[int], parent: Node[V] | None, value: V | None) -> None:
        self.edge, self.parent, self.value = edge, parent, value
        self.end: int = len(edge) + (0 if parent is None else parent.end)
        self.children: dict[int, Node[V]] = {}


class TokenTrie(Generic[V]):
    """Texts that share beginnings. `split(value, n)` divides a node's value into that of its first `n` tokens and the
    rest."""

    def __init__(self, split: Callable[[V, int], tuple[V | None, V | None]]) -> None:
        self._split = split
        self._root: Node[V] = Node(pack_tokens(()), None, None)
        self.leaves = 0

    def path(self, tokens: Tokens[int]) -> list[tuple[Node[V], int]]:
        """Returns the nodes along the known beginning of a text, each with how many tokens of its edge match: all of
        them, except for the last node, where at least one does."""
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
        """Returns the node at which a non-empty text ends, creating it without a value if there is none."""
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
        """Removes a leaf."""
        assert not node.children
        assert node.parent is not None
        parent = node.parent
        del parent.children[node.edge[0]]
        node.parent = node.value = None
        self.leaves -= bool(parent.children) or parent is self._root

    def prune(self, node: Node[V]) -> None:
        """Removes a node without a value, and its ancestors as long as they lead to no value."""
        while node.parent is not None and not node.children and node.value is None:
            parent = node.parent
            self.remove(node)
            node = parent

    def nodes(self) -> Iterator[Node[V]]:
        """Yields all nodes, parents before children."""
        for child in self._root.children.values():
            yield from self.below(child)

    @staticmethod
    def below(node: Node[V]) -> Iterator[Node[V]]:
        """Yields a node and its descendants, parents before children."""
        pending = [node]
        while pending:
            node = pending.pop()
            yield node
            pending += node.children.values()

    @staticmethod
    def above(node: Node[V]) -> Iterator[Node[V]]:
        """Yields a node and its ancestors, the deepest first."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _cut(self, node: Node[V], n: int) -> Node[V]:
        """Cuts a node in two and returns the new first part."""
        assert node.parent is not None
        head, tail = (None, None) if node.value is None else self._split(node.value, n)
        first = Node(node.edge[:n], node.parent, head)
        node.parent.children[node.edge[0]] = first
        node.edge, node.parent, node.value = node.edge[n:], first, tail
        first.children[node.edge[0]] = node
        return first
