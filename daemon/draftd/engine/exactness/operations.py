"""Measures each layer of a model: whether its results for one token are those of the token alone, bit by bit.

The layers are called with what one forward over a text gave them. All calls of a layer get the same rows, so that one
row alone is the reference for all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from draftd.engine.cache.alone import join_tokens, split_states, split_tokens, state_of
from draftd.engine.cache.alone_mode import AloneMode, tokens_alone
from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.model_layers import ask_first, record_first
from draftd.engine.exactness.compare import compare, spread_of
from draftd.engine.exactness.recording import LayerCall, recorded_calls, settle
from draftd.exactness import OperationExactness, OperationKind
from draftd.models.mlx_lm import ArraysCache

_TOKENS = 13  # of the recorded text; no model has 13 heads, so an axis of 13 is that of tokens
_ALL = 16  # rows: up to here all numbers are tried
_WARM = 3  # tokens that a recurrent layer has taken before it is measured
_PLACE = 37  # position of the first token for rotary embeddings

Pieces = Generator[None, None, None]


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The sizes in use. `widths`: tokens of one sequence in a step; `batches`: sequences of a step; `slices`: tokens of
    a prompt in a forward."""

    widths: Sequence[int]
    batches: Sequence[int]
    slices: Sequence[int]

    @classmethod
    def of(cls, max_draft_tokens: int, max_batch: int, slices: Sequence[int]) -> StepSizes:
        return cls(range(2, max_draft_tokens + 2), range(2, max_batch + 1), slices)

    @property
    def call_sizes(self) -> list[int]:
        """Rows that a layer may get in one call of a step: all numbers up to sixteen, then some."""
        most = max(self.widths, default=1) * max(self.batches, default=1)
        return sorted({*range(2, min(most, _ALL) + 1), *(n for n in (24, 32, 48, 64) if n < most), *[most][: most > 1]})


@dataclass(slots=True)
class MeasuredLayer:
    """A layer, by its call, and what was measured.

    `is_split`: whether calls of some sizes differ, or were not tried; norms of single heads are only split if they
    differ, as that costs a call for each token. `equal`: numbers of tokens in a call at which each has the bits that
    it has alone. `axis`: of tokens in its input."""

    call: LayerCall
    kind: OperationKind
    exactness: OperationExactness
    is_split: bool
    equal: frozenset[int] = frozenset()
    axis: int = 1

    def split(self, module: Any, mode: AloneMode) -> None:
        """Wraps `module`, this layer in some copy of the model, so that each token gets the bits it has alone."""
        if self.kind is OperationKind.STATE:
            split_states(module, mode)
        elif self.is_split:
            # Also outside the mode: log-probabilities of a prompt need the logits of all its tokens.
            split_tokens(module, self.method, mode, self.equal, self.axis, always=self.is_head)
            if self.is_head:
                ask_first(module, self.method)
            record_first(module)

    @property
    def is_head(self) -> bool:
        return self.method == "as_linear" or self.call.path.rpartition(".")[2] == "lm_head"

    @property
    def method(self) -> str:
        return self.call.method

    def forget(self) -> None:
        """Lets go of the model and of all arrays."""
        self.call.module, self.call.args, self.call.named, self.call.result = None, (), {}, None
        self.call.within.clear()


class Operations:
    """Measures a model's layers, a call at a time: one of each group with equal shapes and settings, because these
    decide the kernel."""

    def __init__(self, model: Any, vocabulary: int, sizes: StepSizes) -> None:
        self._model, self._vocabulary, self._sizes = model, vocabulary, sizes
        self.done = self.total = 0  # groups of like layers
        self.layers: list[MeasuredLayer] = []  # all layers, measured or like a measured one

    @property
    def progress(self) -> str:
        """Says how many kinds of layers are measured: "3 of 8 kinds"."""
        return f"{self.done} of {self.total} kinds"

    @property
    def differing(self) -> list[OperationExactness]:
        return group_layers([layer.exactness for layer in self.layers])

    def measure(self) -> Pieces:
        """Measures the layers that are not made of layers."""
        yield from self._measure_all(lambda kind: kind is not OperationKind.COMPOSITE)

    def measure_composites(self) -> Pieces:
        """Measures layers made of layers, which must compute tokens alone by now: what differs is their own."""
        yield from self._measure_all(lambda kind: kind is OperationKind.COMPOSITE)

    def _measure_all(self, wanted: Callable[[OperationKind], bool]) -> Pieces:
        alike: dict[Any, list[LayerCall]] = {}
        for call in self._record():
            kind = _kind(call)
            if kind is not None and wanted(kind):
                alike.setdefault((kind, *_shapes(call)), []).append(call)
        self.total += len(alike)
        yield None
        for (kind, *_), calls in alike.items():
            yield from self._measure(calls, kind)
            self.done += 1

    def _record(self) -> list[LayerCall]:
        """Returns the calls of one forward, once for each layer."""
        caches = make_caches(self._model).fresh()
        text = mx.array([[(11 * at + 3) % self._vocabulary for at in range(_TOKENS)]], dtype=mx.uint32)
        with recorded_calls(self._model) as calls:
            logits = caches.forward(text, [_TOKENS])
        mx.eval(logits, caches.arrays())
        settle(calls)
        caches.clear()
        unique: dict[tuple[int, str], LayerCall] = {}
        for outer in calls:
            for call in (outer, *outer.below):
                unique.setdefault((id(call.module), call.method), call)
        return list(unique.values())

    def _measure(self, calls: Sequence[LayerCall], kind: OperationKind) -> Pieces:
        measured = _MEASURED.get(kind, _Rows)(calls[0], self._model if kind is OperationKind.COMPOSITE else None)
        yield from measured.measure(self._sizes)
        for call in calls:
            exactness = OperationExactness(
                call.path,
                kind,
                min(measured.widths, default=None),
                min(measured.batches, default=None),
                slice_width=min(measured.slices, default=None),
                difference=measured.difference,
            )
            is_split = kind is not OperationKind.CONVOLUTION and (exactness.differs or call.input.ndim == 3)
            self.layers.append(MeasuredLayer(call, kind, exactness, is_split, frozenset(measured.equal), measured.axis))


def _shapes(call: LayerCall) -> tuple[Any, ...]:
    """Returns what decides which kernels compute a layer: its classes, shapes, types and settings, and the shape of its
    input."""
    parts = []
    for _, module in call.module.named_modules():
        arrays = [(name, tuple(a.shape), str(a.dtype)) for name, a in module.items() if isinstance(a, mx.array)]
        settings = [(name, value) for name, value in vars(module).items() if isinstance(value, int | float | str)]
        parts.append((type(module), tuple(arrays), tuple(settings)))
    return call.method, tuple(call.input.shape), str(call.input.dtype), tuple(parts)


def _kind(call: LayerCall) -> OperationKind | None:
    """Returns what kind of operation a call is; None if it is none that can be repeated for single tokens."""
    if call.has_state:
        return None if any(inner.has_state for inner in call.below) else OperationKind.STATE
    x = next(iter(call.args), None)
    if (
        not isinstance(x, mx.array)
        or not isinstance(call.result, mx.array)
        or (call.method != "as_linear" and x.ndim < 3)
    ):
        return None
    if isinstance(call.module, nn.Conv1d):
        return OperationKind.CONVOLUTION if x.shape[1] > _TOKENS else None
    if x.ndim == 4 and x.shape[2] == _TOKENS and ("offset" in call.named or len(call.args) == 2):
        return OperationKind.ROTATION
    if len(call.args) != 1 or call.named or (axis := _axis(x)) is None or call.result.ndim <= axis:
        return None
    if call.result.shape[axis] != _TOKENS:
        return None
    if any(_kind(inner) is not None for inner in call.below):
        return OperationKind.COMPOSITE
    return OperationKind.NORM if "Norm" in type(call.module).__name__ else OperationKind.LINEAR


def _axis(x: mx.array) -> int | None:
    return next((axis for axis in (1, 2)[: x.ndim - 2] if x.shape[axis] == _TOKENS), None)


class _Rows:
    """Measures a layer whose tokens are computed independently of each other. `most`: tokens in a call."""

    most = 1 << 30

    def __init__(self, call: LayerCall, model: Any | None = None) -> None:
        """`model`: in whose mode the layer is called; None: as usual."""
        self._call, self._model = call, model
        self.widths, self.batches, self.slices = set[int](), set[int](), set[int]()
        self.equal, self.difference = set[int](), 0.0
        x = call.input
        self.axis = (_axis(x) or 1) if x.ndim > 2 else 1

    def measure(self, sizes: StepSizes) -> Pieces:
        alone = []
        for at in range(_TOKENS):
            alone.append(self.alone(at))
            mx.eval(alone[-1])
            yield None
        whole = join_tokens([alone], self.axis)
        spread = spread_of(whole)
        for n in sorted(n for n in {*sizes.call_sizes, *sizes.slices} if n <= self.most):
            order = mx.arange(n) % _TOKENS
            same, off = compare(self.together(order), mx.take(whole, order, axis=self.axis), spread)
            if same:
                self.equal.add(n)
            else:
                self.difference = max(self.difference, off)
                if n in sizes.slices:
                    self.slices.add(n)
                if n in sizes.call_sizes:
                    self.widths.add(n)
            yield None
        for n in some_of(sizes.batches):
            order = mx.arange(n) % _TOKENS
            expected = mx.concatenate([alone[i % _TOKENS] for i in range(n)], axis=0)
            same, off = compare(self.beside(order), expected, spread)
            if not same:
                self.batches.add(n)
                self.difference = max(self.difference, off)
            yield None

    def alone(self, at: int) -> mx.array:
        return self._result(self._repeat(self._token(at)))

    def together(self, order: mx.array) -> mx.array:
        return self._result(self._repeat(mx.take(self._call.args[0], order, axis=self.axis)))

    def beside(self, order: mx.array) -> mx.array:
        tokens = [self._token(int(at)) for at in order.tolist()]
        return self._result(self._repeat(mx.concatenate(tokens, axis=0)))

    def _repeat(self, *args: Any, **named: Any) -> Any:
        with nullcontext() if self._model is None else tokens_alone(self._model):
            return self._call.repeat(*args, **named)

    def _token(self, at: int) -> mx.array:
        return mx.take(self._call.args[0], mx.array([at]), axis=self.axis)

    def _result(self, result: Any) -> mx.array:
        assert isinstance(result, mx.array)
        return result


class _Places(_Rows):
    """Measures a rotary embedding, whose result also depends on the token's place."""

    most = _TOKENS

    def alone(self, at: int) -> mx.array:
        return self._at(self._token(at), _PLACE + at)

    def together(self, order: mx.array) -> mx.array:
        return self._at(self._call.args[0][:, :, : order.size], _PLACE)

    def beside(self, order: mx.array) -> mx.array:
        tokens = [self._token(int(at)) for at in order.tolist()]
        return self._at(mx.concatenate(tokens, axis=0), _PLACE + order)

    def _at(self, x: mx.array, offset: Any) -> mx.array:
        named = {name: value for name, value in self._call.named.items() if name != "offset"}
        return self._result(self._repeat(x, offset=offset, **named))


class _Windows(_Rows):
    """Measures a convolution, whose result for a token depends on the tokens before it."""

    most = _TOKENS

    def _token(self, at: int) -> mx.array:
        x = self._call.args[0]
        return x[:, at : at + x.shape[1] - _TOKENS + 1]

    def together(self, order: mx.array) -> mx.array:
        x = self._call.args[0]
        return self._result(self._repeat(x[:, : order.size + x.shape[1] - _TOKENS]))


class _StateRows(_Rows):
    """Measures a recurrent layer, after some tokens: all that follow in one call against one token in each."""

    def measure(self, sizes: StepSizes) -> Pieces:
        widths = [n for n in sorted({*sizes.widths, *sizes.call_sizes}) if n <= _TOKENS - _WARM]
        whole = self._results(self._steps([1] * (_TOKENS - _WARM)))
        spread = spread_of(whole[0])
        yield None
        for n in widths:
            parts = self._results(self._steps([n]))
            offs = [compare(part, full[:, :n], spread) for part, full in zip(parts, whole, strict=True)]
            self._note(offs, self.widths, n)
            yield None
        for n in some_of(sizes.batches):
            parts = self._results(self._steps([1], rows=n))
            tiled = [mx.concatenate([full[:, :1]] * n, axis=0) for full in whole]
            self._note([compare(*pair, spread) for pair in zip(parts, tiled, strict=True)], self.batches, n)
            yield None

    def _note(self, compared: Sequence[tuple[bool, float]], differing: set[int], n: int) -> None:
        if not all(same for same, _ in compared):
            differing.add(n)
            self.difference = max([self.difference, *(off for _, off in compared)])

    def _steps(self, widths: Sequence[int], rows: int = 1) -> Iterator[Any]:
        """Yields the layer's result of each call of so many tokens; those before come first, in one call each."""
        state, shape = state_of(self._call.args, self._call.named), (1, _TOKENS)
        assert state is not None
        own, start = ArraysCache(len(state.cache)), 0
        for n in (*[1] * _WARM, *widths):
            cut = slice(start, start + n)

            def part(value: Any, cut: slice = cut) -> Any:
                if value is state:
                    return own
                if not isinstance(value, mx.array) or value.shape[:2] != shape:
                    return value
                return None if value.dtype == mx.bool_ else mx.concatenate([value[:, cut]] * rows, axis=0)

            result = self._repeat(
                *[part(value) for value in self._call.args], **{k: part(v) for k, v in self._call.named.items()}
            )
            mx.eval(result, [a for a in own.cache if a is not None])
            if start >= _WARM:
                yield result
            start += n

    def _results(self, results: Iterator[Any]) -> list[mx.array]:
        parts = [list(one) if isinstance(one, tuple) else [one] for one in results]
        return [
            mx.concatenate([one[i] for one in parts], axis=1) for i in range(len(parts[0])) if parts[0][i] is not None
        ]


def some_of(batches: Sequence[int]) -> list[int]:
    """Returns some of the batch sizes, the smallest and the largest among them."""
    return sorted({*batches[:1], *batches[-1:], *(n for n in batches if n & (n - 1) == 0)})


def group_layers(operations: Sequence[OperationExactness]) -> list[OperationExactness]:
    """Returns the operations that differ; those that differ alike in all layers in one line, with `*` for the layer's
    number."""
    by_name: dict[str, list[OperationExactness]] = {}
    for operation in operations:
        by_name.setdefault(_without_number(operation.name), []).append(operation)
    groups: list[OperationExactness] = []
    for name, same in by_name.items():
        differing = [operation for operation in same if operation.differs]
        if len(differing) == len(same) > 1 and len({_where(operation) for operation in same}) == 1:
            groups.append(replace(max(differing, key=lambda operation: operation.difference), name=name))
        else:
            groups += differing
    return groups


def _where(operation: OperationExactness) -> tuple[Any, ...]:
    return operation.width, operation.batch, operation.padding, operation.slice_width


def _without_number(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


_MEASURED: dict[OperationKind, type[_Rows]] = {
    OperationKind.STATE: _StateRows,
    OperationKind.CONVOLUTION: _Windows,
    OperationKind.ROTATION: _Places,
}
