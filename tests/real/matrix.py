"""Compares texts in every configuration of the real model with mlx-lm's, one configuration after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftd.client.prompts import Prompt, held_out, spread
from draftd.core import CLASSES, DRAFT_HEAD, DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan
from draftd.engine.pair import LoadedModels, load_models
from scripts.real_model import FULL, QUANTIZED
from tests.real import parity
from tests.real.parity import GREEDY, SEEDED, Question
from tests.rig import automatic, autoregressive, speculative

PARTS = (GREEDY, SEEDED, FOUR_BITS := "4bit")
_TOKENS_4BIT = 8  # on a CPU, a token takes three times as long with 4 bits, and so does each token of a prompt
_DRAFTERS = (DRAFT_MODEL, PROMPT_LOOKUP, DRAFT_HEAD)
# The sequences of a batch take these in turn: each drafts with another drafter.
_PLANS = {
    "depth 0": [autoregressive()],
    **{f"depth {depth}": [speculative(depth, drafter) for drafter in _DRAFTERS] for depth in (1, 2, 4, 8)},
    "automatic": [automatic(8, *_DRAFTERS), automatic(8, PROMPT_LOOKUP)],
}


@dataclass(frozen=True)
class Row:
    """The result of one configuration. `differences`: a line for each text that is not mlx-lm's."""

    name: str
    texts: int
    drafted: int
    accepted: int
    seconds: float
    differences: list[str]

    @property
    def identical(self) -> int:
        return self.texts - len(self.differences)


def compare(part: str, *, each: int, tokens: int) -> Iterator[Row]:
    """Compares the configurations of `part`, one of PARTS."""
    return _compare_quantized() if part == FOUR_BITS else _compare_full(part, each=each, tokens=tokens)


def _compare_full(sampling: str, *, each: int, tokens: int) -> Iterator[Row]:
    """Compares with 16 bits. `each` is the prompts of each category, of which one is decoded alone; `tokens` is the
    length of each text."""
    pair = load_models(str(FULL), str(QUANTIZED), progress=lambda line: None)
    models = parity.with_shallow_draft(pair)
    prompts = [prompt for kind in CLASSES for prompt in spread(held_out(kind), each)]
    questions = parity.make_questions(models, prompts, sampling)
    expected = parity.write_with_mlx_lm(models, questions, tokens)
    some, texts = questions[::each], expected[::each]
    for name, plans in _PLANS.items():
        yield _compare(f"16 bits, {sampling}, alone, {name}", models, some, texts, plans, 1)
    for batch in (4, 8):
        for name, plans in _PLANS.items():
            yield _compare(f"16 bits, {sampling}, {batch} at once, {name}", models, questions, expected, plans, batch)
    yield _compare(f"16 bits, {sampling}, 4 at once, depth 4, drafts by 4 bits", pair, some, texts, [speculative(4)], 4)


def _compare_quantized() -> Iterator[Row]:
    """Compares with 4 bits: the three shortest prompts, each of another category."""
    models = parity.load(QUANTIZED)
    shortest = [min(held_out(kind), key=_length) for kind in CLASSES]
    prompts = sorted(shortest, key=_length)[:3]
    questions = parity.make_questions(models, prompts, GREEDY)
    expected = [parity.write_alone_with_mlx_lm(models, question, _TOKENS_4BIT) for question in questions]
    for name, plan in (("depth 0", autoregressive()), ("depth 2", speculative(2, PROMPT_LOOKUP))):
        yield _compare(f"4 bits, greedy, alone, {name}", models, questions, expected, [plan], 1)


def _length(prompt: Prompt) -> int:
    return sum(len(content) for _, content in prompt.messages)


def _compare(
    name: str,
    models: LoadedModels,
    questions: Sequence[Question],
    expected: Sequence[list[int]],
    plans: Sequence[DecodePlan],
    batch: int,
) -> Row:
    start = time.perf_counter()
    tokens = max(len(text) for text in expected)
    sinks = parity.write_with_draftd(models, questions, plans, tokens, batch=batch)
    seconds = time.perf_counter() - start
    differences = parity.describe_differences(models, questions, expected, sinks)
    totals = parity.draft_totals(sinks)
    return Row(name, len(sinks), totals.drafted, totals.accepted, seconds, differences)
