"""Greedy text is mlx-lm's own autoregressive text, token for token, at every depth, drafter and batch size.

Fifty held-out prompts of each workload class of the embedded pair, the whole set for each cell.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from draftd.core import DrafterKind
from draftd.engine.model import LoadedModels, load_models
from tests.rig import Rig, autoregressive, request, speculative

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 32
DEPTHS = [1, 2, 3, 4, 6]
CLASSES = ["code", "tool_call", "chat", "prose"]


@pytest.fixture(scope="module")
def models(nano_pair) -> LoadedModels:
    return load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)


@pytest.fixture(scope="module")
def prompts(nano_pair, models) -> list[list[int]]:
    folder = Path(nano_pair.target).parent / "prompts"
    lines = [line for name in CLASSES for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    lines = [line for i, line in enumerate(lines) if i % 8 < 5]  # five of eight: every kind of prompt is among them
    out = [models.tokenizer.render_chat(json.loads(line)["messages"]) for line in lines]
    assert len(out) >= 200
    return out


@pytest.fixture(scope="module")
def expected(models, prompts) -> list[list[int]]:
    """mlx-lm alone, one prompt at a time."""
    from mlx_lm.generate import generate_step

    texts = []
    for prompt in prompts:
        text: list[int] = []
        for token, _ in generate_step(mx.array(prompt), models.target, max_tokens=TOKENS):
            text.append(int(token))
            if token in models.tokenizer.eos_ids:
                break
        texts.append(text)
    return texts


def check(models, prompts, expected, plans, batch: int) -> None:
    asked = [request(p, plans[i % len(plans)], max_tokens=TOKENS) for i, p in enumerate(prompts)]
    sinks = Rig(models, max_batch=batch).run(asked)
    different = [i for i, (s, e) in enumerate(zip(sinks, expected, strict=True)) if s.tokens != e]
    assert different == []
    assert all(s.done.degraded == "" for s in sinks)
    if plans[0].max_draft_tokens:
        assert sum(s.done.stats.counts.rollbacks for s in sinks) > 0, "no rollback: nothing was proven"


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("depth", DEPTHS)
def test_draft_model(models, prompts, expected, depth, batch):
    check(models, prompts, expected, [speculative(depth)], batch)


@pytest.mark.parametrize("batch", [1, 4])
def test_prompt_lookup(models, prompts, expected, batch):
    check(models, prompts, expected, [speculative(4, DrafterKind.PROMPT_LOOKUP)], batch)


@pytest.mark.parametrize("batch", [1, 4])
def test_autoregressive(models, prompts, expected, batch):
    check(models, prompts, expected, [autoregressive()], batch)


def test_rows_of_every_kind_in_one_batch(models, prompts, expected):
    plans = [speculative(4), autoregressive(), speculative(2), speculative(6, DrafterKind.PROMPT_LOOKUP)]
    check(models, prompts, expected, plans, 4)
