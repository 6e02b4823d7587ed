"""Chooses the cache layout of a model, and says what the model's caches can do.

Whether a layer can be batched follows from the cache that mlx-lm makes for it: plain or rotating. Some architectures
ask the cache for more than that, and some go wrong without an error, so a short trial compares sequences of unequal
length with each decoded alone. If it fails, a second trial runs one forward for each width, because some recurrent
layers ignore padding. If that fails too, the model keeps mlx-lm's own caches, one list per sequence, and the reason is
reported.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from draftd.engine.cache.alone_mode import mode_of
from draftd.engine.cache.base import Caches, pad_rows
from draftd.engine.cache.batched import BatchedCaches, CacheLayout, batched_layers
from draftd.engine.cache.gated_delta import note_blocks, notes_of
from draftd.engine.cache.layers import BatchedAttention
from draftd.engine.cache.model_layers import take_rows_apart, without_head
from draftd.engine.cache.per_sequence import PerSequenceCaches
from draftd.errors import ModelLoadError, NotServing
from draftd.models.mlx_lm import vocabulary_size

_log = logging.getLogger(__name__)

# Root mean square of the outputs' differences over their standard deviation, at any position. Correct layouts differ by
# rounding alone: up to 1e-5 in fp32, a few hundredths in halves; one wrong position of eight changes them by a tenth
# and more. Outputs are logits, or the hidden states that these are made of.
_TOLERANCE, _TOLERANCE_OF_HALVES = 1e-3, 0.1

# The stages of the trial: tokens fed to each of its two sequences (the first stage is their prefill), and how
# many of these are then rolled back.
_STAGES = (((5, 2), (0, 0)), ((4, 2), (3, 0)), ((2, 0), (0, 0)), ((1, 3), (0, 0)), ((2, 2), (0, 0)))
_LONGEST = 16  # tokens: the longest of the two

_ENOUGH = 2  # layers, layers: enough for the trial if all layers are alike
_OF_ONE_LAYER = {"layer_idx", "layer_id", "_no_grad", "_training"}  # attributes that do not affect the result

_STEP = 256  # positions: the growth step of mlx-lm's own caches


# MiniMax M3 cuts its candidates by the batch's positions. The trial is too short to notice.
_BLOCKS = "index_block_size"
_SELECTS = "its attention selects blocks of the batch's positions, not of each sequence's own"

_RANKS = "_draftd_ranks"


class Ranks(Protocol):
    """The ranks that share a model, seen from rank 0. `refusals`: for each of `WAYS`, why it fails on some rank, empty
    if it does not. `taken`: the cache bytes on the rank where they are largest."""

    refusals: Sequence[str]
    taken: CacheBytes

    def caches(self, layout: CacheLayout) -> Caches:
        """Returns caches that span all ranks."""


def share(model: Any, ranks: Ranks) -> None:
    """Marks `model` as one of several ranks: operations on its caches then run on all of them."""
    setattr(model, _RANKS, ranks)


def ranks_of(model: Any) -> Ranks | None:
    ranks: Ranks | None = getattr(model, _RANKS, None)
    return ranks


def _caches(model: Any, layout: CacheLayout) -> Caches:
    ranks = ranks_of(model)
    return local_caches(model, layout) if ranks is None else ranks.caches(layout)


def local_caches(model: Any, layout: CacheLayout, *, segmented: bool = True) -> Caches:
    """Returns empty caches for the part of the model that this process holds. `segmented`: see `BatchedCaches`."""
    if layout.batched:
        return BatchedCaches(model, layout, segmented=segmented)
    return PerSequenceCaches(model, layout.forwards)


def why_not_batched(model: Any, *, weights: bool = True) -> str:
    """Returns why one forward cannot serve all sequences of this model; empty if it can.

    The answer is computed once and stored on the model. Without `weights` no weights are read, and only failures that
    show before any comparison are found. With them, raises ModelLoadError if the model's outputs are not finite."""
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


# The ways to batch, best first: attention reads groups of rows one by one; one call reads all; one call with an
# extra mask axis for queries that share a head (Gemma 2); only sequences of equal width share a
# forward.
WAYS: list[dict[str, Any]] = [{"apart": True}, {}, {"axes": 2}, {"level": True, "apart": True}, {"level": True}]


def _choose_way(model: Any, weights: bool) -> str:
    """Notes the first of `WAYS` that works for the model. Returns why none does; empty if one does."""
    together, ranks = "", ranks_of(model)
    note_blocks(model)
    for i, way in enumerate(WAYS):
        if ranks is None and "apart" in way and not take_rows_apart(model):
            continue
        with shallow(model), without_head(model) if ranks is None else contextlib.nullcontext():
            reason = (ranks.refusals[i] if ranks is not None else "") or _trial(model, weights, way)
        if not reason:
            if "level" in way:
                _log.info(
                    "%s batches only sequences that feed equally many tokens in a step: %s",
                    type(model).__module__,
                    together,
                )
            model._draftd_way = way
            return ""
        together = together if way else reason
    return together


def _trial(model: Any, weights: bool, way: dict[str, Any]) -> str:
    """Returns why the batched layout is wrong. If it is right only while no layer notes blocks (gated_delta.py), none
    does from now on."""
    reason, notes = ragged_trial(model, weights, **way), notes_of(model)
    if not reason or notes is None or not notes.active or ranks_of(model) is not None:
        return reason
    notes.active = False
    reason = ragged_trial(model, weights, **way)
    notes.active = bool(reason)
    if not reason:
        _log.warning("%s computes accepted tokens again after a rejection: its states differ", type(model).__module__)
    return reason


@contextlib.contextmanager
def shallow(model: Any) -> Iterator[None]:
    """Reduces the model to its first two layers if all layers are alike: a layout affects them all in the same way.

    A model shared by several ranks is left as it is, because its followers have their own layers."""
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
    """Returns a layer's classes, shapes and settings without its number: equal for layers that compute the same with
    other weights."""
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
    """Returns why each of `WAYS` fails, as far as that shows before anything is computed; empty strings where nothing
    does."""
    if reason := _without_layout(model):
        return [reason] * len(WAYS)
    note_blocks(model)
    lacks = "" if take_rows_apart(model) else "its attention does not take sequences apart"
    return [("apart" in way and lacks) or ragged_trial(model, weights=False, **way) for way in WAYS]


def ragged_trial(model: Any, weights: bool = True, **way: Any) -> str:
    """Returns why the batched layout is wrong for this model; empty if two sequences of unequal length get the same
    logits as each alone, before and after a rollback.

    Raises ModelLoadError if logits are not finite. Without `weights` nothing is computed, which still shows what the
    model asks its caches for. `way`: fields of `CacheLayout`."""
    PerSequenceCaches(model).fresh().forward(mx.zeros((1, 1), dtype=mx.uint32), [1])  # raises what no layout can avoid
    vocabulary = vocabulary_size(model)
    texts = [[(5 * at + 3 * row) % vocabulary for at in range(_LONGEST)] for row in range(2)]
    alone = _alone(model, texts) if weights else []
    if not all(bool(mx.isfinite(mx.max(logits, axis=-1)).all().item()) for logits in alone):
        what = "what it computes is not finite (NaN or infinity), although its weights are"
        raise ModelLoadError(what, "fetch the model again, with its own config.json")
    build = _caches if weights else local_caches  # without computation no other rank is needed
    try:
        for call_cost in (None, 0):  # sequences in one array, then each in its own
            caches = build(model, CacheLayout(True, call_cost=call_cost, **way))
            actual = _batched_logits(caches, texts, weights)
            if not weights:
                continue
            worst = _difference(alone, actual)
            halves = alone[0].dtype in (mx.float16, mx.bfloat16)
            if not worst <= (_TOLERANCE_OF_HALVES if halves else _TOLERANCE):  # a NaN in the batch only is an error too
                return f"in a batch of unlike lengths its logits differ from those of each sequence alone ({worst:.2g})"
    except NotServing:
        raise  # a lost rank says nothing about the layout
    except Exception as error:
        return f"it asks for what the batched layout lacks ({type(error).__name__}: {error})"
    return ""


def _alone(model: Any, texts: list[list[int]]) -> list[mx.array]:
    """Returns the logits of each sequence alone at the trial's real positions. One forward per sequence is enough,
    because later tokens do not change earlier logits."""
    lengths, logits, whole = [0] * len(texts), list[mx.array](), list[mx.array]()
    for text in texts:
        whole.append(_caches(model, CacheLayout()).fresh().forward(pad_rows([text]), [len(text)])[0])
        mx.eval(whole)  # now: see `_batched_logits`
    for widths, rolled_back in _STAGES:
        logits += [whole[row][lengths[row] : lengths[row] + width] for row, width in enumerate(widths) if width]
        lengths = [n + width - back for n, width, back in zip(lengths, widths, rolled_back, strict=True)]
    return logits


def _batched_logits(caches: Caches, texts: list[list[int]], evaluated: bool) -> list[mx.array]:
    """Returns the logits of the same positions when the sequences are prefilled, join, continue with unequal widths,
    are rolled back and continue.

    Each forward is evaluated before the next is built: one large graph fragments the heap and makes all later forwards
    of the process about three per cent slower."""
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
    """Returns the largest difference at any position: the root mean square of the outputs' differences, divided by the
    standard deviation of the expected outputs."""
    worst = 0.0
    for wanted, other in zip(expected, actual, strict=True):
        a, b = wanted.astype(mx.float32), other.astype(mx.float32)
        never = mx.isinf(a) & (a == b)  # tokens that the model rules out
        a, b = mx.where(never, 0, a), mx.where(never, 0, b)
        scale = mx.maximum(mx.sqrt(mx.var(a, axis=-1)), 1e-6)
        off = float((mx.sqrt(mx.mean((a - b) ** 2, axis=-1)) / scale).max().item())
        if not off <= worst:
            worst = off
    return worst


def attention_is_apart(model: Any) -> bool:
    """Returns whether each attention layer calls a function of draftd's, which can give it each token alone. A model
    without attention has no other layers."""
    if why_not_batched(model):
        return False
    caches = BatchedCaches(model)
    attention = any(isinstance(layer, BatchedAttention) for layer in caches.layers)
    caches.clear()
    return not attention or bool(model._draftd_way.get("apart"))


def make_caches(model: Any, forwards: int = 1) -> Caches:
    """Returns empty caches in the best layout that the model allows. One rollback may undo up to `forwards`
    forwards."""
    alone = mode_of(model)
    if why_not_batched(model) or (alone is not None and alone.by_token):
        return _caches(model, CacheLayout(forwards=forwards))
    return _caches(model, CacheLayout(True, forwards=forwards, **model._draftd_way))


class CacheBytes(NamedTuple):
    """Cache bytes of a model: for one `position` of one sequence, and at most for all of a sequence's `window`s."""

    position: int
    window: int


def cache_bytes(model: Any) -> CacheBytes:
    """Returns the cache bytes, from the shapes of one forward that is never computed, so no weights are read. An
    estimate if mlx-lm's own caches are in use."""
    ranks = ranks_of(model)
    return local_bytes(make_caches(model)) if ranks is None else ranks.taken


def local_bytes(caches: Caches) -> CacheBytes:
    """Returns the cache bytes of this process's empty `caches`, which must not be used afterwards."""
    row = caches.fresh()
    row.forward(mx.array([[0]], dtype=mx.uint32), [1])
    size = CacheBytes(row.position_bytes, row.window_bytes)
    if not any(size):
        size = CacheBytes(-(-row.nbytes // _STEP), 0)
    row.clear()
    caches.clear()  # otherwise the weights would stay until garbage collection
    return size
