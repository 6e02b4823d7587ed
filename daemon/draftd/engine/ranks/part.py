"""What one rank has of a model that several share, and how it executes operations on its caches: rank 0 and followers
alike, so that all of them begin the same collectives in the same order.

A collective is a node of the graph. It is begun when something is evaluated that depends on it, and a rank whose
collectives come in another order waits for good. So each forward is dispatched as soon as it is built, before anything
else is: with several forwards in an operation (for each row, or each width), each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import CachedPrefix, Caches, KVSegment, Positions
from draftd.engine.cache.factories import FULL
from draftd.engine.cache.layouts import WAYS, CacheBytes, CacheLayout, local_bytes, local_caches, refusals
from draftd.engine.ranks.channel import Progress
from draftd.engine.ranks.group import RankGroup

TENSOR, PIPELINE = "tensor", "pipeline"

_COLLECTIVES = ("all_sum", "all_gather", "all_max", "all_min", "sum_scatter", "send", "recv", "recv_like")


class Part:
    """`model`: mlx-lm's, with this rank's weights only. `layers`: what caches all of the model has, as for
    `layer_kinds`."""

    def __init__(self, model: Any, group: RankGroup, parallel: str, layers: dict[str, int]) -> None:
        self.model, self.group, self.parallel, self.layers = model, group, parallel, layers
        whole = set(layers) <= {FULL}
        self._pipeline = parallel == PIPELINE and group.size > 1
        #: Whether ranks may differ in how far their layers can be rolled back, and in what can be kept of a text.
        self.uneven = self._pipeline and not whole
        self._segmented = whole
        self._building = False
        self._collectives = 0  # of all forwards until now, about
        self._each = 0  # collectives of one forward of the model
        _dispatching(model, self)

    def agree(self) -> tuple[list[str], CacheBytes]:
        """All ranks call it, once, before any other operation: why each way to batch is wrong, as for `refusals`, of
        any rank; and what caches take of the rank where they take most."""
        own, self._each = refusals(self.model), self._count()
        right = self.group.least([not why for why in own])
        together = [
            why or ("" if ok else "other ranks' layers cannot do it") for why, ok in zip(own, right, strict=True)
        ]
        way = next((i for i, ok in enumerate(right) if ok), None)
        taken = local_bytes(self.caches(CacheLayout() if way is None else CacheLayout(True, **WAYS[way])))
        return together, CacheBytes(*self.group.most(taken))

    def caches(self, layout: CacheLayout) -> Caches:
        """This rank's own."""
        return local_caches(self.model, layout, segmented=self._segmented)

    def forward(self, caches: Caches, tokens: mx.array, widths: Sequence[int], at: Positions | None) -> mx.array:
        """`tokens` are those of rank 0: what others give must be zeros. Dispatched when it returns."""
        shared = mx.distributed.all_sum(tokens.astype(mx.uint32), group=self.group.handle)
        if self._pipeline:  # only one rank looks at them, and they are not to be left to be computed later
            mx.async_eval(shared)
        self._building, self._collectives = True, self._collectives + 1
        try:
            logits = caches.forward(shared, widths, at=at)
        finally:
            self._building = False
        mx.async_eval(caches.arrays())  # some collectives give only what a later forward reads (deepseek_v41)
        return logits

    def dispatch(self, logits: mx.array) -> None:
        """A forward of the model was built."""
        if self._building:
            self._collectives += self._each
            mx.async_eval(logits)

    def progress(self, records: int) -> Progress:
        """With so many records executed."""
        return Progress(records, mx.get_active_memory(), self._collectives * self.group.seconds)

    def rollback(self, caches: Caches, lengths: Sequence[int]) -> list[int]:
        """As far as the layers of all ranks can go."""
        reached = caches.rollback(lengths)
        while self.uneven:
            each = self.group.all(reached)
            least = [min(row) for row in zip(*each, strict=True)]
            if all(one == least for one in each):
                break
            reached = caches.rollback(least)
        return reached

    def extract(self, caches: Caches, row: int, start: int, end: int) -> tuple[CachedPrefix, int] | None:
        """What this rank holds of the row, and the fewest tokens that it can be cut to on every rank; None where that
        is not to be had on one of them."""
        found = caches.extract(row, start, end)
        least = 0 if found is None or isinstance(found, KVSegment) else found.least
        if self.uneven:
            (had,), (least,) = self.group.least([found is not None]), self.group.most([least])
            found = found if had else None
        return None if found is None else (found, least)

    def _count(self) -> int:
        """The collectives of a forward, by how often the model asks MLX for one while it is built. An estimate where
        it has compiled a part of itself before."""
        module, calls = mx.distributed, 0
        theirs: dict[str, Callable[..., Any]] = {name: getattr(module, name) for name in _COLLECTIVES}

        def counting(one: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                return one(*args, **named)

            return call

        for name, one in theirs.items():
            setattr(module, name, counting(one))
        try:
            self.caches(CacheLayout()).fresh().forward(mx.zeros((1, 1), dtype=mx.uint32), [1])
        finally:
            for name, one in theirs.items():
                setattr(module, name, one)
        return calls


def _dispatching(model: Any, part: Part) -> None:
    """Has the model tell of each forward."""
    kind = type(model)

    def call(self: Any, *args: Any, **named: Any) -> Any:
        logits = kind.__call__(self, *args, **named)
        part.dispatch(logits)
        return logits

    model.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
