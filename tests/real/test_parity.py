"""A real model's text is mlx-lm's own, token for token: greedy and with seeds beside each other; without drafts, at
depth 4, with its draft head, and automatic; alone and four at once; with 16 bits and with 4.

`make parity-real` is the whole matrix.
"""

from __future__ import annotations

import pytest

from draftd.client.prompts import held_out
from draftd.core import DRAFT_HEAD, DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan, DepthMode, SamplingParams, WorkloadClass
from draftd.engine.pair import LoadedModels
from tests.real import parity
from tests.real.parity import GREEDY, SEEDED, Question
from tests.rig import automatic, autoregressive, speculative

pytestmark = [pytest.mark.real, pytest.mark.parity, pytest.mark.slow, pytest.mark.timeout(600)]

TOKENS, TOKENS_4BIT = 20, 8
PROMPTS = [
    (WorkloadClass.CODE, "code-functions-00", GREEDY),
    (WorkloadClass.CHAT, "chat-facts-13", SEEDED),
    (WorkloadClass.PROSE, "prose-stories-26", SEEDED),
    (WorkloadClass.EDIT, "edit-function-hints", GREEDY),
]
PLANS = {
    "depth 0": autoregressive(),
    "depth 4": speculative(4, PROMPT_LOOKUP),
    "its head, depth 3": speculative(3, DRAFT_HEAD),
    "automatic": automatic(4, DRAFT_MODEL, DRAFT_HEAD, PROMPT_LOOKUP),
}


@pytest.fixture(scope="module")
def questions(models: LoadedModels) -> list[Question]:
    return [
        question
        for kind, name, sampling in PROMPTS
        for question in parity.make_questions(
            models, [prompt for prompt in held_out(kind) if prompt.name == name], sampling
        )
    ]


@pytest.fixture(scope="module")
def expected(models: LoadedModels, questions: list[Question]) -> list[list[int]]:
    return parity.write_with_mlx_lm(models, questions, TOKENS)


def check(
    models: LoadedModels,
    questions: list[Question],
    expected: list[list[int]],
    plan: DecodePlan,
    *,
    batch: int,
    tokens: int = TOKENS,
) -> None:
    assert models.info.batched, models.info.batched_reason
    drafting = parity.with_shallow_draft(models)
    sinks = parity.write_with_draftd(drafting, questions, [plan], tokens, batch=batch)
    assert parity.describe_differences(models, questions, expected, sinks) == []
    assert all(sink.done.degraded == "" for sink in sinks)
    totals = parity.draft_totals(sinks)
    if not plan.max_draft_tokens:
        assert totals.drafted == 0
        return
    assert totals.accepted > 0, "a text without drafts proves nothing"
    if plan.depth_mode is DepthMode.FIXED:
        assert totals.rollbacks > 0, "no draft was wrong"


@pytest.mark.parametrize("place", [0, 1], ids=[GREEDY, SEEDED])
def test_mlx_lm_gives_same_smollm2_text_for_a_lone_sequence_as_in_a_batch(models, questions, expected, place):
    assert parity.write_alone_with_mlx_lm(models, questions[place], TOKENS) == expected[place]


@pytest.mark.parametrize("plan", PLANS)
def test_smollm2_texts_of_four_concurrent_sequences_equal_mlx_lms(models, questions, expected, plan):
    check(models, questions, expected, PLANS[plan], batch=4)


@pytest.mark.parametrize(
    ("plan", "place"), [("depth 0", 1), ("depth 4", 0), ("its head, depth 3", 1), ("automatic", 1)]
)
def test_smollm2_text_of_a_lone_sequence_equals_mlx_lms(models, questions, expected, plan, place):
    check(models, questions[place : place + 1], expected[place : place + 1], PLANS[plan], batch=1)


def test_smollm2_text_with_4_bit_weights_equals_mlx_lms(real_model_4bit):
    """The prompt is short: on a CPU, each of its tokens takes a tenth of a second with 4 bits."""
    models, text = parity.load(real_model_4bit), "one two one two one"
    question = Question(text, models.tokenizer.encode(text), SamplingParams())
    expected = parity.write_alone_with_mlx_lm(models, question, TOKENS_4BIT)
    for plan in (autoregressive(), speculative(2, PROMPT_LOOKUP)):
        check(models, [question], [expected], plan, batch=1, tokens=TOKENS_4BIT)
