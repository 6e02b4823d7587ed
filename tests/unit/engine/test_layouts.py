"""The trial at load: where the batched layout would change a text, sequences are decoded one by one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model

from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.cache.layers import BatchedAttention
from draftd.engine.cache.layouts import make_caches, shallow, why_not_batched
from draftd.engine.cache.per_sequence import PerSequenceCaches
from draftd.engine.drafters import cached
from draftd.engine.targets import local
from tests.rig import Rig, automatic, autoregressive, pair, request, speculative, tiny_llama

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1], [1, 6, 1, 8, 0]]


def tiny_afm7(seed: int) -> Any:
    """Apple's 7th foundation model, whose last layers read another layer's keys and values; random weights in fp32."""
    from mlx_lm.models.afm7 import Model, ModelArgs

    args = ModelArgs("afm7", 32, 32, num_layers=4, num_kv_reuse_layers=2, num_heads=4, num_kv_heads=2)
    mx.random.seed(seed)
    model = Model(args)
    mx.eval(model.parameters())
    return model


def off_by_the_longest(model: Any) -> Any:
    """A Llama that turns queries by the length of the keys it got, as some architectures do: right for a sequence
    alone, wrong for the shorter one in a batch, with no error."""
    for layer in model.model.layers:
        layer.self_attn.rope = _FromTheLongest(layer.self_attn.rope)
    return model


class _FromTheLongest:
    def __init__(self, rope: Any) -> None:
        self._rope = rope

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        turned: mx.array = self._rope(x, offset=int(mx.max(offset).item()) if isinstance(offset, mx.array) else offset)
        return turned


def own_loop(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """mlx-lm's greedy text."""
    steps = generate_step(mx.array(prompt), model, max_tokens=tokens)
    return [int(token) for token, _ in steps]


def test_llama_model_passes_load_time_batching_trial():
    assert why_not_batched(tiny_llama(1)) == ""


def test_load_time_batching_trial_computes_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a large vocabulary they would take most of its time."""
    monkeypatch.setattr(nn.Embedding, "as_linear", lambda *_: pytest.fail("logits were computed"))
    assert why_not_batched(tiny_llama(1)) == ""


def test_load_time_batching_trial_uses_two_layers_only_if_all_layers_are_alike():
    model = tiny_llama(1, layers=4)
    layers = model.layers
    with shallow(model):
        assert model.layers == layers[:2]
        assert model(mx.array([[1, 2]])).shape[:2] == (1, 2)
    assert model.layers is layers
    layers[3].self_attn.scale *= 2
    with shallow(model):
        assert model.layers is layers, "one of them computes something else"


def test_afm7_model_is_decoded_one_sequence_at_a_time_with_mlx_lms_text(caplog):
    target, draft = tiny_afm7(1), tiny_afm7(2)
    with caplog.at_level(logging.WARNING):
        models = pair(target, draft)
    assert not models.info.batched
    assert "its logits differ" in models.info.batched_reason
    assert "decodes its sequences one by one" in caplog.text
    expected = [own_loop(target, prompt, 24) for prompt in PROMPTS]
    for plan in (autoregressive(), speculative(3), automatic(3)):
        sinks = Rig(models).run([request(prompt, plan, max_tokens=24) for prompt in PROMPTS])
        assert [sink.tokens for sink in sinks] == expected
        assert [sink.done.degraded for sink in sinks] == [""] * 3


def test_load_time_batching_trial_detects_silently_wrong_logits_and_disables_batching():
    model = off_by_the_longest(tiny_llama(1))
    assert why_not_batched(model).startswith("in a batch of unlike lengths its logits differ")
    assert isinstance(make_caches(model), PerSequenceCaches)
    models = pair(model, None)
    sinks = Rig(models).run([request(prompt, autoregressive(), max_tokens=16) for prompt in PROMPTS])
    assert [sink.tokens for sink in sinks] == [own_loop(model, prompt, 16) for prompt in PROMPTS]


def test_load_time_batching_trial_computes_full_logits_if_model_masks_token_ids():
    widths = set[int]()

    class RulingOut(Model):
        """Some of its tokens are never chosen, as Phi-3-small's; their ids are beyond the width of its layers."""

        def __call__(self, *args: Any, **more: Any) -> mx.array:
            logits = super().__call__(*args, **more)
            widths.add(logits.shape[-1])
            logits[..., mx.array([100, 127])] = -float("inf")
            return logits

    model = tiny_llama(1, vocab=128)
    model.__class__ = RulingOut
    assert why_not_batched(model) == ""
    assert widths == {128}


def test_sliding_window_model_passes_load_time_batching_trial():
    model = tiny_llama(1, sliding=16)
    assert why_not_batched(model) == ""


def test_sliding_window_model_speculates_over_ten_windows_with_bounded_memory():
    target = tiny_llama(1, sliding=24, scale=8.0)
    prompts = [[5, 6, 7, 8], [9] * 30, [3, 1]]
    expected = [own_loop(target, prompt, 240) for prompt in prompts]
    for draft in (tiny_llama(2, scale=8.0), tiny_llama(1, sliding=24, scale=8.0)):
        rig, held = Rig(pair(target, draft)), list[int]()
        sinks = [rig.add(request(prompt, speculative(3), max_tokens=240)) for prompt in prompts]
        while not rig.scheduler.idle:
            rig.scheduler.step()
            windows = [layer for layer in rig.target._batch.caches._attention if layer.window.size]  # type: ignore[attr-defined]
            held.append(sum(array.nbytes for layer in windows for array in layer.arrays()))
        assert [sink.tokens for sink in sinks] == expected
        assert [sink.done.degraded for sink in sinks] == [""] * 3
        counts = [sink.done.stats.counts for sink in sinks]
        assert all(one.drafted >= 2 * (one.emitted - one.accepted) for one in counts), "every step drafted"
        early = len(held) // 3
        assert max(held[early:]) <= max(held[:early]) > 0, "what windows keep does not grow with the text"


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_models_pass_load_time_batching_trial(dtype):
    model = tiny_llama(1, vocab=256)
    model.set_dtype(dtype)
    assert why_not_batched(model) == ""


class InFours(BatchedAttention):
    """A layer that can stop only where a block of four positions ends."""

    def rollback(self, held: Sequence[int], wanted: Sequence[int]) -> list[int]:
        return [new if new == old else new // 4 * 4 for new, old in zip(wanted, held, strict=True)]


def in_fours(model: Any, forwards: int = 1) -> BatchedCaches:
    return BatchedCaches(model, make=[BatchedAttention, InFours])


def test_mixed_layer_caches_all_roll_back_to_the_coarsest_layers_position():
    caches = in_fours(tiny_llama(1))
    for length in (9, 6, 8):
        one = caches.fresh()
        one.forward(mx.zeros((1, length), dtype=mx.uint32), [length])
        caches.join(one)
    assert caches.rollback([7, 6, 5]) == [4, 6, 4]
    assert caches.lengths == [4, 6, 4]


@pytest.mark.parametrize("coarse", ["target", "draft", "both"])
def test_tokens_lost_by_coarse_cache_rollback_are_recomputed_without_changing_text(monkeypatch, coarse):
    target, draft = tiny_llama(1), tiny_llama(2)
    expected = [own_loop(target, prompt, 24) for prompt in PROMPTS]
    if coarse != "draft":
        monkeypatch.setattr(local, "make_caches", in_fours)
    if coarse != "target":
        monkeypatch.setattr(cached, "make_caches", in_fours)
    sinks = Rig(pair(target, draft)).run([request(prompt, speculative(3), max_tokens=24) for prompt in PROMPTS])
    assert [sink.tokens for sink in sinks] == expected
    assert sum(sink.done.stats.counts.rollbacks for sink in sinks) > 10
