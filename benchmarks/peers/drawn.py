"""Builds prompts of a given length from held-out ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.arms import Prompt
from benchmarks.peers.codec import Codec


def long_prompt(prompts: Sequence[Prompt], codec: Codec, tokens: int, name: str, draw: random.Random) -> Prompt:
    """Concatenates held-out prompts in a random order and cuts them to `tokens` tokens. The result's text is tokenized
    to the same ids."""
    while True:
        ids: list[int] = [prompts[0].tokens[0]]
        while len(ids) < tokens:
            ids += draw.choice(prompts).tokens[1:]
        found = tuple(ids[:tokens])
        try:
            codec.text(found)
        except ValueError:  # the cut changes the tokens before it
            continue
        return Prompt(name, "prose", found)
