"""Runs a pair for the evaluation, on mlx-lm in fp32: token ids in; ids, agreements and losses out."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.platform == "linux":
    try:  # before MLX is imported: its own BLAS is about fifty times slower
        ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        print("libopenblas0-pthread is not installed: slow", file=sys.stderr)

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import load
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache

_WINDOW = 512


@dataclass
class Pair:
    target: Any
    draft: Any
    tokenizer: Any

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        return list(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i != self.tokenizer.eos_token_id])

    def greedy(self, prompt: list[int], limit: int) -> list[int]:
        """Returns the target's greedy token ids, with the end token if it was reached."""
        cache, said, feed = make_prompt_cache(self.target), [], prompt
        for _ in range(limit):
            token = int(mx.argmax(self.target(mx.array([feed]), cache=cache)[0, -1]).item())
            said.append(token)
            if token == self.tokenizer.eos_token_id:
                break
            feed = [token]
        return said

    def agreement(self, prompt: list[int], said: list[int]) -> list[bool]:
        """Returns for each token of the text whether the draft's first choice would be the same."""
        ids = prompt + said
        picked = mx.argmax(self.draft(mx.array([ids[:-1]]))[0], axis=-1).tolist()
        return [picked[len(prompt) - 1 + i] == token for i, token in enumerate(said)]

    def mlx_lm(self, prompt: list[int], limit: int, depth: int) -> list[int]:
        """Returns the same text by mlx-lm's own loop: plain at depth 0, speculative above."""
        ids = mx.array(prompt)
        if depth:
            stream = (
                (t, lp)
                for t, lp, _ in speculative_generate_step(
                    ids, self.target, self.draft, num_draft_tokens=depth, max_tokens=limit
                )
            )
        else:
            stream = generate_step(ids, self.target, max_tokens=limit)
        said = []
        for token, _ in stream:
            said.append(int(token))
            if int(token) == self.tokenizer.eos_token_id:
                break
        return said

    def _loss(self, ids: list[int], start: int) -> tuple[float, int]:
        """Returns the summed loss of the tokens from `start` on, in nats, and their number."""
        logits = self.target(mx.array([ids[:-1]]))[0]
        losses = nn.losses.cross_entropy(logits, mx.array(ids[1:]))
        return float(losses[start - 1 :].sum().item()), len(ids) - start

    def answer_loss(self, messages: list[dict[str, str]], answer: str) -> tuple[float, int]:
        prompt = self.prompt(messages)
        ids = prompt + self.tokenizer.encode(answer, add_special_tokens=False) + [self.tokenizer.eos_token_id]
        return self._loss(ids, len(prompt))

    def text_loss(self, text: str) -> tuple[float, int]:
        ids = [self.tokenizer.bos_token_id, *self.tokenizer.encode(text, add_special_tokens=False)]
        total, count = 0.0, 0
        for at in range(0, len(ids) - 1, _WINDOW):
            loss, n = self._loss(ids[at : at + _WINDOW + 1], 1)
            total, count = total + loss, count + n
        return total, count


def load_pair(folder: Path) -> Pair:
    target, tokenizer = load(str(folder / "target"))[:2]
    draft = load(str(folder / "draft"))[0]
    for model in (target, draft):
        model.set_dtype(mx.float32)
        mx.eval(model.parameters())
    return Pair(target, draft, tokenizer)


def python_files(limit_bytes: int = 8_000) -> list[str]:
    """Returns the beginnings of the held-out library files, of at most `limit_bytes` characters each."""
    from training.library import library_files, read

    return [read(path)[:limit_bytes] for path in library_files(held_out=True) if path.stat().st_size > 2000]
