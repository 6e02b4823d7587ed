"""The embedded pair under penalties, bias, `min_tokens`, seeds and choices: one text, with drafts and without, alone
and beside others; log-probabilities are those of a forward of mlx-lm's own model.

Two prompts of each workload class, each asked for in another way; every prompt with PARITY=all.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from draftd.core import PROMPT_LOOKUP, DecodePlan, DecodeRequest, SamplingParams
from draftd.engine.pair import LoadedModels, load_models
from tests.rig import Collected, Rig, autoregressive, request, speculative

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 20
EACH = 20 if os.environ.get("PARITY") == "all" else 2
WAYS: list[dict[str, Any]] = [
    {"sampling": SamplingParams(repetition_penalty=1.15), "logprobs": 5},
    {"sampling": SamplingParams(0.8, top_p=0.95, seed=1, presence_penalty=0.6, frequency_penalty=0.3)},
    {"sampling": SamplingParams(logit_bias=((11, 4.0), (300, 6.0), (301, -100.0))), "min_tokens": 16, "logprobs": 0},
    {"sampling": SamplingParams(1.0, seed=2, repetition_penalty=0.95, logit_bias=((12, 3.0),)), "logprobs": 3},
    {"sampling": SamplingParams(frequency_penalty=0.5, presence_penalty=-0.4), "ignore_eos": True},
    {"sampling": SamplingParams(0.7, top_k=20, seed=3), "min_tokens": 20, "logprobs": 1},
]
DRAFTED = [speculative(4), speculative(4, PROMPT_LOOKUP)]


@pytest.fixture(scope="module")
def models(nano_pair) -> LoadedModels:
    return load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)


@pytest.fixture(scope="module")
def prompts(nano_pair, models) -> list[list[int]]:
    folder = Path(nano_pair.target).parent / "prompts"
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()[:EACH]]
    return [models.tokenizer.render_chat(json.loads(line)["messages"]) for line in lines]


def asked(prompt: list[int], i: int, plan: DecodePlan) -> DecodeRequest:
    return replace(request(prompt, plan, max_tokens=TOKENS), **WAYS[i % len(WAYS)])


@pytest.fixture(scope="module")
def alone(models, prompts) -> list[Collected]:
    rig = Rig(models)
    return [rig.run([asked(prompt, i, autoregressive())])[0] for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("batch", [1, 8])
def test_shipped_model_pair_texts_with_penalties_are_the_same_with_drafts_as_without(models, prompts, alone, batch):
    """By themselves only some of them: what differs there does not depend on the prompt."""
    some = range(0, len(prompts), 1 if batch > 1 or EACH > 2 else 3)
    sinks = Rig(models, max_batch=batch).run([asked(prompts[i], i, DRAFTED[i % 2]) for i in some])
    assert [sink.tokens for sink in sinks] == [alone[i].tokens for i in some]
    counts = [sink.done.stats.counts for sink in sinks]
    assert sum(one.accepted for one in counts) > len(some)
    assert sum(one.rolled_back for one in counts) > 0
    check_logprobs(models, prompts, dict(zip(some, sinks, strict=True)))


def test_shipped_model_pair_log_probabilities_without_drafts_equal_mlx_lms(models, prompts, alone):
    check_logprobs(models, prompts, dict(enumerate(alone)))


def check_logprobs(models: LoadedModels, prompts: list[list[int]], sinks: dict[int, Collected]) -> None:
    for i, sink in sinks.items():
        prompt, most = prompts[i], WAYS[i % len(WAYS)].get("logprobs")
        assert len(sink.logprobs) == (0 if most is None else len(sink.tokens))
        if most is None:
            continue
        logits = models.target(mx.array([[*prompt, *sink.tokens[:-1]]]))[0, len(prompt) - 1 :].astype(mx.float32)
        own = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        for told, token, expected in zip(sink.logprobs, sink.tokens, own, strict=True):
            assert told.logprob == pytest.approx(expected[token], abs=1e-4)
            assert [value for _, value in told.top] == pytest.approx(np.sort(expected)[::-1][:most], abs=1e-4)
            assert [value for _, value in told.top] == pytest.approx(
                [expected[token] for token, _ in told.top], abs=1e-4
            )


def test_choices_of_one_request_share_its_prompt_and_equal_separate_requests(models, prompts):
    prompt = tuple(prompts[0] * 3)
    ways = [SamplingParams(0.9, seed=7 + i, presence_penalty=0.3) for i in range(3)]
    first = request(prompt, speculative(4), max_tokens=TOKENS)
    choices = [replace(first, id=f"choice {i}", sampling=way) for i, way in enumerate(ways)]
    sinks = Rig(models, prefix_bytes=1 << 28).run(choices)
    rig = Rig(models)
    own = [rig.run([request(prompt, autoregressive(), max_tokens=TOKENS, sampling=way)])[0] for way in ways]
    assert [sink.tokens for sink in sinks] == [sink.tokens for sink in own]
    assert [sink.done.stats.cached_tokens for sink in sinks] == [0, *[len(prompt) - 1] * 2]
