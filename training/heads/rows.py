"""The drawn rows in memory: held-out ones, the trimmed vocabulary, and the batches of each training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from training.heads.head import PaddedRows
from training.heads.overlap import Overlap
from training.heads.text import Row, Template, load_chunk

HELD_OUT_ONE_IN = 50


@dataclass(frozen=True)
class DrawnText:
    """All usable rows, and how many were dropped because they share a run with a benchmark."""

    training: list[Row]
    held_out: list[Row]
    dropped: int

    @property
    def tokens(self) -> int:
        """Tokens that have a hidden state, in the training rows."""
        return sum(len(row.hidden) for row in self.training)

    @property
    def answer_tokens(self) -> int:
        return sum(len(row.tokens) - row.answer for row in self.training)


def read_text(folder: Path, overlap: Overlap, template: Template) -> DrawnText:
    """Reads all chunks. Every 50th row that has no overlap is held out."""
    rows = [row for path in sorted(folder.glob("chunk-*.npz")) for row in load_chunk(path)]
    kept, dropped = overlap.split(rows, template)
    return DrawnText(
        training=[row for i, row in enumerate(kept) if i % HELD_OUT_ONE_IN],
        held_out=kept[::HELD_OUT_ONE_IN],
        dropped=dropped,
    )


def frequent_ids(rows: Sequence[Row], vocabulary: int, size: int, always: Sequence[int]) -> Tensor:
    """Returns the ascending ids of the `size` most frequent tokens after the users' start, `always` among them."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for row in rows:
        np.add.at(counts, row.tokens[row.user :], 1)
    counts[list(always)] = np.iinfo(np.int64).max
    order = np.lexsort((np.arange(vocabulary), -counts))
    return torch.from_numpy(np.sort(order[:size]))


def padded(rows: Sequence[Row], dim: int) -> PaddedRows:
    """Pads rows at their end; pairs that predict a token of the answer count. `dim`: of the target's final states, the
    first ones of a row."""
    time = max(len(row.hidden) for row in rows)
    tokens = torch.zeros(len(rows), time + 1, dtype=torch.long)
    hidden = torch.zeros(len(rows), time, rows[0].hidden.shape[1])
    counts = torch.zeros(len(rows), time, dtype=torch.bool)
    for i, row in enumerate(rows):
        n = len(row.hidden)
        tokens[i, : n + 1] = torch.tensor(row.tokens)
        hidden[i, :n] = torch.from_numpy(row.hidden.astype(np.float32))
        counts[i, max(row.answer - 2, 0) : n - 1] = True
    final, taps = hidden.split((dim, hidden.shape[-1] - dim), dim=-1)
    return PaddedRows(tokens, final, taps if taps.shape[-1] else final, counts)


@dataclass(frozen=True)
class Batches:
    """The rows of each step: shuffled passes over the text that depend on seed and step alone."""

    rows: list[Row]
    dim: int
    seed: int
    rows_per_step: int
    rows_per_part: int = 2

    def __call__(self, step: int) -> list[PaddedRows]:
        """Returns a step's micro-batches, each of rows with similar lengths."""
        first = step * self.rows_per_step
        chosen = sorted((self._row(i) for i in range(first, first + self.rows_per_step)), key=lambda r: -len(r.hidden))
        size = self.rows_per_part
        return [padded(chosen[i : i + size], self.dim) for i in range(0, len(chosen), size)]

    def passes(self, step: int) -> float:
        """Returns how many passes over the text are finished before a step."""
        return step * self.rows_per_step / len(self.rows)

    def _row(self, index: int) -> Row:
        number, place = divmod(index, len(self.rows))
        order = list(range(len(self.rows)))
        Random(f"{self.seed}/{number}").shuffle(order)
        return self.rows[order[place]]
