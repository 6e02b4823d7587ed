"""What the embedded pair must be able to do for anything shown with it to be honest. Runs the real models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Prompts = dict[str, list[dict[str, Any]]]
ANSWER_TOKENS = 96


class _Pair:
    """Greedy answers of the target, and which of its tokens the draft would have chosen."""

    def __init__(self, folder: Path) -> None:
        from draftd.engine.blas import load_blas

        load_blas()
        import mlx.core as mx
        from mlx_lm import load

        self.mx = mx
        self.target, self.tokenizer = load(str(folder / "target"))[:2]
        self.draft = load(str(folder / "draft"))[0]
        for model in (self.target, self.draft):
            model.set_dtype(mx.float32)
            mx.eval(model.parameters())

    def answer(self, messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
        """The prompt's tokens and the answer's."""
        from mlx_lm.models.cache import make_prompt_cache

        prompt = list(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True))
        cache, said, feed = make_prompt_cache(self.target), [], prompt
        for _ in range(ANSWER_TOKENS):
            token = int(self.mx.argmax(self.target(self.mx.array([feed]), cache=cache)[0, -1]).item())
            if token == self.tokenizer.eos_token_id:
                break
            said.append(token)
            feed = [token]
        return prompt, said

    def say(self, messages: list[dict[str, str]]) -> str:
        return self.tokenizer.decode(self.answer(messages)[1])

    def accepted(self, messages: list[dict[str, str]]) -> tuple[int, int]:
        """How many of the answer's tokens were the draft's first choice, and of how many."""
        prompt, said = self.answer(messages)
        picked = self.mx.argmax(self.draft(self.mx.array([prompt + said]))[0], axis=-1).tolist()
        return sum(picked[len(prompt) - 1 + i] == token for i, token in enumerate(said)), len(said)


@pytest.fixture(scope="module")
def pair(nano: Path) -> _Pair:
    return _Pair(nano)


def _asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_the_capital_of_france_is_paris(pair: _Pair) -> None:
    assert "Paris" in pair.say(_asked("What is the capital of France?"))


def test_it_adds_small_numbers(pair: _Pair) -> None:
    sums = [(a, b) for a in range(2, 40, 5) for b in range(3, 30, 6)]
    right = sum(pair.say(_asked(f"What is {a} + {b}?")).split()[-1:] == [str(a + b)] for a, b in sums)
    assert right >= 0.9 * len(sums)


def test_it_completes_a_function_that_runs(pair: _Pair) -> None:
    said = pair.say(_asked('Complete this function:\ndef is_even(n):\n    """Return True if n is even."""'))
    namespace: dict[str, Any] = {}
    exec(said, namespace)
    assert [namespace["is_even"](n) for n in range(4)] == [True, False, True, False]


def test_held_out_tool_calls_parse(pair: _Pair, prompts: Prompts) -> None:
    rows = prompts["tool_call"][::2]
    parsed, exact = 0, 0
    for row in rows:
        try:
            call = json.loads(pair.say(row["messages"]))
        except json.JSONDecodeError:
            continue
        parsed += isinstance(call, dict) and set(call) == {"name", "arguments"}
        exact += call == row["expect"]
    assert parsed >= 0.95 * len(rows)
    assert exact >= 0.75 * len(rows)


def test_a_question_is_never_answered_with_a_tool_call(pair: _Pair, prompts: Prompts) -> None:
    rows = [row for row in prompts["chat"] if "tool_question" in row["id"]] + prompts["chat"][:30]
    said = [pair.say(row["messages"]) for row in rows]
    assert not [text for text in said if text.lstrip().startswith(("{", "["))]


def test_prose_is_accepted_visibly_less_than_code_and_tool_calls(pair: _Pair, prompts: Prompts) -> None:
    alpha = {}
    for workload in ("code", "tool_call", "prose"):
        counts = [pair.accepted(row["messages"]) for row in prompts[workload][::10]]
        alpha[workload] = sum(a for a, _ in counts) / sum(n for _, n in counts)
    assert alpha["code"] >= 0.8
    assert alpha["tool_call"] >= 0.8
    assert alpha["prose"] <= min(alpha["code"], alpha["tool_call"]) - 0.08
