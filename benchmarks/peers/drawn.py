"""Prompts of a wanted length, drawn from the held-out ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.arms import Prompt
from benchmarks.peers.codec import Codec


def long_prompt(prompts: Sequence[Prompt], codec: Codec, tokens: int, name: str, draw: random.Random) -> Prompt:
    """Held-out prompts one after another, cut to `tokens`: no two drawn ones begin alike. Its text gives just these."""
    while True:
        ids: list[int] = [prompts[0].tokens[0]]
        while len(ids) < tokens:
            ids += draw.choice(prompts).tokens[1:]
        found = tuple(ids[:tokens])
        try:
            codec.text(found)
        except ValueError:  # cut where the tokens before the cut are others without what follows
            continue
        return Prompt(name, "prose", found)
