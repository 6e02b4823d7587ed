"""Computes each token of a step as if it were the only one, so that its logits do not depend on the step's width, batch
or padding.

A token's result may depend on the other tokens in its call: kernels for many tokens add in another order than those
for one, and attention over padded keys adds in another order than over a text's own. While the AloneMode of a model is
active, attention is one call for each token of each sequence, over that sequence's keys alone; a recurrent layer takes
one token of one sequence at a time; and a layer whose results differ (draftd.engine.exactness measures which) gets only
as many tokens in a call as give the bits of one. Everything else is computed as before.

As in model_layers.py, the layers of one model get classes of their own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.alone_mode import AloneMode
from draftd.engine.cache.recurrent import RecurrentState
from draftd.models.mlx_lm import ArraysCache

# layers whose tokens do not depend on each other


def split_tokens(
    module: Any, method: str, mode: AloneMode, counts: Collection[int], axis: int = 1, *, always: bool = False
) -> None:
    """Wraps `method` so that, while the mode is active, each call gets a number of tokens that is in `counts`.
    `always`: also outside the mode, if the model is exact. `axis`: the axis of tokens in its input, 1 or 2."""
    key = type(module), method, frozenset({1, *counts}), axis, always
    if key not in mode.kinds:
        mode.kinds[key] = _splitting(*key, mode)
    module.__class__ = mode.kinds[key]


def _splitting(kind: type, method: str, counts: frozenset[int], axis: int, always: bool, mode: AloneMode) -> type:
    whole = getattr(kind, method)

    @functools.wraps(whole)
    def split(self: Any, x: mx.array, *rest: Any, **named: Any) -> Any:
        if not (mode.active or (always and mode.exact)) or not isinstance(x, mx.array) or x.ndim <= axis:
            return whole(self, x, *rest, **named)
        if "offset" in named or rest:
            return rotate_alone(functools.partial(whole, self), x, *rest, mode=mode, **named)
        return call_in_pieces(functools.partial(whole, self), x, counts, axis)

    return type(kind.__name__, (kind,), {method: split, "__module__": kind.__module__})


def call_in_pieces(
    call: Callable[[mx.array], mx.array], x: mx.array, counts: Collection[int], axis: int = 1
) -> mx.array:
    """Returns `call(x)`, computed in calls of allowed numbers of tokens, the longest first. An input of rows × tokens ×
    size is flattened to one line of tokens; any other input gets a call for each token."""
    if x.ndim != 3 or axis != 1:
        return _by_token(call, x, axis)
    *lead, size = x.shape
    n = math.prod(lead)
    if n == 1:
        return call(x)
    line, out = x.reshape(1, n, size), []
    for start, end in pieces(n, counts):
        out.append(call(line[:, start:end]))
    whole = out[0] if len(out) == 1 else mx.concatenate(out, axis=1)
    return whole.reshape(*lead, *whole.shape[2:])


def pieces(n: int, counts: Collection[int]) -> list[tuple[int, int]]:
    """Cuts `n` tokens into ranges of allowed lengths, the longest first."""
    if n in counts:
        return [(0, n)]
    ranges, start = list[tuple[int, int]](), 0
    while start < n:
        length = max(count for count in counts if count <= n - start)
        ranges.append((start, start + length))
        start += length
    return ranges


def _by_token(call: Callable[[mx.array], mx.array], x: mx.array, axis: int) -> mx.array:
    rows, width = x.shape[0], x.shape[axis]
    return join_tokens(
        [[call(_one(x, row, at, axis)) for at in range(width)] for row in range(rows)], axis
    )  # fmt: skip


def rotate_alone(
    call: Callable[..., mx.array], x: mx.array, *rest: Any, mode: AloneMode, offset: Any = 0, **named: Any
) -> mx.array:
    """Calls a rotary embedding, of `x`: rows × heads × positions × dim, for each token at its own place."""
    offset = rest[0] if rest else offset
    starts = [offset] * x.shape[0] if isinstance(offset, int) else mode.lengths
    return join_tokens(
        [
            [call(_one(x, row, at, 2), offset=start + at, **named) for at in range(x.shape[2])]
            for row, start in enumerate(starts)
        ],
        2,
    )


def join_tokens(tokens: Sequence[Sequence[mx.array]], axis: int) -> mx.array:
    """Returns one array of the results for each token of each row."""
    rows = [line[0] if len(line) == 1 else mx.concatenate(line, axis=axis) for line in tokens]
    return rows[0] if len(rows) == 1 else mx.concatenate(rows, axis=0)


def _one(x: mx.array, row: int, at: int, axis: int) -> mx.array:
    return x[row : row + 1, at : at + 1] if axis == 1 else x[row : row + 1, :, at : at + 1]


# attention


def attend_alone(
    attend: Callable[..., mx.array],
    queries: mx.array,
    own: Callable[[int], tuple[mx.array, mx.array, int]],
    *,
    mode: AloneMode,
    size: int | None,
    first: int,
    mask: mx.array | str | None,
) -> mx.array:
    """Returns attention of `queries`, rows × heads × width × dim, one call for each token: `attend(query, keys, values,
    mask)`.

    `own(row)`: keys and values of the row's array, 1 × heads × capacity × dim, and how many positions they had before
    this forward. `size`: of the attention window; None without one. `first`: the position of the mask's first key."""
    width = queries.shape[2]
    rows = []
    for row, taken in enumerate(mode.widths):
        keys, values, stored = own(row)
        out = []
        for at in range(taken):
            end = stored + at + 1
            start = 0 if size is None else max(0, end - size)
            seen: mx.array | None = None
            if isinstance(mask, mx.array):
                seen = mask[..., at : at + 1, start - first : end - first]
                seen = seen[row : row + 1] if mask.ndim > 3 and mask.shape[0] > 1 else seen
            query = queries[row : row + 1, :, at : at + 1]
            out.append(attend(query, keys[:, :, start:end], values[:, :, start:end], seen))
        rows.append(_pad_tokens(out, width, 2, queries))
    return rows[0] if len(rows) == 1 else mx.concatenate(rows, axis=0)


def _pad_tokens(tokens: list[mx.array], width: int, axis: int, like: mx.array) -> mx.array:
    """Returns the tokens' results with zeros up to `width`. `like`: has the shape of the result if there is no
    token."""
    if not tokens:
        return mx.zeros((1, *like.shape[1:]), like.dtype)
    if more := width - len(tokens):
        shape = list(tokens[0].shape)
        shape[axis] = more
        tokens = [*tokens, mx.zeros(shape, tokens[0].dtype)]
    return tokens[0] if len(tokens) == 1 else mx.concatenate(tokens, axis=axis)


# recurrent layers


def split_states(module: Any, mode: AloneMode) -> None:
    """Makes a recurrent layer take one token of one sequence at a time, in the mode."""
    kind = type(module)
    if kind not in mode.kinds:
        mode.kinds[kind] = _stepping(kind, mode)
    module.__class__ = mode.kinds[kind]


def _stepping(kind: type, mode: AloneMode) -> type:
    whole: Callable[..., Any] = kind.__call__

    @functools.wraps(whole)
    def states(self: Any, *args: Any, **named: Any) -> Any:
        call = functools.partial(whole, self)
        state = state_of(args, named)
        return call(*args, **named) if state is None or not mode.active else step_alone(call, args, named, state, mode)

    return type(kind.__name__, (kind,), {"__call__": states, "__module__": kind.__module__})


def state_of(args: Sequence[Any], named: Mapping[str, Any]) -> RecurrentState | None:
    """Returns the recurrent state among a call's arguments."""
    return next((value for value in (*args, *named.values()) if isinstance(value, RecurrentState)), None)


def step_alone(
    call: Callable[..., Any],
    args: Sequence[Any],
    named: Mapping[str, Any],
    state: RecurrentState,
    mode: AloneMode,
) -> Any:
    """Calls a recurrent layer for each token of each row, with a state of that row alone. Arrays of rows × width are
    cut to the token; a mask of padding is left out."""
    x = next(value for value in (*args, *named.values()) if isinstance(value, mx.array))
    shape, before = x.shape[:2], list(state.cache)
    rows, after = list[list[Any]](), list[list[mx.array | None]]()
    for row, taken in enumerate(mode.widths):
        own = ArraysCache(len(before))
        own.cache = [a if a is None else a[row : row + 1] for a in before]

        def token(value: Any, at: int, row: int = row, own: ArraysCache = own) -> Any:
            if value is state:
                return own
            if not isinstance(value, mx.array) or value.shape[:2] != shape:
                return value
            return None if value.dtype == mx.bool_ else _one(value, row, at, 1)

        rows.append(
            [
                call(*[token(value, at) for value in args], **{name: token(v, at) for name, v in named.items()})
                for at in range(taken)
            ]
        )
        after.append(own.cache)
    state.cache = [_rows_of(old, list(new)) for old, new in zip(before, zip(*after, strict=True), strict=True)]
    return _results(rows, shape[1], x)


def _rows_of(before: mx.array | None, after: list[mx.array | None]) -> mx.array | None:
    like = before if before is not None else next((a for a in after if a is not None), None)
    if like is None:
        return None
    return mx.concatenate([mx.zeros((1, *like.shape[1:]), like.dtype) if a is None else a for a in after])


def _results(rows: list[list[Any]], width: int, x: mx.array) -> Any:
    """Puts the results of all tokens together: arrays, or tuples of arrays."""
    first = next(line[0] for line in rows if line)
    if not isinstance(first, tuple):
        return mx.concatenate([_pad_tokens(line, width, 1, x) for line in rows])
    return tuple(
        _results([[result[i] for result in line] for line in rows], width, x) for i in range(len(first))
    )  # fmt: skip
