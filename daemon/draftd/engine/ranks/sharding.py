"""A rank's share of a model: a slice of each layer by mlx-lm's `shard()`, or some of the layers by its `pipeline()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftd.engine.cache.factories import layer_kinds
from draftd.engine.ranks.group import RankGroup
from draftd.engine.ranks.part import PIPELINE, TENSOR, Part
from draftd.errors import ModelLoadError, in_one_line

_FEWER = "use as many ranks as divide its heads, or a model that mlx-lm can pipeline"


def share_of(opened: Callable[[], Any], group: RankGroup, *, tensor: bool = True) -> Part:
    """`opened` gives the whole model, of which no weights have been read, each time anew. Tensor parallel where the
    model has `shard()` and the ranks divide it, unless `tensor` is off; else pipeline. Raises ModelLoadError with what
    the model lacks: on all ranks alike."""
    model = opened()
    layers = layer_kinds(model)
    if group.size == 1:
        return Part(model, group, TENSOR, layers)
    no_shard = "mlx-lm has no shard() for it"
    if tensor and hasattr(model, "shard"):
        no_shard = _sharded(model, group)
        if not no_shard:
            return Part(model, group, TENSOR, layers)
        model = opened()  # this one was cut halfway
    no_pipeline = _pipelined(model, group)
    if no_pipeline:
        kind = type(model).__module__.rpartition(".")[2]
        raise ModelLoadError(f"{kind} cannot run on {group.size} ranks: {no_shard}, and {no_pipeline}", _FEWER)
    return Part(model, group, PIPELINE, layers)


def _sharded(model: Any, group: RankGroup) -> str:
    """Why not; empty where each rank has an equal part now."""
    before = _numbers(model)
    try:
        model.shard(group.handle)
    except Exception as error:  # as it is said by whatever does not divide
        return f"its shard() refuses: {in_one_line(error)}"
    for place, after in _numbers(model).items():
        was = before.get(place, after)
        repeated = after == 1 and was < group.size and group.size % was == 0  # each rank has a copy of one of them
        if after not in (was, was / group.size) and not repeated:
            return f"{place} is {was}, which {group.size} ranks do not divide"
    return ""


def _numbers(model: Any) -> dict[str, int]:
    """What its layers count, heads among it, by path: `shard()` divides without a look at what is left over."""
    return {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) is int
    }


def _pipelined(model: Any, group: RankGroup) -> str:
    """Why not; empty where this rank has some of the layers now."""
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
