"""Prompts to token ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from draftd.engine.scripted import ByteTokenizer
from draftd.errors import InvalidRequest
from draftd.fronts.grpc.convert import Chat, Limits, RawText, TokenIds
from draftd.service.tokenise import tokenise

LIMITS = Limits(context_length=10_000, vocab_size=257, default_max_tokens=1, chat_template=True)


class Counting(ByteTokenizer):
    """Slow on purpose, and keeps what it was asked to encode."""

    def __init__(self, seconds_per_character: float = 0.0) -> None:
        super().__init__(257)
        self.encoded: list[int] = []
        self._seconds = seconds_per_character

    def encode(self, text: str) -> list[int]:
        self.encoded.append(len(text))
        time.sleep(len(text) * self._seconds)
        return super().encode(text)


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_each_kind_of_prompt(executor: Executor) -> None:
    tokenizer = ByteTokenizer(257)
    assert await tokenise(RawText("hi"), tokenizer, LIMITS, executor) == (104, 105)
    assert await tokenise(TokenIds((1, 2)), tokenizer, LIMITS, executor) == (1, 2)
    rendered = tuple(tokenizer.encode("<user>hi\n<assistant>"))
    assert await tokenise(Chat((("user", "hi"),)), tokenizer, LIMITS, executor) == rendered


async def test_a_long_prompt_leaves_the_event_loop_free(executor: Executor) -> None:
    task = asyncio.create_task(tokenise(RawText("x" * 9000), Counting(5e-5), LIMITS, executor))
    turns = 0
    while not task.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert len(await task) == 9000
    assert turns > 10


@pytest.mark.parametrize("prompt", [RawText("x" * 1_000_000), Chat((("user", "x" * 1_000_000),))])
async def test_a_prompt_far_beyond_the_context_is_refused_from_its_beginning(
    prompt: RawText | Chat, executor: Executor
) -> None:
    tokenizer = Counting()
    with pytest.raises(InvalidRequest, match="1000000 characters"):
        await tokenise(prompt, tokenizer, LIMITS, executor)
    assert tokenizer.encoded == [160_000]


async def test_a_prompt_without_any_tokens_is_empty(executor: Executor) -> None:
    with pytest.raises(InvalidRequest, match="0 tokens"):
        await tokenise(RawText(""), ByteTokenizer(257), LIMITS, executor)
