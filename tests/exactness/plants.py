"""Changes of the last bits of a layer, attention or a cache, each in calls of some sizes; most add in another order.

Each plant is put into one model, or during a test into mlx-lm's attention and draftd's caches, before the model is
measured or made exact."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from draftd.engine.cache.layers import BatchedAttention
from draftd.models.mlx_lm import base


@dataclass(frozen=True)
class Plant:
    """`model`: the architecture that it is put into. `put(model)`: puts it there, while the context is open. `named`:
    what the measurement must call it."""

    name: str
    model: str
    put: Callable[[Any], contextlib.AbstractContextManager[None]]
    named: str


def _in_parts(x: mx.array, weight: mx.array, parts: int) -> mx.array:
    """x · weightᵀ, as the sum of so many partial sums."""
    size = weight.shape[1] // parts
    out = x[..., :size] @ weight[:, :size].T
    for i in range(1, parts):
        end = weight.shape[1] if i == parts - 1 else (i + 1) * size
        out = out + x[..., i * size : end] @ weight[:, i * size : end].T
    return out


def _rows(x: mx.array) -> int:
    return x.size // x.shape[-1]


def _beside(x: mx.array) -> int:
    return x.shape[0]


def linear(path: str, when: Callable[[mx.array], bool], parts: int = 2) -> Callable[[Any], Any]:
    """Splits a linear layer's sums into parts in calls that `when` accepts."""

    def call(whole: Any, module: Any, x: mx.array) -> mx.array:
        return _in_parts(x, module.weight, parts) if when(x) else whole(module, x)

    return _layer(path, call)


def norm(path: str, when: Callable[[mx.array], bool]) -> Callable[[Any], Any]:
    """Sums the squares of an RMSNorm in another order."""

    def call(whole: Any, module: Any, x: mx.array) -> mx.array:
        if not when(x):
            return whole(module, x)
        squares = mx.square(x)
        half = x.shape[-1] // 2
        mean = (squares[..., :half].sum(-1, keepdims=True) + squares[..., half:].sum(-1, keepdims=True)) / x.shape[-1]
        return x * mx.rsqrt(mean + module.eps) * module.weight

    return _layer(path, call)


def quantised(path: str, when: Callable[[mx.array], bool]) -> Callable[[Any], Any]:
    """Computes a quantised layer by its weights' floating-point values, as kernels for many rows do."""

    def call(whole: Any, module: Any, x: mx.array) -> mx.array:
        if not when(x):
            return whole(module, x)
        weight = mx.dequantize(module.weight, module.scales, module.biases, module.group_size, module.bits)
        return _in_parts(x, weight, 2)

    return _layer(path, call)


def experts(path: str) -> Callable[[Any], Any]:
    """Adds up a token's experts from the shared one on, in calls of several tokens."""

    def call(whole: Any, module: Any, x: mx.array) -> mx.array:
        if _rows(x) == 1:
            return whole(module, x)
        gates = mx.softmax(module.gate(x), axis=-1, precise=True)
        places = mx.argpartition(-gates, kth=module.top_k - 1, axis=-1)[..., : module.top_k]
        parts = module.switch_mlp(x, places) * mx.take_along_axis(gates, places, axis=-1)[..., None]
        out = mx.sigmoid(module.shared_expert_gate(x)) * module.shared_expert(x)
        for i in range(module.top_k):
            out = out + parts[..., i, :]
        return out

    return _layer(path, call)


def convolution(path: str) -> Callable[[Any], Any]:
    """Adds up a convolution's taps from the last one on, in calls of several tokens."""

    def call(whole: Any, module: Any, x: mx.array) -> mx.array:
        taps = module.weight.shape[1]
        if x.shape[1] <= taps:
            return whole(module, x)
        width = x.shape[1] - taps + 1
        out = module.bias if "bias" in module else mx.zeros(x.shape[-1])
        for tap in reversed(range(taps)):
            out = out + x[:, tap : tap + width] * module.weight[:, tap, 0]
        return out

    return _layer(path, call)


def noise(path: str, size: float) -> Callable[[Any], Any]:
    """Changes a linear layer's results by up to `size`, in calls of several tokens."""

    def call(whole: Any, module: Any, x: mx.array) -> mx.array:
        out = whole(module, x)
        return out if _rows(x) == 1 else out + size * mx.sin(7919 * out)

    return _layer(path, call)


def _layer(path: str, call: Callable[..., mx.array]) -> Callable[[Any], Any]:
    @contextlib.contextmanager
    def put(model: Any) -> Iterator[None]:
        module = dict(model.named_modules())[path]
        kind = type(module)
        whole = kind.__call__
        module.__class__ = type(
            kind.__name__,
            (kind,),
            {"__call__": lambda self, *args: call(whole, self, *args), "__module__": kind.__module__},
        )
        yield

    return put


@contextlib.contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def attention(when: Callable[[mx.array, mx.array, Any], bool]) -> Callable[[Any], Any]:
    """Computes mlx-lm's attention from two halves of the keys, in calls that `when(queries, keys, mask)` accepts."""

    def put(model: Any) -> Any:
        whole = base.scaled_dot_product_attention

        def attend(
            queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, mask: Any, **more: Any
        ):
            if not when(queries, keys, mask):
                return whole(queries, keys, values, cache=cache, scale=scale, mask=mask, **more)
            return _by_halves(queries, keys, values, scale, mask)

        return _instead(base, "scaled_dot_product_attention", attend)

    return put


def _by_halves(queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any) -> mx.array:
    groups, width, count = queries.shape[1] // keys.shape[1], queries.shape[2], keys.shape[2]
    keys, values = mx.repeat(keys, groups, axis=1), mx.repeat(values, groups, axis=1)
    scores = (queries * scale) @ keys.swapaxes(-1, -2)
    if isinstance(mask, str):
        mask = mx.arange(count - width, count)[:, None] >= mx.arange(count)[None]
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf)
    mass = mx.exp(scores - scores.max(axis=-1, keepdims=True))
    half = count // 2
    total = mass[..., :half].sum(-1, keepdims=True) + mass[..., half:].sum(-1, keepdims=True)
    return (mass[..., half:] @ values[:, :, half:] + mass[..., :half] @ values[:, :, :half]) / total


def delta_rule(model: Any) -> Any:
    """Runs the gated delta rule over its keys' dimensions in the opposite order, in calls of several tokens."""
    from mlx_lm.models import qwen3_next

    whole = qwen3_next.gated_delta_update

    def update(q: mx.array, k: mx.array, v: mx.array, *rest: Any, **named: Any) -> Any:
        if q.shape[1] == 1:
            return whole(q, k, v, *rest, **named)
        *gates, state, mask = rest
        if state is not None:
            state = state[..., ::-1]
        out, state = whole(q[..., ::-1], k[..., ::-1], v, *gates, state, mask, **named)
        return out, state[..., ::-1]

    return _instead(qwen3_next, "gated_delta_update", update)


def values_read(when: Callable[[BatchedAttention], bool]) -> Callable[[Any], Any]:
    """Changes the last bits of the values that a cache gives to attention, in steps that `when(layer)` accepts."""

    def put(model: Any) -> Any:
        together, apart = BatchedAttention.keys_and_values, BatchedAttention.apart

        def again(layer: BatchedAttention, values: mx.array) -> mx.array:
            return (values * 3) / 3 if when(layer) else values

        def read_together(self: BatchedAttention) -> Any:
            keys, values = together(self)
            return keys, again(self, values)

        def read_apart(self: BatchedAttention) -> Any:
            return [(read, keys, again(self, values)) for read, keys, values in apart(self)]

        stack = contextlib.ExitStack()
        stack.enter_context(_instead(BatchedAttention, "keys_and_values", read_together))
        stack.enter_context(_instead(BatchedAttention, "apart", read_apart))
        return stack

    return put


def _beside_others(layer: BatchedAttention) -> bool:
    return len(layer.window.stored) > 1


def _wide_in_window(layer: BatchedAttention) -> bool:
    return layer.window.size is not None and layer.window._width > 1


def _more_than(rows: int) -> Callable[[mx.array], bool]:
    return lambda x: _rows(x) > rows


def _llama(name: str, path: str, put: Callable[..., Any], *how: Any) -> Plant:
    return Plant(name, "llama", put(f"model.{path}", *how), path)


PLANTS = [
    _llama("queries from 2 rows", "layers.0.self_attn.q_proj", linear, _more_than(1)),
    _llama("keys from 3 rows", "layers.1.self_attn.k_proj", linear, _more_than(2), 4),
    _llama("values from 5 rows", "layers.2.self_attn.v_proj", linear, _more_than(4)),
    _llama("attention's output from 9 rows", "layers.1.self_attn.o_proj", linear, _more_than(8), 4),
    _llama("gate at 4 rows only", "layers.0.mlp.gate_proj", linear, lambda x: _rows(x) == 4),
    _llama("up from 12 rows", "layers.1.mlp.up_proj", linear, _more_than(11), 3),
    _llama("down beside others", "layers.2.mlp.down_proj", linear, lambda x: _beside(x) > 1),
    Plant("head from 2 rows", "llama", linear("lm_head", _more_than(1)), "lm_head"),
    _llama("first norm from 2 rows", "layers.0.input_layernorm", norm, _more_than(1)),
    _llama("second norm from 6 rows", "layers.1.post_attention_layernorm", norm, _more_than(5)),
    _llama("last norm beside others", "norm", norm, lambda x: _beside(x) > 1),
    Plant(
        "4 bits from 2 rows",
        "llama 4 bits",
        quantised("model.layers.1.mlp.down_proj", _more_than(1)),
        "layers.1.mlp.down_proj",
    ),
    Plant("experts' sum from 2 rows", "qwen2_moe", experts("model.layers.1.mlp"), "layers.1.mlp"),
    Plant("attention of several queries", "llama", attention(lambda q, k, mask: q.shape[2] > 1), "attention"),
    Plant("attention of several sequences", "llama", attention(lambda q, k, mask: q.shape[0] > 1), "attention"),
    Plant("attention under a mask", "llama", attention(lambda q, k, mask: isinstance(mask, mx.array)), "attention"),
    Plant("values of a cache beside others", "llama", values_read(_beside_others), "attention"),
    Plant("values of a window in wide steps", "llama", values_read(_wide_in_window), "attention"),
    Plant("convolution's taps", "lfm2", convolution("model.layers.0.conv.conv"), "layers.0.conv.conv"),
    Plant("state of the delta rule", "qwen3_next", delta_rule, "linear_attn"),
]
