"""Attention over rows of unlike length: rows beside each other that are about as long share a call, others do not.

One call for all rows reads each as far as the longest goes, and masks what lies beyond its own end: beside one long row
four short ones cost as much as long ones. The layers of mlx-lm's models call a function of their own module for it.
`installed` gives the layers of one model another: it asks the cache where rows are to be kept apart, and calls
mlx-lm's for each run of them. Other models of the process, and mlx-lm itself, are left as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple

import mlx.core as mx

from draftd.models.mlx_lm import base

_NAME = "scaled_dot_product_attention"
_MARK = "_draftd_keeps_rows_apart"
_CALL = 320  # positions that are read in the time that a call of its own takes, measured
_MOST = 31


class Run(NamedTuple):
    """Rows from `start` to before `stop`, of which none holds more than `longest` tokens."""

    start: int
    stop: int
    longest: int


def runs(lengths: Sequence[int], call_cost: int | None = None) -> list[Run]:
    """Neighbours who share a call, in order: so that what all calls read, and what the calls themselves cost, is the
    least. `lengths` are tokens, `call_cost` positions; none may be in a run with more than `_MOST` others."""
    call = _CALL if call_cost is None else call_cost
    least, cuts = [0] * (len(lengths) + 1), [0] * (len(lengths) + 1)
    for stop in range(1, len(lengths) + 1):
        best = longest = 0
        for start in range(stop - 1, max(stop - 1 - _MOST, 0) - 1, -1):
            longest = max(longest, lengths[start])
            total = least[start] + (stop - start) * longest + call
            if not best or total < best:
                best, cuts[stop] = total, start
        least[stop] = best
    found: list[Run] = []
    stop = len(lengths)
    while stop:
        found.append(Run(cuts[stop], stop, max(lengths[cuts[stop] : stop])))
        stop = cuts[stop]
    return found[::-1]


def installed(model: Any) -> bool:
    """Has the model's own layers call it, for good; whether there is one that does. Models that call MLX's directly
    have none: their rows share a call."""
    found = False
    kinds: dict[type, type] = {}
    for layer in model.modules():
        kind = type(layer)
        if kind not in kinds:
            kinds[kind] = _keeping_apart(kind)
        if kinds[kind] is not kind:
            layer.__class__ = kinds[kind]
        found = found or hasattr(kinds[kind], _MARK)
    return found


def _keeping_apart(kind: type) -> type:
    """The same class with the same methods, but that those which call mlx-lm's attention call `_apart`; `kind` itself
    where none does, or where all do already."""
    if hasattr(kind, _MARK):
        return kind
    methods = {
        name: _calling_apart(method)
        for name in dir(kind)
        if isinstance(method := inspect.getattr_static(kind, name), FunctionType)
        and _NAME in method.__code__.co_names
        and method.__globals__.get(_NAME) is base.scaled_dot_product_attention
    }
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, _MARK: True}) if methods else kind


def _calling_apart(method: FunctionType) -> FunctionType:
    there = {**method.__globals__, _NAME: _apart}
    own = FunctionType(method.__code__, there, method.__name__, method.__defaults__, method.__closure__)
    own.__kwdefaults__ = method.__kwdefaults__
    return own


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
    some = getattr(cache, "runs", ())
    if len(some) < 2 or not isinstance(mask, mx.array):
        return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    width = keys.shape[2] - max(run.longest for run in some)
    out = []
    for start, stop, longest in some:
        part, end = slice(start, stop), longest + width
        held, seen = (keys[part, :, :end], values[part, :, :end]), mask[part, ..., :end]
        out.append(attend(queries[part], *held, cache=cache, scale=scale, mask=seen, sinks=sinks))
    return mx.concatenate(out, axis=0)
