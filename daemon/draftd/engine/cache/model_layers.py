"""Changes to layers of mlx-lm's models, made by giving one model's layers classes of their own. Other models in the
process, and mlx-lm itself, stay unchanged.

Attention over rows of unequal length is one call for each group of rows that share an array. `take_rows_apart` replaces
the attention function in the layers by one that asks the cache for the groups and calls mlx-lm's function for each.
Models that count positions themselves (GPT-BigCode, Llama 4) then count from each row's offset.

Logits are computed only for positions that are read: the last one of a prompt, where the others would take a quarter of
the time with a large vocabulary, and none of the tokens replayed in a step. mlx-lm's models end in a linear layer
called `lm_head`, or use their embedding as one; that layer receives only the positions that are read. A model that ends
differently computes all logits. What that layer receives are the model's last hidden states, which a draft head needs:
`record_states` makes `states_of` return them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import mlx.core as mx
import numpy as np

from draftd.engine.cache.alone import attend_alone
from draftd.engine.cache.base import Positions
from draftd.engine.cache.layers import BatchedAttention, KeyPositions
from draftd.models.mlx_lm import base

_ATTENTION = "scaled_dot_product_attention"
_THEIRS = ((_ATTENTION, base.scaled_dot_product_attention), ("np", np), ("mx", mx))
_KEEPS_APART = "_draftd_keeps_rows_apart"
_ASKS = "_draftd_last_positions"
_RECORDS = "_draftd_records_states"


def take_rows_apart(model: Any) -> bool:
    """Makes the model's layers call attention once for each group of rows, permanently. Returns False for models that
    call MLX's attention directly: their rows share a call."""
    any_apart = False
    kinds: dict[type, type] = {}
    for layer in model.modules():
        kind = type(layer)
        if kind not in kinds:
            kinds[kind] = _keeping_apart(kind)
        if kinds[kind] is not kind:
            layer.__class__ = kinds[kind]
        any_apart = any_apart or hasattr(kinds[kind], _KEEPS_APART)
    return any_apart


def _keeping_apart(kind: type) -> type:
    """Returns a subclass whose methods call `_apart` instead of mlx-lm's attention, and our `arange` instead of numpy's
    or MLX's. Returns `kind` itself if no method calls these, or all already do."""
    if hasattr(kind, _KEEPS_APART):
        return kind
    ours: dict[str, Any] = {_ATTENTION: _apart, "np": _Numpy(), "mx": _Mlx()}
    methods = {
        name: _calling(method, ours)
        for name in dir(kind)
        if isinstance(method := inspect.getattr_static(kind, name), FunctionType)
        and any(_calls(method, name, theirs) for name, theirs in _THEIRS)
    }
    mark = {_KEEPS_APART: True} if any(_ATTENTION in method.__code__.co_names for method in methods.values()) else {}
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, **mark}) if methods else kind


def _calls(method: FunctionType, name: str, what: Any) -> bool:
    """Whether the method refers to `what` by this name; for MLX or numpy, whether it counts positions from the cache's
    offset."""
    names = method.__code__.co_names
    counts = name == _ATTENTION or ("arange" in names and "offset" in names)
    return counts and name in names and method.__globals__.get(name) is what


def _calling(method: FunctionType, ours: dict[str, Any]) -> FunctionType:
    there = {**method.__globals__, **{name: ours[name] for name in method.__code__.co_names if name in ours}}
    own = FunctionType(method.__code__, there, method.__name__, method.__defaults__, method.__closure__)
    own.__kwdefaults__ = method.__kwdefaults__
    return own


class _Numpy:
    """numpy with an `arange` that counts from a separate offset for each row. Returns rows × positions."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def arange(self, start: Any, stop: Any = None, *more: Any) -> Any:
        if not isinstance(start, mx.array):
            return np.arange(start, stop, *more)
        offsets = np.array(start)
        return offsets[:, None] + np.arange(np.array(stop)[0] - offsets[0])


class _Mlx:
    """MLX with an `arange` that counts from a separate offset for each row. Returns rows × positions × 1 for queries,
    and rows × 1 × 1 × positions for the `KeyPositions` that a cache gives."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def arange(self, start: Any, stop: Any = None, *more: Any) -> Any:
        if isinstance(start, KeyPositions):
            return start.positions[:, None, None]
        if not isinstance(start, mx.array) or start.ndim == 0:
            return mx.arange(start, stop, *more)
        count = int((stop[0] - start[0]).item())  # both come from plain numbers, so this waits for no forward
        return start[:, None, None] + mx.arange(count)[:, None]


@functools.wraps(base.scaled_dot_product_attention)
def _apart(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    attend = base.scaled_dot_product_attention
    if isinstance(cache, BatchedAttention) and (alone := cache.alone_mode) is not None:
        return attend_alone(
            lambda query, keys, values, seen: attend(
                query, keys, values, cache=cache, scale=scale, mask=seen, sinks=sinks
            ),
            queries,
            cache.own,
            mode=alone,
            size=cache.window.size,
            first=cache.window.first,
            mask=mask,
        )
    groups = cache.apart() if isinstance(cache, BatchedAttention) else ()
    if not groups:
        return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    out = []
    for (rows, _, first, end, _), held_keys, held_values in groups:
        own, seen = queries if rows is None else queries[rows], mask
        if isinstance(mask, mx.array):
            seen = mask[..., first - cache.window.first : end - cache.window.first]
            if rows is not None and mask.ndim == 4 and mask.shape[0] > 1:
                seen = seen[rows]
        out.append(attend(own, held_keys, held_values, cache=cache, scale=scale, mask=seen, sinks=sinks))
    whole = mx.concatenate(out, axis=0)
    return whole if cache.order is None else whole[cache.order]


class _Wanted:
    """The positions whose logits the next forward computes: `at`, rows × n; None for all."""

    at: mx.array | None = None
    applied = False  # whether the last layer computed only these
    skipped = False  # the last layer returns its input
    records = False  # whether hidden states are recorded
    inputs_of: tuple[Any, ...] = ()  # they are the inputs of these modules side by side; none: the last layer's input
    states: list[mx.array] | None = None  # those of the present forward, while they are recorded
    awaited = False  # the present call of the model has not reached all modules that record them

    def __init__(self) -> None:
        self._inputs = dict[int, mx.array]()  # those of the present call of the model, by id() of the module

    def begin_call(self) -> None:
        self.awaited = True
        self._inputs.clear()

    def record(self, x: mx.array, module: Any = None) -> None:
        """Records the input of one of `inputs_of`, or of the last layer (None), once for each call of the model: the
        last layer may be called again for parts of it."""
        if self.states is None or not self.awaited or (module is None) is bool(self.inputs_of):
            return
        if module is not None:
            self._inputs[id(module)] = x
        if all(id(one) in self._inputs for one in self.inputs_of):
            inputs = [self._inputs[id(one)] for one in self.inputs_of] or [x]
            self.states.append(inputs[0] if len(inputs) == 1 else mx.concatenate(inputs, axis=-1))
            self.awaited = False
            self._inputs.clear()


def logits_at(model: Any, tokens: mx.array, caches: Sequence[Any] | None, at: Positions | None) -> mx.array:
    """Runs mlx-lm's `model` on `tokens` (rows × width). Returns the logits at positions `at`, rows × n × vocabulary; at
    all positions if `at` is None."""
    present: _Wanted | None = getattr(model, _ASKS, None)
    if present is not None:
        present.begin_call()
    if at is None or tokens.shape[1] == len(at[0]) == 1:
        return model(tokens, cache=caches)
    wanted = wanted_positions(model)
    positions = wanted.at = mx.array(at)
    wanted.applied = False
    try:
        logits = model(tokens, cache=caches)
    finally:
        wanted.at = None
    return logits if wanted.applied else _take_positions(logits, positions)


@contextlib.contextmanager
def without_head(model: Any) -> Iterator[None]:
    """Makes `model` return hidden states, padded with zeros, instead of logits: with a large vocabulary the last layer
    takes most of a short forward. A model that ends differently still returns logits."""
    wanted = wanted_positions(model)
    wanted.skipped = True
    try:
        yield
    finally:
        wanted.skipped = False


def wanted_positions(model: Any) -> _Wanted:
    """Makes the model's last layer read the wanted positions, permanently."""
    wanted: _Wanted | None = getattr(model, _ASKS, None)
    if wanted is None:
        wanted = _Wanted()
        for path, layer in model.named_modules():
            for method in ("as_linear", *(["__call__"] if path.rpartition(".")[2] == "lm_head" else [])):
                if hasattr(type(layer), method):
                    layer.__class__ = _asking(type(layer), method, wanted)
        setattr(model, _ASKS, wanted)
    return wanted


def _asking(kind: type, method: str, wanted: _Wanted) -> type:
    """Returns a subclass whose `method` computes only the wanted positions."""
    whole = getattr(kind, method)

    def some(self: Any, x: mx.array) -> Any:
        if wanted.skipped:
            return _as_wide(self, x)
        wanted.record(x)
        if wanted.at is None:
            return whole(self, x)
        at, wanted.at, wanted.applied = wanted.at, None, True
        return whole(self, _take_positions(x, at))

    return type(kind.__name__, (kind,), {method: some, "__module__": kind.__module__, _ASKS: wanted})


def ask_first(module: Any, method: str) -> None:
    """Puts the selection of wanted positions in front of the last layer's method again, after `split_tokens` wrapped
    it."""
    if (wanted := getattr(type(module), _ASKS, None)) is not None:
        module.__class__ = _asking(type(module), method, wanted)


def record_first(module: Any) -> None:
    """Puts the recording of a module's input in front of its call again, after `split_tokens` wrapped it."""
    if (wanted := getattr(type(module), _RECORDS, None)) is not None:
        module.__class__ = _recording(type(module), wanted)


def record_states(model: Any, inputs_of: Sequence[Any] = ()) -> None:
    """Makes `states_of` return the hidden states of `model`, until `stop_recording`: the inputs of these modules, side
    by side; without any, what the last layer makes logits of."""
    wanted = wanted_positions(model)
    wanted.records, wanted.inputs_of = True, tuple(inputs_of)
    for module in inputs_of:
        if not hasattr(type(module), _RECORDS):
            module.__class__ = _recording(type(module), wanted)


def stop_recording(model: Any) -> None:
    """Makes `states_of` return no hidden states of `model`, until `record_states` is called again."""
    wanted_positions(model).records = False


def states_of(model: Any, forward: Callable[[], mx.array]) -> tuple[mx.array, mx.array | None]:
    """Runs `forward`, which calls `model` on a batch. Returns its logits, and the hidden states that `record_states`
    names, rows × width × size; None if they are not recorded. If it calls the model several times, each call is for the
    next positions."""
    wanted: _Wanted | None = getattr(model, _ASKS, None)
    if wanted is None or not wanted.records:
        return forward(), None
    states = wanted.states = list[mx.array]()
    try:
        logits = forward()
    finally:
        wanted.states = None
    if len(states) < 2:
        return logits, states[0] if states else None
    return logits, mx.concatenate(states, axis=1)


def _recording(kind: type, wanted: _Wanted) -> type:
    """Returns a subclass of a module's class that records its input."""

    def record(self: Any, x: mx.array, *more: Any, **options: Any) -> Any:
        if not wanted.skipped:
            wanted.record(x, self)
        return kind.__call__(self, x, *more, **options)

    return type(kind.__name__, (kind,), {"__call__": record, "__module__": kind.__module__, _RECORDS: wanted})


def _as_wide(layer: Any, x: mx.array) -> mx.array:
    """Pads `x` with zeros, or cuts it, to the width of the layer's logits. Some models (Phi-3-small) later write to
    logits by token id, and MLX writes past an array's end; and a width taken for the vocabulary must not exceed it."""
    weight = getattr(layer, "weight", None)
    more = 0 if weight is None else weight.shape[0] - x.shape[-1]
    return mx.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, more)]) if more > 0 else x[..., : x.shape[-1] + more]


def _take_positions(x: mx.array, at: mx.array) -> mx.array:
    """Gathers `at` (positions by row) from `x`, rows × width × features."""
    return mx.take_along_axis(x, at[:, :, None], axis=1)
