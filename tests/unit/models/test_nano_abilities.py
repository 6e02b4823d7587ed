"""What the embedded pair must be able to do for anything shown with it to be honest. Runs the real models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Prompts = dict[str, list[dict[str, Any]]]
Messages = list[dict[str, str]]
ANSWER_TOKENS = 96


class _Pair:
    """Greedy answers of the target, and which of its tokens the draft would have chosen."""

    def __init__(self, folder: Path) -> None:
        from draftd.models.blas import load_blas

        load_blas()
        import mlx.core as mx
        from mlx_lm import load

        self.mx = mx
        self.target, self.tokenizer = load(str(folder / "target"))[:2]
        self.draft = load(str(folder / "draft"))[0]
        for model in (self.target, self.draft):
            model.set_dtype(mx.float32)
            mx.eval(model.parameters())

    def answers(self, asked: Sequence[Messages], tokens: int = ANSWER_TOKENS) -> list[tuple[list[int], list[int]]]:
        """Of each the prompt's tokens and the answer's."""
        from mlx_lm.generate import batch_generate

        prompts = [list(self.tokenizer.apply_chat_template(one, add_generation_prompt=True)) for one in asked]
        said = batch_generate(self.target, self.tokenizer, prompts, max_tokens=tokens, return_token_ids=True).token_ids
        return list(zip(prompts, said, strict=True))

    def say(self, *asked: Messages, tokens: int = ANSWER_TOKENS) -> list[str]:
        return [self.tokenizer.decode(said) for _, said in self.answers(asked, tokens)]

    def accepted(self, asked: Sequence[Messages]) -> float:
        """The share of the answers' tokens that were the draft's first choice."""
        hits = tokens = 0
        for prompt, said in self.answers(asked, ANSWER_TOKENS // 2):
            picked = self.mx.argmax(self.draft(self.mx.array([prompt + said]))[0], axis=-1).tolist()
            hits += sum(picked[len(prompt) - 1 + i] == token for i, token in enumerate(said))
            tokens += len(said)
        return hits / tokens


@pytest.fixture(scope="module")
def pair(nano: Path) -> _Pair:
    return _Pair(nano)


def _asked(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def test_embedded_target_answers_that_the_capital_of_france_is_paris(pair: _Pair) -> None:
    assert "Paris" in pair.say(_asked("What is the capital of France?"))[0]


def test_embedded_target_adds_small_numbers_nine_times_out_of_ten(pair: _Pair) -> None:
    sums = [(a, b) for a in range(2, 40, 10) for b in range(3, 30, 6)]
    said = pair.say(*(_asked(f"What is {a} + {b}?") for a, b in sums))
    right = sum(text.split()[-1:] == [str(a + b)] for text, (a, b) in zip(said, sums, strict=True))
    assert right >= 0.9 * len(sums)


def test_embedded_target_completes_a_working_is_even_function(pair: _Pair) -> None:
    (said,) = pair.say(_asked('Complete this function:\ndef is_even(n):\n    """Return True if n is even."""'))
    namespace: dict[str, Any] = {}
    exec(said, namespace)
    assert [namespace["is_even"](n) for n in range(4)] == [True, False, True, False]


def test_embedded_target_writes_parsable_tool_calls_for_held_out_prompts(pair: _Pair, prompts: Prompts) -> None:
    rows = prompts["tool_call"][::4]  # at least fifteen, of every kind; greedy, so that there is no chance in it
    parsed, exact = 0, 0
    for row, text in zip(rows, pair.say(*(row["messages"] for row in rows)), strict=True):
        try:
            call = json.loads(text)
        except json.JSONDecodeError:
            continue
        parsed += isinstance(call, dict) and set(call) == {"name", "arguments"}
        exact += call == row["expect"]
    assert parsed >= 0.95 * len(rows)
    assert exact >= 0.75 * len(rows)


def test_embedded_target_answers_questions_without_tool_calls(pair: _Pair, prompts: Prompts) -> None:
    rows = [row for row in prompts["chat"] if "tool_question" in row["id"]] + prompts["chat"][:6]
    said = pair.say(*(row["messages"] for row in rows), tokens=4)
    assert all(text.strip() for text in said)
    assert not [text for text in said if text.lstrip().startswith(("{", "["))]


def test_embedded_draft_acceptance_is_high_on_code_and_tool_calls_and_lower_on_prose(
    pair: _Pair, prompts: Prompts
) -> None:
    alpha = {
        workload: pair.accepted([row["messages"] for row in prompts[workload][::16]])
        for workload in ("code", "tool_call", "prose")
    }
    assert alpha["code"] >= 0.8
    assert alpha["tool_call"] >= 0.8
    assert alpha["prose"] <= min(alpha["code"], alpha["tool_call"]) - 0.08
