"""Draws training text from the target itself, with its hidden states, in chunks that depend only on seed and number.

A chunk is one batch of rows in step: each row feeds its forced tokens first, then samples, so that prompts of unequal
length need no padding. A row that the target ends leaves the batch. Rows that are whole from the start are only read.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import multiprocessing

from training.heads.target import Cache, Target, sample

LOOP_GRAM, LOOP_COUNT, LOOP_WINDOW, LOOP_EVERY = 8, 5, 160, 16
"""A row ends if its last 8 tokens occur 5 times in its last 160; looked for every 16 tokens."""


@dataclass
class Row:
    """One conversation. `user` and `answer` are the places of the turns' first tokens; `answer` is 0 until the user's
    turn ends."""

    tokens: list[int]
    temperature: float
    user: int = 0
    answer: int = 0
    done: bool = False
    final: int | None = None
    """Number of tokens of a finished row. More are appended while it waits in the batch."""
    hidden: npt.NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float16))


@dataclass(frozen=True)
class Template:
    """Token ids around the turns of a target's chat template, and limits in tokens."""

    prefix: tuple[int, ...]
    """All ids before the user's text, the same for every row."""
    between: tuple[int, ...]
    """Ids after the user's last token, up to the answer. The first one ends the user's turn."""
    end: int
    specials: frozenset[int]
    user_limit: int = 72
    length: int = 320
    answer_limit: int = 1024
    least_alive: float = 0.15
    """Share of the rows below which a chunk ends: small batches waste the time of a step."""


class Batch:
    """Feeds rows in step through the target; each token is forced, sampled in the user's turn, or in the answer."""

    def __init__(self, target: Target, rows: list[Row], template: Template, seed: int) -> None:
        self.target, self.rows, self.template = target, rows, template
        self.alive = list(range(len(rows)))
        self.cache = Cache(target.shape, len(rows), template.length)
        self.random = torch.Generator().manual_seed(seed)
        self.states = np.zeros((len(rows), template.length, target.width), dtype=np.float16)

    def run(self) -> None:
        """Draws until few rows are alive or the template's length is reached, then sets each row's hidden states."""
        single = Cache(self.target.shape, 1, self.template.length)
        prefix = torch.tensor([self.template.prefix])
        if prefix.shape[1] > 1:
            self.states[:, : prefix.shape[1] - 1] = self.target.hidden(prefix[:, :-1], single).numpy()
            self.cache.fill_from(single)
        self._read_shared()
        least = max(1, int(self.template.least_alive * len(self.rows)))
        while self.cache.length < self.template.length and len(self.alive) >= least:
            self._step()
        for i, row in enumerate(self.rows):
            row.tokens = row.tokens[: row.final]
            fed = min(len(row.tokens) - 1, self.cache.length)
            row.tokens = row.tokens[: fed + 1]
            row.hidden = self.states[i, :fed].copy()

    def _read_shared(self) -> None:
        """Feeds at once the positions at which all rows have forced tokens, but for the last of them."""
        first, end = self.cache.length, min(len(row.tokens) for row in self.rows) - 1
        if end > first:
            tokens = torch.tensor([row.tokens[first:end] for row in self.rows])
            self.states[:, first:end] = self.target.hidden(tokens, self.cache).numpy()

    def _step(self) -> None:
        position = self.cache.length
        tokens = torch.tensor([[self.rows[i].tokens[position]] for i in self.alive])
        hidden = self.target.hidden(tokens, self.cache)[:, 0]
        self.states[self.alive, position] = hidden.numpy()
        places = [n for n, i in enumerate(self.alive) if len(self.rows[i].tokens) == position + 1]
        if places:
            self._sample(hidden, places)
        keep = [n for n, i in enumerate(self.alive) if not self.rows[i].done]
        if len(keep) <= 0.92 * len(self.alive):
            self.cache.keep(torch.tensor(keep, dtype=torch.long))
            self.alive = [self.alive[n] for n in keep]

    def _sample(self, hidden: torch.Tensor, places: list[int]) -> None:
        rows = [self.rows[self.alive[n]] for n in places]
        inverse = torch.tensor([1.0 if not r.answer else 1 / max(r.temperature, 1e-4) for r in rows])
        some = hidden if len(places) == len(hidden) else hidden[places]
        uniform = torch.rand(len(places), generator=self.random)
        drawn = sample(self.target.logits(some), inverse, uniform).tolist()
        for row, token in zip(rows, drawn, strict=True):
            if not row.done:
                self._append(row, token)
            else:
                row.tokens.append(self.template.end)  # keeps a finished row in step until it leaves the batch

    def _append(self, row: Row, token: int) -> None:
        t = self.template
        if row.answer:
            row.tokens.append(token)
            generated = len(row.tokens) - row.answer
            row.done = token == t.end or token in t.specials or generated >= t.answer_limit
            if not row.done and generated % LOOP_EVERY == 0:
                row.done = is_loop(row.tokens[row.answer :])
        elif token == t.end or len(row.tokens) - row.user >= t.user_limit:
            row.tokens.extend(t.between)
            row.answer = len(row.tokens)
        else:
            row.tokens.append(token)
            row.done = token in t.specials
        if row.done:
            row.final = len(row.tokens)


def read_rows(target: Target, rows: list[Row], size: int = 16) -> None:
    """Sets the hidden states of whole rows, in batches of similar lengths."""
    ordered = sorted(rows, key=lambda row: len(row.tokens))
    for start in range(0, len(ordered), size):
        some = ordered[start : start + size]
        longest = len(some[-1].tokens) - 1
        tokens = torch.zeros(len(some), longest, dtype=torch.long)
        for i, row in enumerate(some):
            tokens[i, : len(row.tokens) - 1] = torch.tensor(row.tokens[:-1])
        states = target.hidden(tokens, Cache(target.shape, len(some), longest)).half().numpy()
        for i, row in enumerate(some):
            row.hidden = states[i, : len(row.tokens) - 1].copy()


def is_loop(tokens: Sequence[int]) -> bool:
    """Tells whether the last 8 tokens occur 5 times in the last 160."""
    recent = tokens[-LOOP_WINDOW:]
    grams = Counter(tuple(recent[i : i + LOOP_GRAM]) for i in range(len(recent) - LOOP_GRAM + 1))
    return grams[tuple(recent[-LOOP_GRAM:])] >= LOOP_COUNT


def save_chunk(path: Path, rows: list[Row]) -> None:
    """Writes rows as flat arrays: tokens (n + 1 a row), hidden states (n a row), and each row's starts."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([np.array(r.tokens, dtype=np.int32) for r in rows]),
            hidden=np.concatenate([r.hidden for r in rows]),
            lengths=np.array([len(r.tokens) for r in rows], dtype=np.int32),
            users=np.array([r.user for r in rows], dtype=np.int32),
            answers=np.array([r.answer for r in rows], dtype=np.int32),
            temperatures=np.array([r.temperature for r in rows], dtype=np.float32),
        )
    part.replace(path)


def load_chunk(path: Path) -> Iterator[Row]:
    with np.load(path) as data:
        tokens, hidden = data["tokens"], data["hidden"]
        starts = data["lengths"], data["users"], data["answers"], data["temperatures"]
    used = 0
    for number, (length, user, answer, temperature) in enumerate(zip(*starts, strict=True)):
        row = Row(tokens[used : used + length].tolist(), float(temperature), user=int(user), answer=int(answer))
        row.hidden = hidden[used - number : used - number + length - 1]
        used += int(length)
        yield row


RowMaker = Callable[[int], list[Row]]
"""Takes a chunk's number; returns rows that hold their forced tokens, or are done."""


@dataclass(frozen=True)
class Drawing:
    """The inputs of one drawing process; it must be picklable."""

    folder: Path
    model: Path
    template: Template
    make_rows: RowMaker
    seed: int
    tokens: int
    minutes: float
    taps: tuple[int, ...] = ()


def draw_part(drawing: Drawing, part: int, parts: int) -> None:
    """Draws the chunks part, part + parts, … until the folder holds enough tokens or the time is over."""
    torch.set_num_threads(1)
    target = Target(drawing.model, drawing.template.length, drawing.taps)
    began, number = time.monotonic(), part
    while drawn_tokens(drawing.folder) < drawing.tokens:
        path = drawing.folder / f"chunk-{number:04}.npz"
        if not path.exists():
            if time.monotonic() - began > 60 * drawing.minutes or (drawing.folder / "stop").exists():
                return
            started = time.monotonic()
            rows = drawing.make_rows(number)
            read_rows(target, [row for row in rows if row.done])
            open_rows = [row for row in rows if not row.done]
            Batch(target, open_rows, drawing.template, drawing.seed * 100_003 + number).run()
            rows = [r for r in rows if r.answer and len(r.tokens) >= r.answer + 2]
            save_chunk(path, rows)
            count = sum(len(r.hidden) for r in rows)
            path.with_suffix(".json").write_text(json.dumps({"rows": len(rows), "tokens": count}))
            rate = count / (time.monotonic() - started)
            print(f"chunk {number}: {len(rows)} rows, {count} tokens, {rate:.0f} tokens/s", flush=True)
        number += parts


def drawn_tokens(folder: Path) -> int:
    return sum(int(json.loads(p.read_text())["tokens"]) for p in sorted(folder.glob("chunk-*.json")))


def draw(drawing: Drawing, parts: int = 2) -> None:
    """Draws in single-threaded processes: on two cores twice as fast as one process with two threads."""
    drawing.folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.spawn(draw_worker, args=(drawing, parts), nprocs=parts)


def draw_worker(part: int, drawing: Drawing, parts: int) -> None:
    draw_part(drawing, part, parts)
