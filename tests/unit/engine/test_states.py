"""Recurrent states in a batch: exact, and rolled back to where a block began; what was right of it is fed again."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.generate import generate_step

from draftd.core import PROMPT_LOOKUP, SamplingParams
from draftd.engine.cache.layouts import make_caches, why_not_batched
from draftd.engine.limits import MOST_REPLAYED
from tests.rig import Rig, automatic, autoregressive, pair, request, speculative, tiny_llama

PROMPTS = [[5, 6, 7, 8], [9] * 30, [3, 1, 4, 1, 5]]


def convolutions(seed: int) -> Any:
    from mlx_lm.models.lfm2 import Model, ModelArgs

    args = ModelArgs(
        model_type="lfm2",
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        norm_eps=1e-5,
        conv_bias=False,
        conv_L_cache=3,
        block_dim=16,
        block_ff_dim=32,
        block_multiple_of=16,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention", "conv"],
    )
    return _random(seed, Model(args))


def recurrences(seed: int) -> Any:
    from mlx_lm.models.mamba2 import Model, ModelArgs

    args = ModelArgs(
        model_type="mamba2",
        num_heads=4,
        head_dim=8,
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        state_size=8,
        num_hidden_layers=2,
        layer_norm_epsilon=1e-5,
        conv_kernel=4,
        n_groups=2,
        use_bias=False,
        use_conv_bias=True,
        tie_word_embeddings=False,
        time_step_limit=(0.0, 100.0),
        time_step_rank=4,
    )
    return _random(seed, Model(args))


def _random(seed: int, model: Any) -> Any:
    mx.random.seed(seed)
    model.update(tree_map(lambda a: mx.random.normal(a.shape) * (0.3 if a.ndim > 1 else 0.5), model.parameters()))
    mx.eval(model.parameters())
    return model


MODELS = {"convolutions": convolutions, "recurrences": recurrences}


def noisy(model: Any, made: Any) -> Any:
    """`made`, with weights that are the model's and some noise: a draft that is often right, and often wrong."""
    mx.random.seed(3)
    made.update(tree_map(lambda a: a + 0.03 * mx.random.normal(a.shape), model.parameters()))
    mx.eval(made.parameters())
    return made


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(2))
def test_recurrent_state_rows_stay_exact_through_joins_rollbacks_and_removals(make, seed):
    model, dice = make(1), random.Random(seed)
    caches, texts = make_caches(model), list[list[int]]()

    def fed(blocks: list[list[int]]) -> list[np.ndarray]:
        """The logits after each row's block, with what a rollback went back beyond in front of it."""
        more = [text[n:] + block for text, n, block in zip(texts, caches.lengths, blocks, strict=True)]
        width = max(map(len, more))
        logits = caches.forward(
            mx.array([[*one, *[0] * (width - len(one))] for one in more]), [len(one) for one in more]
        )
        return [np.array(logits[i, len(one) - 1]) for i, one in enumerate(more)]

    for step in range(16):
        if len(texts) < 3 and step % 3 == 0:
            prompt, new = [dice.randrange(32) for _ in range(dice.randint(1, 20))], caches.fresh()
            for start in range(0, len(prompt), 7):
                new.forward(mx.array([prompt[start : start + 7]]), [len(prompt[start : start + 7])])
            caches.join(new)
            texts.append(prompt)
        blocks = [[dice.randrange(32) for _ in range(dice.randint(1, 5))] for _ in texts]
        fed(blocks)
        for text, block in zip(texts, blocks, strict=True):
            text += block[: dice.randint(1, len(block))]
        caches.rollback([len(text) for text in texts])
        for text, logits in zip(texts, fed([[7]] * len(texts)), strict=True):
            np.testing.assert_allclose(logits, np.array(model(mx.array([[*text, 7]]))[0, -1]), atol=1e-4)
        caches.rollback([len(text) for text in texts])
        if step == 9:
            caches.select([2, 0])
            texts = [texts[2], texts[0]]


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_recurrent_model_speculates_in_batch_with_same_text_as_mlx_lm(make):
    target = make(1)
    assert why_not_batched(target) == ""
    models = pair(target, noisy(target, make(1)))
    expected = [[int(token) for token, _ in generate_step(mx.array(p), target, max_tokens=60)] for p in PROMPTS]
    for plan in (autoregressive(), speculative(1), speculative(6), automatic(4), speculative(3, PROMPT_LOOKUP)):
        sinks = Rig(models).run([request(prompt, plan, max_tokens=60) for prompt in PROMPTS])
        assert [sink.tokens for sink in sinks] == expected
        assert [sink.done.degraded for sink in sinks] == [""] * 3
        counts = [sink.done.stats.counts for sink in sinks]
        if plan == speculative(6):
            assert sum(one.accepted for one in counts) > 30
            assert sum(one.rollbacks for one in counts) > 10


@pytest.mark.parametrize("make", [lambda seed: tiny_llama(seed, sliding=24), *MODELS.values()], ids=["window", *MODELS])
def test_model_with_mlx_lm_caches_speculates_with_the_same_text(make):
    target = make(1)
    target._draftd_not_batched = "its caches are to be mlx-lm's own"
    models = pair(target, noisy(target, make(1)))
    models.draft._draftd_not_batched = "and its draft's"
    expected = [[int(token) for token, _ in generate_step(mx.array(p), target, max_tokens=40)] for p in PROMPTS]
    for plan in (autoregressive(), speculative(4), speculative(3, PROMPT_LOOKUP)):
        sinks = Rig(models).run([request(prompt, plan, max_tokens=40) for prompt in PROMPTS])
        assert [sink.tokens for sink in sinks] == expected
        if plan == speculative(4):
            assert sum(sink.done.stats.counts.accepted for sink in sinks) > 10


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_seeded_text_of_recurrent_model_is_the_same_at_every_depth(make):
    target = make(1)
    models, sampling = pair(target, noisy(target, make(1))), SamplingParams(temperature=0.9, seed=11)
    texts = {
        tuple(Rig(models).run([request(PROMPTS[0], plan, max_tokens=50, sampling=sampling)])[0].tokens)
        for plan in (autoregressive(), speculative(2), speculative(5), speculative(3, PROMPT_LOOKUP))
    }
    assert len(texts) == 1


@pytest.mark.parametrize("make", [*MODELS.values(), lambda seed: tiny_llama(seed, sliding=16)], ids=[*MODELS, "window"])
def test_prefix_shared_by_two_conversations_is_reused_by_a_third_in_stateful_models(make):
    models, found = pair(make(1), make(2)), []
    rig = Rig(models, prefix_bytes=64 << 20, prefill_chunk=48)
    for user in (30, 0, 31):
        prompt = [*[(7 * i) % 29 + 1 for i in range(150)], user, *[5, 6] * 50]
        asked = request(prompt, speculative(3), max_tokens=12)
        (sink,), (alone,) = rig.run([asked]), Rig(models).run([asked])
        assert sink.tokens == alone.tokens
        found.append(sink.done.stats.cached_tokens)
    assert found == [0, 0, 150]


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_recurrent_model_step_reports_its_number_of_replayed_tokens(make, monkeypatch):
    target = make(1)
    rig, steps = Rig(pair(target, noisy(target, make(1)))), []
    learn = rig.scheduler.local.depth.learn

    def noted(sequences, plan, done, seconds):
        (one,) = done.sequences
        steps.append((done.replayed, one.drafted, len(one.accepted)))
        return learn(sequences, plan, done, seconds)

    monkeypatch.setattr(rig.scheduler.local.depth, "learn", noted)
    rig.run([request(PROMPTS[0], speculative(6), max_tokens=90)])
    held, expected = 0, list[int]()
    for _, drafted, accepted in steps:
        expected.append(held)
        assert not (drafted and held > MOST_REPLAYED)
        held = accepted + 1 + held if accepted < drafted else 0
    assert [replayed for replayed, _, _ in steps] == expected
    assert max(expected) > MOST_REPLAYED, "a step without a draft ends them"
    assert 0 in expected[1:]


@pytest.mark.parametrize("name", MODELS)
def test_choices_of_one_request_reuse_its_prompt_in_recurrent_model(name: str) -> None:
    """Though a state can be read at one place only: it is kept before the prompt's last token."""
    model, text = MODELS[name](1), tuple((7 * i + 3) % 31 for i in range(150))
    first = request(text, autoregressive(), max_tokens=8)
    choices = [replace(first, id=f"{name} {i}", sampling=SamplingParams(0.9, seed=i)) for i in range(3)]
    sinks = Rig(pair(model, None), prefix_bytes=1 << 26).run(choices)
    assert [sink.done.stats.cached_tokens for sink in sinks] == [0, 149, 149]
    rig = Rig(pair(model, None))
    assert [sink.tokens for sink in sinks] == [rig.run([one])[0].tokens for one in choices]
