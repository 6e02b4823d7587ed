"""Prompts for one model: held-out ones through its chat template, and texts of a length whose first token is unique."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from benchmarks.arms import Prompt
from draftd.client import prompts as held
from draftd.client.client import Message
from draftd.core import CLASSES, WorkloadClass
from draftd.models.blas import load_blas


class Prompts:
    def __init__(self, model: str) -> None:
        load_blas()
        from draftd.engine.pair import load_tokenizer

        self._tokenizer: Any = load_tokenizer(model)
        self._rendered: dict[WorkloadClass, list[Prompt]] = {}

    def of_class(self, workload: WorkloadClass, place: int, count: int) -> list[Prompt]:
        """Returns `count` held-out prompts at equal distances in the category (class), because neighbours are often
        alike. `place` is the index of the first one, so that consecutive places give different prompts."""
        if workload not in self._rendered:
            self._rendered[workload] = [
                Prompt(one.name, str(workload), self._chat(one.messages)) for one in held.held_out(workload)
            ]
        pool = self._rendered[workload]
        return [pool[(i * len(pool) // count + place) % len(pool)] for i in range(count)]

    def unlike_any(self, prompt: Prompt, number: int) -> Prompt:
        """Puts a token before the prompt that differs for each `number`, so that no cached prompt shares its
        beginning."""
        return Prompt(f"{prompt.id}/{number}", prompt.workload, (self._first(number), *prompt.tokens))

    def of_length(self, tokens: int, number: int) -> Prompt:
        """Returns a prompt of `tokens` tokens, of held-out texts in a random order. Its first token differs for each
        `number`."""
        draw = random.Random(f"{tokens}/{number}")
        ids = [self._first(number)]
        while len(ids) < tokens:
            ids += draw.choice(self._texts)
        return Prompt(f"{tokens}/{number}", str(WorkloadClass.PROSE), tuple(ids[:tokens]))

    def text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))

    def _first(self, number: int) -> int:
        return self._words[number % len(self._words)]

    def _chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self._tokenizer.render_chat([{"role": role, "content": said} for role, said in messages]))

    @cached_property
    def _texts(self) -> list[list[int]]:
        """The held-out messages as token ids, without the chat template."""
        prompts = [one for workload in CLASSES for one in held.held_out(workload)]
        return [self._tokenizer.encode_rendered(said + "\n") for one in prompts for _, said in one.messages]

    @cached_property
    def _words(self) -> list[int]:
        """All distinct token ids of the held-out messages, in a random order."""
        words = sorted({token for text in self._texts for token in text})
        return random.Random("words").sample(words, len(words))
