"""Which cache layout a model gets, and what its caches can do.

A layer is batched by what mlx-lm makes for it: its plain KV cache, or a rotating one. A short trial with sequences of
unlike length, each compared with itself decoded alone, decides whether it is right for this model: some architectures
ask the cache for what it lacks, others go wrong without an error. What fails is tried once more with a forward for each
width: some recurrent layers ignore that rows are padded. What fails then too keeps mlx-lm's own caches, one list per
sequence, and the reason is told.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from draftd.engine.cache.base import Caches, pad_rows
from draftd.engine.cache.batched import BatchedCaches, CacheLayout, batched_layers
from draftd.engine.cache.model_layers import take_rows_apart, without_head
from draftd.engine.cache.per_sequence import PerSequenceCaches
from draftd.errors import ModelLoadError, NotServing
from draftd.models.mlx_lm import vocabulary_size

_log = logging.getLogger(__name__)

# Root mean square of the outputs' differences over their standard deviation, at any position. Right layouts differ by
# rounding alone: up to 1e-5 in fp32, a few hundredths in halves; one wrong position of eight changes them by a tenth
# and more. Outputs are logits, or the hidden states that these are made of.
_TOLERANCE, _TOLERANCE_OF_HALVES = 1e-3, 0.1

# The trial: how many tokens each of two sequences takes in at each stage, the first of which prefills them; and how
# many of those are then rolled back.
_STAGES = (((5, 2), (0, 0)), ((4, 2), (3, 0)), ((2, 0), (0, 0)), ((1, 3), (0, 0)), ((2, 2), (0, 0)))
_LONGEST = 16  # tokens of neither are more

_ENOUGH = 2  # layers, of a model whose layers are all alike
_OF_ONE_LAYER = {"layer_idx", "layer_id", "_no_grad", "_training"}  # attributes that say nothing of what it computes

_STEP = 256  # positions that mlx-lm's own caches grow by


# MiniMax M3 cuts what it selects from by the batch's positions. The trial is too short to see that go wrong.
_BLOCKS = "index_block_size"
_SELECTS = "its attention selects blocks of the batch's positions, not of each sequence's own"

_RANKS = "_draftd_ranks"


class Ranks(Protocol):
    """The ranks that share a model, as rank 0 sees them."""

    #: Why each way to batch is wrong for what the model asks its caches for on any of the ranks, as for `refusals`.
    refusals: Sequence[str]
    #: What caches take of the rank where they take most.
    taken: CacheBytes

    def caches(self, layout: CacheLayout) -> Caches:
        """Caches of all ranks."""


def share(model: Any, ranks: Ranks) -> None:
    """From now on `model` is one of several ranks, and all that is done with its caches is done by all of them."""
    setattr(model, _RANKS, ranks)


def ranks_of(model: Any) -> Ranks | None:
    ranks: Ranks | None = getattr(model, _RANKS, None)
    return ranks


def _caches(model: Any, layout: CacheLayout) -> Caches:
    ranks = ranks_of(model)
    return local_caches(model, layout) if ranks is None else ranks.caches(layout)


def local_caches(model: Any, layout: CacheLayout, *, segmented: bool = True) -> Caches:
    """Caches of this process, without sequences. `segmented`: as for `BatchedCaches`."""
    if layout.batched:
        return BatchedCaches(model, layout, segmented=segmented)
    return PerSequenceCaches(model, layout.forwards)


def why_not_batched(model: Any, *, weights: bool = True) -> str:
    """Why one forward cannot serve all sequences of this model; empty where it can. Tried once for each model, and
    remembered on the model itself, with which it goes. Without `weights` none are read: it is what is known before the
    trial has compared anything. With them, raises ModelLoadError where what the model computes is not finite."""
    saved: str | None = getattr(model, "_draftd_not_batched", None)
    if saved is not None:
        return saved
    reason = _without_layout(model) or _choose_way(model, weights)
    if reason and weights:
        _log.warning("%s decodes its sequences one by one: %s", type(model).__module__, reason)
    model._draftd_not_batched = reason
    return reason


def _without_layout(model: Any) -> str:
    try:
        batched_layers(model)
    except KeyError as missing:
        return f"there is no batched layout for {missing.args[0]}"
    return _SELECTS if any(hasattr(layer, _BLOCKS) for layer in model.modules()) else ""


# What is tried, the best first: attention takes sequences of unlike length apart; one call of it takes all; it has an
# axis of its own for queries that share a head (Gemma 2); only sequences that take in equally many tokens share a
# forward.
WAYS: list[dict[str, Any]] = [{"apart": True}, {}, {"axes": 2}, {"level": True, "apart": True}, {"level": True}]


def _choose_way(model: Any, weights: bool) -> str:
    """Why there is no way in which its sequences can share forwards; empty where one is, which is noted."""
    together, ranks = "", ranks_of(model)
    for i, way in enumerate(WAYS):
        if ranks is None and "apart" in way and not take_rows_apart(model):
            continue
        with shallow(model), without_head(model) if ranks is None else contextlib.nullcontext():
            reason = (ranks.refusals[i] if ranks is not None else "") or ragged_trial(model, weights, **way)
        if not reason:
            if "level" in way:
                _log.info("%s decodes sequences of equal width together: %s", type(model).__module__, together)
            model._draftd_way = way
            return ""
        together = together if way else reason
    return together


@contextlib.contextmanager
def shallow(model: Any) -> Iterator[None]:
    """Has the model only its first two layers, where all of them are alike: what a layout does to one it does to all.

    Not of a model that several ranks share, whose followers have theirs."""
    holder: Any = None
    layers: Any = getattr(model, "layers", None)
    if ranks_of(model) is None and isinstance(layers, list) and len(layers) > _ENOUGH:
        first, *others = map(_kind, layers)
        if all(kind == first for kind in others):
            holder = next((module for module in model.modules() if module.get("layers") is layers), None)
    if holder is None:
        yield
        return
    holder.layers = layers[:_ENOUGH]
    try:
        yield
    finally:
        holder.layers = layers


def _kind(layer: Any) -> list[Any]:
    """What layers have in common that compute the same with other weights: classes, shapes, and all settings but the
    layer's own number."""
    parts: list[Any] = []
    for path, module in layer.named_modules():
        settings = {name: value for name, value in vars(module).items() if name not in _OF_ONE_LAYER}
        settings |= {
            name: value for name, value in module.items() if isinstance(value, bool | int | float | str | None)
        }
        shapes = {name: value.shape for name, value in module.items() if isinstance(value, mx.array)}
        parts.append((path, type(module), settings, shapes))
    return parts


def refusals(model: Any) -> list[str]:
    """Why each of `WAYS` is wrong, as far as that shows before anything is computed; empty where nothing does."""
    if reason := _without_layout(model):
        return [reason] * len(WAYS)
    lacks = "" if take_rows_apart(model) else "its attention does not take sequences apart"
    return [("apart" in way and lacks) or ragged_trial(model, weights=False, **way) for way in WAYS]


def ragged_trial(model: Any, weights: bool = True, **way: Any) -> str:
    """Why the batched layout is wrong for this model; empty where two sequences of unlike length get the logits that
    each gets alone, before and after a rollback. Raises ModelLoadError where these are not finite. Without `weights`
    nothing is computed: what the model asks the caches for shows all the same. `way`: fields of `CacheLayout`."""
    PerSequenceCaches(model).fresh().forward(mx.zeros((1, 1), dtype=mx.uint32), [1])  # raises what no layout can mend
    vocabulary = vocabulary_size(model)
    texts = [[(5 * at + 3 * row) % vocabulary for at in range(_LONGEST)] for row in range(2)]
    alone = _alone(model, texts) if weights else []
    if not all(bool(mx.isfinite(mx.max(logits, axis=-1)).all().item()) for logits in alone):
        what = "what it computes is not finite (NaN or infinity), although its weights are"
        raise ModelLoadError(what, "fetch the model again, with its own config.json")
    build = _caches if weights else local_caches  # what is not computed needs no other rank
    try:
        for call_cost in (None, 0):  # sequences in one array, and each in one of its own
            caches = build(model, CacheLayout(True, call_cost=call_cost, **way))
            actual = _batched_logits(caches, texts, weights)
            if not weights:
                continue
            worst = _difference(alone, actual)
            halves = alone[0].dtype in (mx.float16, mx.bfloat16)
            if not worst <= (_TOLERANCE_OF_HALVES if halves else _TOLERANCE):  # NaN of the batch alone is wrong too
                return f"in a batch of unlike lengths its logits differ from those of each sequence alone ({worst:.2g})"
    except NotServing:
        raise  # a rank was lost, which says nothing of the layout
    except Exception as error:
        return f"it asks for what the batched layout lacks ({type(error).__name__}: {error})"
    return ""


def _alone(model: Any, texts: list[list[int]]) -> list[mx.array]:
    """The logits of the trial's real positions, of each sequence by itself and of nothing that was rolled back: of one
    forward for each, since what follows a position does not change it."""
    lengths, logits, whole = [0] * len(texts), list[mx.array](), list[mx.array]()
    for text in texts:
        whole.append(_caches(model, CacheLayout()).fresh().forward(pad_rows([text]), [len(text)])[0])
        mx.eval(whole)  # now: see `_batched`
    for widths, rolled_back in _STAGES:
        logits += [whole[row][lengths[row] : lengths[row] + width] for row, width in enumerate(widths) if width]
        lengths = [n + width - back for n, width, back in zip(lengths, widths, rolled_back, strict=True)]
    return logits


def _batched_logits(caches: Caches, texts: list[list[int]], evaluated: bool) -> list[mx.array]:
    """The same where the sequences are prefilled, join, go on by unlike widths, are rolled back and go on again.

    Each forward is computed before the next is built. The graph of many scatters the heap, and every later forward of
    the process would take about three per cent longer."""
    (prefills, _), *stages = _STAGES
    results: list[mx.array] = []
    for text, width in zip(texts, prefills, strict=True):
        joining = caches.fresh()
        results.append(joining.forward(pad_rows([text[:width]]), [width])[0])
        if evaluated:
            mx.eval(results, joining.arrays())
        caches.join(joining)
    lengths: Sequence[int] = prefills
    for widths, rolled_back in stages:
        ends = [n + width for n, width in zip(lengths, widths, strict=True)]
        fed = [text[n:end] for text, n, end in zip(texts, caches.lengths, ends, strict=True)]
        logits = caches.forward(pad_rows(fed), [len(tokens) for tokens in fed])
        results += [logits[i, len(fed[i]) - width : len(fed[i])] for i, width in enumerate(widths) if width]
        if evaluated:
            mx.eval(results, caches.arrays())
        lengths = [end - back for end, back in zip(ends, rolled_back, strict=True)]
        caches.rollback(lengths)
    caches.clear()
    return results


def _difference(expected: list[mx.array], actual: list[mx.array]) -> float:
    """The largest at any position, as `_TOLERANCE` has it."""
    worst = 0.0
    for wanted, other in zip(expected, actual, strict=True):
        a, b = wanted.astype(mx.float32), other.astype(mx.float32)
        never = mx.isinf(a) & (a == b)  # tokens that a model rules out
        a, b = mx.where(never, 0, a), mx.where(never, 0, b)
        scale = mx.maximum(mx.sqrt(mx.var(a, axis=-1)), 1e-6)
        off = float((mx.sqrt(mx.mean((a - b) ** 2, axis=-1)) / scale).max().item())
        if not off <= worst:
            worst = off
    return worst


def make_caches(model: Any, forwards: int = 1) -> Caches:
    """The best layout that the model allows, holding no sequences. A rollback may go back over so many `forwards`."""
    if why_not_batched(model):
        return _caches(model, CacheLayout(forwards=forwards))
    return _caches(model, CacheLayout(True, forwards=forwards, **model._draftd_way))


class CacheBytes(NamedTuple):
    """What the caches of a model take: for one `position` of one sequence, and at most for all of its `window`s."""

    position: int
    window: int


def cache_bytes(model: Any) -> CacheBytes:
    """By the arrays of one forward, which is never computed: no weights are read. An estimate where mlx-lm's own caches
    differ in what they keep."""
    ranks = ranks_of(model)
    return local_bytes(make_caches(model)) if ranks is None else ranks.taken


def local_bytes(caches: Caches) -> CacheBytes:
    """The same, of caches of this process without rows, which are used up."""
    row = caches.fresh()
    row.forward(mx.array([[0]], dtype=mx.uint32), [1])
    size = CacheBytes(row.position_bytes, row.window_bytes)
    if not any(size):
        size = CacheBytes(-(-row.nbytes // _STEP), 0)
    row.clear()
    caches.clear()  # or it would keep the weights until the collector
    return size
