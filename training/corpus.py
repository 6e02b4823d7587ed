"""Tokens to train on: the standard library's sources, and rows packed with generated documents.

Every batch is a function of (seed, step) alone, so that a run resumes at any step and reads what it would have read.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from training.generator import documents
from training.library import library_files, read

SPECIALS = ("<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|unk|>")
BOS, END, PAD, SYSTEM, USER, ASSISTANT, TOOL, UNK = range(8)
STAGE_STEPS = (325, 698)

Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


def library_tokens(tokenizer: Tokenizer, held_out: bool = False) -> Ids:
    """All files one after the other, each between `<|bos|>` and `<|end|>`."""
    texts = [f"<|bos|>{read(path)}<|end|>" for path in library_files(held_out)]
    return np.concatenate([np.array(e.ids, dtype=np.int64) for e in tokenizer.encode_batch(texts)])


@dataclass(frozen=True)
class Mix:
    """Shares of rows, and what a row may hold."""

    library: tuple[float, ...] = (0.27, 0.20, 0.20)
    """The share of rows that are all library, in each stage."""
    prompt_weight: tuple[float, ...] = (0.1, 0.0, 0.0)
    """What the model reads but need not say: a little weight at first, so that words are met wherever they stand."""
    stage_steps: tuple[int, ...] = STAGE_STEPS
    """At which steps the second stage and the last begin."""


def loss_weights(ids: Ids, prompt_weight: float) -> Weights:
    """One for what the assistant says (and for raw text), little for prompts, none for padding; indexed by target."""
    weights = np.ones(len(ids), dtype=np.float32)
    role = BOS
    for i, token in enumerate(ids):
        if token in (BOS, SYSTEM, USER, ASSISTANT, TOOL):
            role = int(token)
            weights[i] = prompt_weight if role != BOS else 0.0
        elif token == PAD:
            weights[i] = 0.0
        else:
            weights[i] = 1.0 if role in (BOS, ASSISTANT) else prompt_weight
    return weights


class Corpus:
    """Batches by step number."""

    def __init__(self, tokenizer: Tokenizer, seed: int, mix: Mix | None = None) -> None:
        self.tokenizer, self.seed, self.mix = tokenizer, seed, mix or Mix()
        self.library = library_tokens(tokenizer)

    def batch(self, step: int, rows: int, length: int) -> tuple[Ids, Weights]:
        """`rows` rows of `length + 1` tokens, and the weight of each token as a target."""
        rng = Random(f"{self.seed}/{step}")
        stage = sum(step >= start for start in self.mix.stage_steps)
        stream = documents(rng.getrandbits(48), stage=stage)
        ids = np.full((rows, length + 1), PAD, dtype=np.int64)
        weights = np.zeros((rows, length + 1), dtype=np.float32)
        for row in range(rows):
            packed: list[Ids] = []
            used = 0
            if rng.random() >= self.mix.library[stage]:
                misses = 0
                while misses < 3 and length + 1 - used > 12:
                    tokens = np.array(self.tokenizer.encode(next(stream).text()).ids, dtype=np.int64)[: length + 1]
                    if used + len(tokens) > length + 1:
                        misses += 1
                        continue
                    packed.append(tokens)
                    used += len(tokens)
            if length + 1 - used > 8:
                start = rng.randrange(len(self.library) - length - 1)
                packed.append(self.library[start : start + length + 1 - used])
            line = np.concatenate(packed)
            ids[row, : len(line)] = line
            weights[row, : len(line)] = np.concatenate([self._weigh(p, self.mix.prompt_weight[stage]) for p in packed])
        return ids, weights

    @staticmethod
    def _weigh(piece: Ids, prompt_weight: float) -> Weights:
        weights = loss_weights(piece, prompt_weight)
        weights[0] = 0.0  # nothing before it says what it is
        return weights
