"""Compares texts that the daemon's engine writes with a real model with those of mlx-lm's own loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx

from draftd.client.prompts import Prompt
from draftd.core import DecodePlan, SamplingParams
from draftd.engine.pair import LoadedModels, load_models
from draftd.engine.sampling.noise import Noise
from tests.random_costs import random_depth_control
from tests.rig import Collected, Rig, request

GREEDY, SEEDED = "greedy", "seeded"
_SKIPPED_LAYER = 20  # without it, a little more than half of the drafts are right


@dataclass(frozen=True)
class Question:
    """A prompt in token ids, with its sampling parameters."""

    name: str
    tokens: list[int]
    sampling: SamplingParams


@dataclass(frozen=True)
class DraftTotals:
    """Sums over texts. `parked`: steps of automatic depth that drafted nothing."""

    drafted: int
    accepted: int
    rollbacks: int
    parked: int


def load(folder: Path) -> LoadedModels:
    return load_models(str(folder), progress=lambda line: None)


def with_shallow_draft(models: LoadedModels) -> LoadedModels:
    """Adds a draft model that shares the target's weights and lacks one of its layers."""
    draft = copy.copy(models.target)
    draft.model = copy.copy(models.target.model)
    draft.model.layers = [layer for i, layer in enumerate(draft.model.layers) if i != _SKIPPED_LAYER]
    return replace(models, draft=draft)


def make_questions(models: LoadedModels, prompts: Sequence[Prompt], sampling: str) -> list[Question]:
    """Returns the prompts with their sampling: GREEDY, or SEEDED with a different seed for each prompt."""
    questions = []
    for seed, prompt in enumerate(prompts):
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        params = SamplingParams() if sampling == GREEDY else SamplingParams(0.8, top_p=0.95, seed=seed)
        questions.append(Question(f"{prompt.name}, {sampling}", models.tokenizer.render_chat(messages), params))
    return questions


def write_with_mlx_lm(models: LoadedModels, questions: Sequence[Question], tokens: int) -> list[list[int]]:
    """Returns the texts of mlx-lm's own batches, at most `tokens` long."""
    from mlx_lm.generate import BatchGenerator

    stop = [[token] for token in models.tokenizer.eos_ids]
    generator = BatchGenerator(models.target, max_tokens=tokens, stop_tokens=stop)
    samplers = [mlx_lm_sampler(question.sampling) for question in questions]
    ids = generator.insert([question.tokens for question in questions], samplers=samplers)
    texts: dict[int, list[int]] = {uid: [] for uid in ids}
    while responses := generator.next_generated():
        for response in responses:
            texts[response.uid].append(response.token)
    generator.close()
    return list(texts.values())


def write_alone_with_mlx_lm(models: LoadedModels, question: Question, tokens: int) -> list[int]:
    """Returns the text of mlx-lm's loop for a single prompt."""
    from mlx_lm.generate import generate_step

    text: list[int] = []
    sampler = mlx_lm_sampler(question.sampling)
    for token, _ in generate_step(mx.array(question.tokens), models.target, max_tokens=tokens, sampler=sampler):
        text.append(int(token))
        if token in models.tokenizer.eos_ids:
            break
    return text


def mlx_lm_sampler(sampling: SamplingParams) -> Callable[[mx.array], mx.array]:
    """Returns a sampler for one text, which mlx-lm calls once for each token.

    With a seed it is mlx-lm's own top_p and temperature. Only the random numbers are replaced, by the seed's noise for
    that place in the answer.
    """
    from mlx_lm.sample_utils import apply_top_p, greedy_sampler

    if sampling.greedy:
        return greedy_sampler
    assert sampling.seed is not None
    noise, place = Noise([sampling.seed]), 0

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal place
        added = noise.block([place], 0, 1, logprobs.shape[-1])[0]
        place += 1
        return mx.argmax(apply_top_p(logprobs, sampling.top_p) / sampling.temperature + added, axis=-1)

    return sample


def write_with_draftd(
    models: LoadedModels, questions: Sequence[Question], plans: Sequence[DecodePlan], tokens: int, *, batch: int
) -> list[Collected]:
    """Runs the engine with at most `batch` sequences at a time, which take the plans in turn. The costs that it knows
    are drawn again for each step, so that an automatic depth changes often."""
    requests = [
        request(question.tokens, plans[i % len(plans)], max_tokens=tokens, sampling=question.sampling)
        for i, question in enumerate(questions)
    ]
    return Rig(models, max_batch=batch, depth=random_depth_control(batch)).run(requests)


def describe_differences(
    models: LoadedModels, questions: Sequence[Question], expected: Sequence[list[int]], sinks: Sequence[Collected]
) -> list[str]:
    """Returns one line for each text that is not mlx-lm's."""
    rows = zip(questions, expected, sinks, strict=True)
    return [_difference(models, question, text, sink.tokens) for question, text, sink in rows if sink.tokens != text]


def _difference(models: LoadedModels, question: Question, expected: list[int], actual: list[int]) -> str:
    """Names the first token that differs, and the gap between both in what the target maximises. A gap of next to
    nothing is a tie that rounding decides."""
    shorter = min(len(expected), len(actual))
    at = next((i for i in range(shorter) if expected[i] != actual[i]), shorter)
    if at == shorter:
        return f"{question.name}: {len(actual)} tokens instead of {len(expected)}"
    scores = models.target(mx.array([[*question.tokens, *expected[:at]]]))[0, -1].astype(mx.float32)
    seed = question.sampling.seed
    if seed is not None:
        scores = scores / question.sampling.temperature + Noise([seed]).block([at], 0, 1, scores.size)[0, 0]
    gap = (scores[expected[at]] - scores[actual[at]]).item()
    return f"{question.name}: token {at} is {actual[at]} instead of {expected[at]}, a gap of {gap:.2g}"


def draft_totals(sinks: Sequence[Collected]) -> DraftTotals:
    counts = [sink.done.stats.counts for sink in sinks]
    return DraftTotals(
        drafted=sum(sum(count.drafted_per_position) for count in counts),
        accepted=sum(count.accepted for count in counts),
        rollbacks=sum(count.rollbacks for count in counts),
        parked=sum(count.parked_steps for count in counts),
    )
