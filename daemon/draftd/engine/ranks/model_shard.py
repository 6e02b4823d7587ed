"""One rank's part of a shared model, and how it executes operations on its caches.

The part is a slice of each layer (mlx-lm's `shard()`) or some of the layers (its `pipeline()`). Rank 0 and followers
execute operations in the same way, so that all begin the same collectives in the same order.

A collective is a node of the graph, and begins when something that depends on it is evaluated. A rank whose collectives
come in another order waits forever. So each forward is dispatched as soon as it is built, before anything else; of
several forwards in one operation, each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import CachedPrefix, Caches, KVSegment, Positions
from draftd.engine.cache.batched import FULL, CacheLayout, layer_kinds
from draftd.engine.cache.layouts import WAYS, CacheBytes, local_bytes, local_caches, refusals
from draftd.engine.memory import free_bytes
from draftd.engine.ranks.channel import Progress
from draftd.engine.ranks.group import RankGroup
from draftd.errors import ModelLoadError, in_one_line
from draftd.models.folder import ModelFolder, check_scales, parameters, read

TENSOR, PIPELINE = "tensor", "pipeline"
_FEWER = "use as many ranks as divide its heads, or a model that mlx-lm can pipeline"

_COLLECTIVES = ("all_sum", "all_gather", "all_max", "all_min", "sum_scatter", "send", "recv", "recv_like")


class ModelShard:
    """`model`: mlx-lm's, with this rank's weights only. `layers`: the whole model's cache kinds, as `layer_kinds`
    returns them."""

    def __init__(self, model: Any, group: RankGroup, parallel: str, layers: dict[str, int]) -> None:
        self.model, self.group, self.parallel, self.layers = model, group, parallel, layers
        whole = set(layers) <= {FULL}
        self._pipeline = parallel == PIPELINE and group.size > 1
        #: Whether ranks may differ in how far they can roll back and which prefixes they can keep.
        self.uneven = self._pipeline and not whole
        self._segmented = whole
        self._building = False
        self._collectives = 0  # collectives of all forwards so far, approximately
        self._each = 0  # collectives of one forward of the model
        _dispatching(model, self)

    def agree(self) -> tuple[list[str], CacheBytes, int]:
        """Returns what all ranks agree on: for each of `WAYS` to batch, why the way fails on some rank (empty if it
        works on all); cache bytes on the rank with the largest caches; free bytes of the rank with the least. All ranks
        call this once, before any other operation."""
        own, self._each = refusals(self.model), self._count()
        right = self.group.least([not why for why in own])
        together = [
            why or ("" if ok else "other ranks' layers cannot do it") for why, ok in zip(own, right, strict=True)
        ]
        way = next((i for i, ok in enumerate(right) if ok), None)
        taken = local_bytes(self.caches(CacheLayout() if way is None else CacheLayout(True, **WAYS[way])))
        (free,) = self.group.least([free_bytes()])
        return together, CacheBytes(*self.group.most(taken)), free

    def caches(self, layout: CacheLayout) -> Caches:
        """Returns this rank's own caches."""
        return local_caches(self.model, layout, segmented=self._segmented)

    def forward(self, caches: Caches, tokens: mx.array, widths: Sequence[int], at: Positions | None) -> mx.array:
        """Builds and dispatches a forward. `tokens` are rank 0's: other ranks must pass zeros."""
        shared = mx.distributed.all_sum(tokens.astype(mx.uint32), group=self.group.handle)
        if self._pipeline:  # only one rank reads them, and they must not be computed later
            mx.async_eval(shared)
        self._building, self._collectives = True, self._collectives + 1
        try:
            logits = caches.forward(shared, widths, at=at)
        finally:
            self._building = False
        mx.async_eval(caches.arrays())  # some collectives feed only a later forward (deepseek_v41)
        return logits

    def dispatch(self, logits: mx.array) -> None:
        """Dispatches a forward of the model that was just built."""
        if self._building:
            self._collectives += self._each
            mx.async_eval(logits)

    def progress(self, records: int) -> Progress:
        """Returns the progress after `records` executed records."""
        seconds = self._collectives * self.group.seconds
        return Progress(records, mx.get_active_memory(), collective_seconds=seconds)

    def rollback(self, caches: Caches, lengths: Sequence[int]) -> list[int]:
        """Rolls back as far as the layers of all ranks can."""
        reached = caches.rollback(lengths)
        while self.uneven:
            each = self.group.all(reached)
            least = [min(row) for row in zip(*each, strict=True)]
            if all(row == least for row in each):
                break
            reached = caches.rollback(least)
        return reached

    def extract(self, caches: Caches, row: int, start: int, end: int) -> tuple[CachedPrefix, int] | None:
        """Returns this rank's part of the row, and the fewest tokens that it can be cut to on every rank; None if a
        rank cannot extract it."""
        prefix = caches.extract(row, start, end)
        least = 0 if prefix is None or isinstance(prefix, KVSegment) else prefix.least
        if self.uneven:
            (had,), (least,) = self.group.least([prefix is not None]), self.group.most([least])
            prefix = prefix if had else None
        return None if prefix is None else (prefix, least)

    def _count(self) -> int:
        """Counts the collectives that the model requests while one forward is built. Parts that were compiled before
        request none, so the count is then too low."""
        module, calls = mx.distributed, 0
        theirs: dict[str, Callable[..., Any]] = {name: getattr(module, name) for name in _COLLECTIVES}

        def counting(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                return function(*args, **named)

            return call

        for name, function in theirs.items():
            setattr(module, name, counting(function))
        try:
            self.caches(CacheLayout()).fresh().forward(mx.zeros((1, 1), dtype=mx.uint32), [1])
        finally:
            for name, function in theirs.items():
                setattr(module, name, function)
        return calls


def _dispatching(model: Any, part: ModelShard) -> None:
    """Makes the model dispatch each forward through `part`."""
    kind = type(model)

    def call(self: Any, *args: Any, **named: Any) -> Any:
        logits = kind.__call__(self, *args, **named)
        part.dispatch(logits)
        return logits

    model.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def open_share(folder: ModelFolder, group: RankGroup) -> tuple[ModelShard, dict[str, Any]]:
    """Opens this rank's share without reading weights, and the model's configuration. Raises ModelLoadError, on all
    ranks alike, if the model cannot be divided among them."""
    parts = list[ModelShard]()

    def cut(opened: Callable[[], Any]) -> Any:
        with folder.naming_errors("it cannot be shared"):
            parts.append(share_of(opened, group))
        return parts[0].model

    _, config = folder.open(cut)
    return parts[0], config


def read_share(part: ModelShard, name: str) -> None:
    """Reads the weights, a few arrays at a time. MLX reads a whole array, takes this rank's slice and frees the rest,
    so the overhead is about one array; other ranks' layers are never read. Raises ModelLoadError."""
    for _ in read(parameters(part.model), name):
        pass
    check_scales(part.model, name)


def share_of(opened: Callable[[], Any], group: RankGroup, *, tensor: bool = True) -> ModelShard:
    """Divides a model among the ranks: tensor parallel if it has `shard()` and its sizes divide evenly, unless `tensor`
    is off; otherwise pipeline.

    `opened` returns the whole model without weights, a new one each time. Raises ModelLoadError, on all ranks alike,
    with what the model lacks."""
    model = opened()
    layers = layer_kinds(model)
    if group.size == 1:
        return ModelShard(model, group, TENSOR, layers)
    no_shard = "mlx-lm has no shard() for it"
    if tensor and hasattr(model, "shard"):
        no_shard = _shard(model, group)
        if not no_shard:
            return ModelShard(model, group, TENSOR, layers)
        model = opened()  # the other one is partly cut
    no_pipeline = _pipeline_layers(model, group)
    if no_pipeline:
        kind = type(model).__module__.rpartition(".")[2]
        raise ModelLoadError(f"{kind} cannot run on {group.size} ranks: {no_shard}, and {no_pipeline}", _FEWER)
    return ModelShard(model, group, PIPELINE, layers)


def _shard(model: Any, group: RankGroup) -> str:
    """Shards the model. Returns why that is impossible; empty if each rank has an equal part."""
    before = _numbers(model)
    try:
        model.shard(group.handle)
    except Exception as error:  # raised by whatever does not divide evenly
        return f"its shard() refuses: {in_one_line(error)}"
    for place, after in _numbers(model).items():
        was = before.get(place, after)
        repeated = after == 1 and was < group.size and group.size % was == 0  # each rank has a copy of one head
        if after not in (was, was / group.size) and not repeated:
            return f"{place} is {was}, which {group.size} ranks do not divide"
    return ""


def _numbers(model: Any) -> dict[str, int]:
    """Returns the counts in the model's layers, such as heads, by path: `shard()` divides without checking for a
    remainder."""
    return {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) is int
    }


def _pipeline_layers(model: Any, group: RankGroup) -> str:
    """Gives this rank some of the layers. Returns why that is impossible; empty if it worked."""
    stages = [module for module in model.modules() if hasattr(module, "pipeline_layers")]
    if not stages:
        return "mlx-lm has no pipeline() for it"
    if len(stages) > 1:
        return f"{len(stages)} parts of it have a pipeline() of their own"
    (stage,) = stages
    if len(stage.layers) < group.size:
        return f"it has {len(stage.layers)} layers for {group.size} ranks"
    before = layer_kinds(model)
    try:
        stage.pipeline(group.handle)
    except Exception as error:
        return f"its pipeline() refuses: {in_one_line(error)}"
    if layer_kinds(model) == before:
        return "its pipeline() leaves all layers on each rank"
    return ""
