"""Records what each layer of a model was called with in one forward, so that the calls can be repeated."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from draftd.engine.cache.alone import state_of


@dataclass(slots=True, eq=False)
class LayerCall:
    """A call of a layer's method: with these arguments it returned `result`. `within`: the calls that it made."""

    path: str
    module: Any
    method: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    result: Any = None
    within: list[LayerCall] = field(default_factory=list)

    @property
    def input(self) -> mx.array:
        """The first array that it was given."""
        return next(value for value in (*self.args, *self.named.values()) if isinstance(value, mx.array))

    def repeat(self, *args: Any, **named: Any) -> Any:
        """Calls the same method of the layer again."""
        return getattr(self.module, self.method)(*args, **named)

    @property
    def below(self) -> Iterator[LayerCall]:
        """All calls that it led to."""
        for call in self.within:
            yield call
            yield from call.below

    @property
    def has_state(self) -> bool:
        return state_of(self.args, self.named) is not None


class _Record:
    def __init__(self) -> None:
        self.calls: list[LayerCall] = []
        self.open: list[LayerCall] = []
        self.paths: dict[int, str] = {}

    def of(self, whole: Callable[..., Any], method: str) -> Callable[..., Any]:
        @functools.wraps(whole)
        def record_call(module: Any, *args: Any, **named: Any) -> Any:
            call = LayerCall(self.paths[id(module)], module, method, args, named)
            (self.open[-1].within if self.open else self.calls).append(call)
            self.open.append(call)
            try:
                call.result = whole(module, *args, **named)
            finally:
                self.open.pop()
            return call.result

        return record_call


@contextlib.contextmanager
def recorded_calls(model: Any) -> Iterator[list[LayerCall]]:
    """Records the calls of the model's layers while the context is open. The outermost calls are in the list; the
    arguments and results are lazy until `settle` computes them."""
    record, kinds, changed = _Record(), dict[type, type](), list[tuple[Any, type]]()
    for path, module in model.named_modules():
        kind = type(module)
        # A module may have several places, as an activation that all layers share.
        if module is model or id(module) in record.paths or not hasattr(kind, "__call__"):  # noqa: B004 - of the class
            continue
        record.paths[id(module)] = path
        if kind not in kinds:
            methods = [name for name in ("__call__", "as_linear") if hasattr(kind, name)]
            own = {name: record.of(getattr(kind, name), name) for name in methods}
            kinds[kind] = type(kind.__name__, (kind,), {**own, "__module__": kind.__module__})
        changed.append((module, kind))
        module.__class__ = kinds[kind]
    try:
        yield record.calls
    finally:
        for module, kind in changed:
            module.__class__ = kind


def settle(calls: list[LayerCall]) -> None:
    """Computes what the calls were given, so that repeating one computes only that one."""
    mx.eval(
        [
            [value for value in (*call.args, *call.named.values()) if isinstance(value, mx.array)]
            for outer in calls
            for call in (outer, *outer.below)
        ]
    )
