"""Penalties, bias, `min_tokens`, log-probabilities and endings: what the engine chooses is what a plain computation in
numpy chooses, step by step, with drafts and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from draftd.core import PROMPT_LOOKUP, DecodePlan, DecodeRequest, FinishReason, SamplingParams, TokenLogprobs
from draftd.engine.sampling import logprobs
from draftd.engine.sampling.logprobs import PromptLogprobs
from tests.rig import Rig, autoregressive, pair, request, speculative, tiny_llama
from tests.unit.engine.test_distribution import plainly

TOKENS = 40
PROMPT = [1, 5, 2, 5, 2, 1, 5, 2]
PLANS = {"plain": autoregressive(), "draft model": speculative(4), "prompt lookup": speculative(3, PROMPT_LOOKUP)}
BIAS = ((3, 2.5), (7, -100.0), (11, 1.0))
WAYS = [
    SamplingParams(),
    SamplingParams(logit_bias=BIAS),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(presence_penalty=0.8),
    SamplingParams(frequency_penalty=0.3),
    SamplingParams(repetition_penalty=0.9, presence_penalty=-0.2, frequency_penalty=-0.05),
    SamplingParams(logit_bias=BIAS, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.2),
]


@pytest.fixture(scope="module")
def models() -> Any:
    """The draft is the target: what it knows nothing of are the penalties alone."""
    return pair(tiny_llama(1, scale=2.0), tiny_llama(1, scale=2.0))


def ask(plan: DecodePlan, way: SamplingParams | None = None, i: int = 0, **more: Any) -> DecodeRequest:
    return replace(request(PROMPT[i % 3 :], plan, max_tokens=TOKENS, sampling=way), **more)


def raw(models: Any, prompt: list[int], answer: list[int]) -> np.ndarray:
    """The target's own logits for each token of the answer, by mlx-lm's model alone."""
    text = mx.array([[*prompt, *answer[:-1]]])
    return np.array(models.target(text)[0, len(prompt) - 1 :].astype(mx.float32))


def processed(logits: np.ndarray, way: SamplingParams, prompt: list[int], answer: list[int]) -> np.ndarray:
    """As the formulas are written down."""
    found = logits.astype(np.float64)
    for token, bias in way.logit_bias:
        found[token] += bias
    for token in {*prompt, *answer}:
        found[token] *= way.repetition_penalty ** (-1 if found[token] > 0 else 1)
    for token in set(answer):
        found[token] -= way.presence_penalty + answer.count(token) * way.frequency_penalty
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_greedy_choice_with_bias_and_penalties_matches_numpy_reference(models: Any, plan: str) -> None:
    sinks = Rig(models).run([ask(PLANS[plan], way, i) for i, way in enumerate(WAYS)])
    for i, (way, sink) in enumerate(zip(WAYS, sinks, strict=True)):
        prompt, answer = PROMPT[i % 3 :], sink.tokens
        assert len(answer) == TOKENS
        for n, logits in enumerate(raw(models, prompt, answer)):
            expected = processed(logits, way, prompt, answer[:n])
            assert expected[answer[n]] > expected.max() - 1e-4, (way, n)
    if plan != "plain":
        judged = [sink.done.stats.counts for sink in sinks[1:]]
        perfect = sum(not one.rolled_back for one in judged)
        assert perfect == (plan == "prompt lookup"), "the text that is paid for repetition repeats itself"
        assert sum(one.accepted for one in judged) > 20


def test_texts_with_penalties_are_the_same_with_drafts_and_in_a_mixed_batch(models: Any) -> None:
    """Greedy and seeded; alone without drafts, and all in one batch, each with another drafter than its neighbour."""
    ways = [way if i % 2 else replace(way, temperature=0.9, top_p=0.95, seed=7 + i) for i, way in enumerate(WAYS)]
    more = [{}, {"min_tokens": 12, "stop_ids": frozenset({2, 5, 20})}, {"logprobs": 2}]
    asked = [(way, i, more[i % 3]) for i, way in enumerate(ways)]
    rig = Rig(models)
    alone = [rig.run([ask(autoregressive(), way, i, **rest)])[0].tokens for way, i, rest in asked]
    plans = [speculative(4), speculative(3, PROMPT_LOOKUP), autoregressive(), speculative(1)]
    sinks = rig.run([ask(plans[i % 4], way, i, **rest) for way, i, rest in asked])
    assert [sink.tokens for sink in sinks] == alone


def test_unseeded_samples_follow_distribution_after_bias_and_penalties(models: Any) -> None:
    """Of a first token, and of a second one that was drafted without knowing of penalties: how often it is one that
    they make likelier. A true sampler fails with a chance of at most 1e-4 each time (Hoeffding)."""
    draws, way = 250, SamplingParams(1.0, logit_bias=((20, 3.0),), presence_penalty=-2.0, frequency_penalty=-2.0)
    bound = np.sqrt(np.log(2 / 1e-4) / (2 * draws))
    asked = [request(PROMPT, speculative(1), max_tokens=2, sampling=way) for _ in range(draws)]
    answers = [sink.tokens for sink in Rig(models).run_together(asked)]
    for n in range(2):
        likelier = expected = unprocessed = 0.0
        for answer in answers:
            logits = raw(models, PROMPT, answer)[n]
            p, other = plainly(processed(logits, way, PROMPT, answer[:n]), way), plainly(logits, way)
            likelier += (p > other)[answer[n]]
            expected += p[p > other].sum()
            unprocessed += other[p > other].sum()
        assert abs(likelier - expected) < bound * draws
        assert abs(unprocessed - expected) > 2 * bound * draws, "a sampler that ignores them is found out"


@pytest.mark.parametrize("penalty", [1e-3, 1e-8, 1e-38, 1e-46])
def test_near_zero_repetition_penalty_selects_already_used_token_with_highest_logit(
    models: Any, penalty: float
) -> None:
    """Of the tokens that the text has, the one with the highest logit: not the first of several that are infinite."""
    way = SamplingParams(repetition_penalty=penalty)
    asked = [replace(ask(plan, way), max_tokens=8) for plan in (autoregressive(), speculative(4))]
    for sink in Rig(models).run(asked):
        for n, logits in enumerate(raw(models, PROMPT, sink.tokens)):
            expected = processed(logits, way, PROMPT, sink.tokens[:n])
            assert expected[sink.tokens[n]] > expected.max() * (1 - 1e-4), n


@pytest.mark.parametrize("plan", PLANS)
def test_stop_token_is_not_chosen_before_min_tokens(models: Any, plan: str) -> None:
    rig = Rig(models)
    plain = rig.run([ask(autoregressive())])[0].tokens
    ends = frozenset(plain[3:9])
    early, late = rig.run([ask(PLANS[plan], stop_ids=ends), ask(PLANS[plan], stop_ids=ends, min_tokens=15)])
    first = next(i for i, token in enumerate(plain) if token in ends)
    assert early.tokens == plain[: first + 1]
    assert early.done.reason is FinishReason.STOP
    assert not ends.intersection(late.tokens[:15])
    assert len(late.tokens) > 15
    assert ends.isdisjoint(late.tokens[15:-1])
    assert (late.tokens[-1] in ends) == (late.done.reason is FinishReason.STOP)


@pytest.mark.parametrize("plan", PLANS)
def test_log_probabilities_are_the_targets_own_before_bias_and_penalties(models: Any, plan: str) -> None:
    """Whatever is done to the logits afterwards; sequences that ask for none get none."""
    free = SamplingParams(0.8, presence_penalty=0.3)
    ways = [WAYS[-1], SamplingParams(), free, replace(free, seed=3)]
    asked = [
        ask(PLANS[plan], way, i, logprobs=most) for i, (way, most) in enumerate(zip(ways, [5, None, 3, 0], strict=True))
    ]
    for i, (one, sink) in enumerate(zip(asked, Rig(models).run(asked), strict=True)):
        if one.logprobs is None:
            assert not sink.logprobs
            continue
        logits = raw(models, PROMPT[i % 3 :], sink.tokens).astype(np.float64)
        own = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        for told, token, expected in zip(sink.logprobs, sink.tokens, own, strict=True):
            assert told.logprob == pytest.approx(expected[token], abs=1e-4)
            assert [value for _, value in told.top] == pytest.approx(sorted(expected)[::-1][: one.logprobs], abs=1e-4)
            assert all(value == pytest.approx(expected[id_], abs=1e-4) for id_, value in told.top)


def test_request_with_lower_priority_number_is_served_first(models: Any) -> None:
    rig, order = Rig(models, max_batch=1), list[int]()
    asked = [ask(autoregressive(), priority=priority, max_tokens=2) for priority in (0, 5, -3, 0, -3)]
    sinks = [rig.add(one) for one in asked]
    while not rig.scheduler.idle:
        rig.scheduler.step()
        order += [i for i, sink in enumerate(sinks) if sink.tokens and i not in order]
    assert order == [2, 4, 0, 3, 1]


def check_prompt(models: Any, prompt: list[int], told: list[TokenLogprobs] | None, most: int) -> None:
    """Each token after the first, against mlx-lm's model alone."""
    logits = np.array(models.target(mx.array([prompt]))[0, :-1].astype(mx.float32)).astype(np.float64)
    own = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    assert told is not None
    for one, token, expected in zip(told, prompt[1:], own, strict=True):
        assert one.logprob == pytest.approx(expected[token], abs=1e-4)
        assert one.rank == (expected > expected[token]).sum() + 1
        assert [value for _, value in one.top] == pytest.approx(np.sort(expected)[::-1][:most], abs=1e-4)
        assert [value for _, value in one.top] == pytest.approx([expected[i] for i, _ in one.top], abs=1e-4)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("widest", [512, 5])
def test_prompt_log_probabilities_match_target_model_with_bounded_logits_memory(
    models: Any, plan: str, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores prompts of several slices, of one slice, of one token, and one that the prefix cache has. At most the
    logits of `widest` positions are in memory, and the text is the same."""
    computed, add = list[int](), PromptLogprobs.add

    def noted(self: PromptLogprobs, tokens: Sequence[int], logits: mx.array) -> None:
        computed.append(logits.shape[1])
        add(self, tokens, logits)

    monkeypatch.setattr(logprobs, "_LOGITS", widest * models.info.vocab_size)
    monkeypatch.setattr(PromptLogprobs, "add", noted)
    prompts = [[(7 * n + i * i) % 29 for i in range(length)] for n, length in enumerate((40, 9, 1))]
    rig, way = Rig(models, prefill_chunk=16, prefix_bytes=1 << 20), WAYS[-1]
    plain = [replace(ask(PLANS[plan], way), prompt=tuple(prompt)) for prompt in prompts]
    first = rig.run([replace(one, prompt_logprobs=3) for one in plain])
    again = rig.run([replace(one, prompt_logprobs=1) for one in plain])
    later = rig.run(plain)
    for prompt, *sinks in zip(prompts, first, again, later, strict=True):
        check_prompt(models, prompt, sinks[0].prompt, 3)
        check_prompt(models, prompt, sinks[1].prompt, 1)
        assert sinks[2].prompt is None
        assert [sink.tokens for sink in sinks] == [sinks[0].tokens] * 3
        assert [sink.done.stats.cached_tokens for sink in sinks] == [0, 0, 39 if len(prompt) == 40 else 0]
    assert sum(computed) == 2 * sum(map(len, prompts))
    assert max(computed) == min(widest, 16)


def test_request_with_max_tokens_zero_generates_no_token(models: Any) -> None:
    asked = [replace(ask(plan), max_tokens=0, prompt_logprobs=most) for plan in PLANS.values() for most in (0, None)]
    rig = Rig(models)
    for one, sink in zip(asked, rig.run(asked), strict=True):
        assert (sink.tokens, sink.done.reason) == ([], FinishReason.LENGTH)
        assert (sink.done.stats.counts.emitted, sink.done.stats.time_to_first_token) == (0, None)
        if one.prompt_logprobs is None:
            assert sink.prompt is None
        else:
            check_prompt(models, list(one.prompt), sink.prompt, 0)
    assert rig.scheduler.idle
