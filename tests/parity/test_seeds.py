"""The embedded pair's sampled text with a seed is the same alone and autoregressively as in batches that draft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan, SamplingParams
from draftd.engine.pair import load_models
from tests.rig import Rig, automatic, autoregressive, request, speculative

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.timeout(300)]

EACH, TOKENS = 1, 32


def test_shipped_model_pair_seeded_text_in_drafting_batches_equals_undrafted_text_alone(nano_pair):
    models = load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)
    folder = Path(nano_pair.target).parent / "prompts"
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()[:EACH]]
    prompts = [models.tokenizer.render_chat(json.loads(line)["messages"]) for line in lines]

    def texts(batch: int, plan: DecodePlan) -> list[list[int]]:
        ways = [SamplingParams(0.8, top_p=0.95, seed=seed) for seed in range(len(prompts))]
        asked = [request(p, plan, max_tokens=TOKENS, sampling=way) for p, way in zip(prompts, ways, strict=True)]
        return [sink.tokens for sink in Rig(models, max_batch=batch).run(asked)]

    alone = texts(1, autoregressive())
    assert texts(8, automatic(7, DRAFT_MODEL, PROMPT_LOOKUP)) == alone
    assert texts(4, speculative(4)) == alone
