"""Training data as tokens: the standard library's sources, and rows packed with generated documents.

Every batch depends on (seed, step) alone, so that training can resume at any step with the same data.
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
    """Returns the token ids of all library files in a row, each between `<|bos|>` and `<|end|>`."""
    texts = [f"<|bos|>{read(path)}<|end|>" for path in library_files(held_out)]
    return np.concatenate([np.array(e.ids, dtype=np.int64) for e in tokenizer.encode_batch(texts)])


@dataclass(frozen=True)
class Mix:
    """Shares of library rows, weights of prompts in the loss, and the steps at which stages begin."""

    library: tuple[float, ...] = (0.27, 0.20, 0.20)
    """Share of the rows that contain only library text, in each stage."""
    prompt_weight: tuple[float, ...] = (0.1, 0.0, 0.0)
    """Loss weight of text that the model reads but does not write, in each stage. A little at first teaches words."""
    stage_steps: tuple[int, ...] = STAGE_STEPS
    """Steps at which the second and the last stage begin."""


def loss_weights(ids: Ids, prompt_weight: float) -> Weights:
    """Returns each token's weight as a target: 1 for the assistant's text and raw text, `prompt_weight` for prompts, 0
    for padding."""
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
    """Batches of training data by step number."""

    def __init__(self, tokenizer: Tokenizer, seed: int, mix: Mix | None = None) -> None:
        self.tokenizer, self.seed, self.mix = tokenizer, seed, mix or Mix()
        self.library = library_tokens(tokenizer)

    def batch(self, step: int, rows: int, length: int) -> tuple[Ids, Weights]:
        """Returns token ids of shape (rows, length + 1), and the weight of each token as a target."""
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
        weights[0] = 0.0  # no token before it could predict it
        return weights
