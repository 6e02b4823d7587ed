"""Restores the state of a gated delta rule layer after the first tokens of a block, from what the layer computed for
the block.

Such a layer (Qwen3-Next, Qwen3.5, Kimi Linear) puts a block through its projections and short convolutions, and then
calls mlx-lm's `gated_delta_update`, which takes one token after the other into the state. If a draft is rejected, the
state after the accepted tokens is that function over the accepted tokens alone, from the state before the block. Each
convolution's state is a part of its input. So the arguments and inputs are noted while the model computes a block, and
no token is fed again.

As in model_layers.py, the layers of one model get classes of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_UPDATE = "gated_delta_update"
_ARGUMENTS = ["q", "k", "v", "a", "b", "A_log", "dt_bias", "state", "mask"]
_NOTES = "_draftd_block_notes"


@dataclass(frozen=True, slots=True)
class DeltaBlock:
    """One layer's computation of a block: mlx-lm's function with its arguments, and the convolutions' inputs.

    `update(q, k, v, a, b, state, mask)` has the layer's weights. `tokens`: q, k, v, a and b, each rows × width × ….
    `before`: the state before the block, None for zeros. `inputs`: rows × (kept + width) × channels, of which a
    convolution keeps the last. `place`: of the state among the layer's arrays; the others are convolutions'."""

    update: Callable[..., tuple[mx.array, mx.array]]
    tokens: Sequence[mx.array]
    before: mx.array | None
    inputs: Sequence[mx.array] = ()
    place: int = 0

    @property
    def width(self) -> int:
        width: int = self.tokens[0].shape[1]
        return width

    def states_after(self, rows: Sequence[int], counts: Sequence[int]) -> list[mx.array]:
        """Returns the layer's arrays for these rows, after the first `counts[i]` tokens of row `rows[i]`."""
        most, ends = max(counts), mx.array(counts)[:, None]
        even = min(counts) == most
        tokens = [_take_rows(a[:, :most], rows) for a in self.tokens]
        before = None if self.before is None else _take_rows(self.before, rows)
        _, state = self.update(*tokens, before, None if even else mx.arange(most) < ends)
        arrays = []
        for whole in self.inputs:
            kept = whole.shape[1] - self.width
            if even:
                arrays.append(mx.contiguous(_take_rows(whole[:, most : most + kept], rows)))
            else:
                places = (ends + mx.arange(kept))[..., None]
                arrays.append(mx.take_along_axis(_take_rows(whole, rows), places, axis=1))
        arrays.insert(self.place, state)
        return arrays


def _take_rows(a: mx.array, rows: Sequence[int]) -> mx.array:
    return a if list(rows) == list(range(a.shape[0])) else a[mx.array(rows)]


class BlockNotes:
    """Notes what the layers of one model compute blocks from. `active`: whether they do."""

    def __init__(self) -> None:
        self.active = True
        self._open = False  # a layer is being computed
        self._updates: list[tuple[mx.array, DeltaBlock]] = []  # with the state after the block
        self._inputs: list[mx.array] = []

    def begin(self) -> None:
        """Begins the notes of one layer."""
        self._open, self._updates, self._inputs = True, [], []

    def end(self, arrays: Sequence[mx.array | None]) -> DeltaBlock | None:
        """Ends the notes of one layer. Returns them, or None if they do not explain `arrays`, which the layer now
        has."""
        updates, inputs = self._updates, self._inputs
        self._open, self._updates, self._inputs = False, [], []
        if len(updates) != 1:
            return None
        ((after, block),) = updates
        place = next((place for place, array in enumerate(arrays) if array is after), None)
        others = [array for array in arrays if array is not None and array is not after]
        shapes = [(a.shape[0], a.shape[1] + block.width, *a.shape[2:]) for a in others]
        if place is None or len(others) + 1 < len(arrays) or [a.shape for a in inputs] != shapes:
            return None
        return replace(block, inputs=inputs, place=place)

    def note_input(self, x: mx.array) -> None:
        """Notes the input of a convolution."""
        if self._open:
            self._inputs.append(x)

    def note_update(self, block: DeltaBlock, after: mx.array) -> None:
        """Notes a call of mlx-lm's function, which returned this state."""
        if self._open:
            self._updates.append((after, block))


def notes_of(model: Any) -> BlockNotes | None:
    """Returns the notes of a model that `note_blocks` has changed, else None."""
    notes: BlockNotes | None = getattr(model, _NOTES, None)
    return notes


def note_blocks(model: Any) -> None:
    """Makes the model's gated delta layers note what they compute blocks from, permanently, if it has such layers."""
    if notes_of(model) is not None:
        return
    notes, kinds = BlockNotes(), dict[type, type]()
    layers = [layer for layer in model.modules() if _updates_delta(type(layer))]
    for layer in layers:
        convolutions = [part for part in layer.modules() if isinstance(part, nn.Conv1d)]
        for part, change in [(layer, _noting), *((part, _noting_input) for part in convolutions)]:
            kind = type(part)
            kinds[kind] = kinds.get(kind) or change(kind, notes)
            part.__class__ = kinds[kind]
    if layers:
        setattr(model, _NOTES, notes)


def _updates_delta(kind: type) -> bool:
    """Whether the layer calls `gated_delta_update`, with the arguments that are expected."""
    method = inspect.getattr_static(kind, "__call__", None)
    if not isinstance(method, FunctionType) or _UPDATE not in method.__code__.co_names:
        return False
    update = method.__globals__.get(_UPDATE)
    return callable(update) and list(inspect.signature(update).parameters)[: len(_ARGUMENTS)] == _ARGUMENTS


def _noting(kind: type, notes: BlockNotes) -> type:
    """Returns a subclass of a layer that notes a block if its cache asks for it."""
    method = inspect.getattr_static(kind, "__call__")
    theirs = method.__globals__

    def update(*args: Any, **options: Any) -> tuple[mx.array, mx.array]:
        *tokens, a_log, dt_bias, before, mask = [*args, *(options.pop(name, None) for name in _ARGUMENTS[len(args) :])]

        def call(*others: Any) -> Any:
            *tokens, before, mask = others
            return theirs[_UPDATE](*tokens, a_log, dt_bias, before, mask, **options)

        out, after = call(*tokens, before, mask)
        notes.note_update(DeltaBlock(call, tokens, before), after)
        return out, after

    whole = FunctionType(
        method.__code__, {**theirs, _UPDATE: update}, method.__name__, method.__defaults__, method.__closure__
    )
    whole.__kwdefaults__ = method.__kwdefaults__

    def call_noting(self: Any, *args: Any, **named: Any) -> Any:
        caches = [value for value in (*args, *named.values()) if getattr(value, "takes_notes", False)]
        if not (caches and notes.active):
            return whole(self, *args, **named)
        notes.begin()
        try:
            return whole(self, *args, **named)
        finally:
            caches[0].note_block(notes.end(caches[0].cache))

    return type(kind.__name__, (kind,), {"__call__": call_noting, "__module__": kind.__module__})


def _noting_input(kind: type, notes: BlockNotes) -> type:
    """Returns a subclass of a convolution that notes its input."""
    whole: Callable[[Any, mx.array], mx.array] = kind.__call__

    def convolve(self: Any, x: mx.array) -> mx.array:
        notes.note_input(x)
        return whole(self, x)

    return type(kind.__name__, (kind,), {"__call__": convolve, "__module__": kind.__module__})
