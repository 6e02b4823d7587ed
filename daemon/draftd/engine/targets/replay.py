"""The caches of a target's running rows, with tokens that must be fed again after a rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from draftd.engine.cache.base import Caches, pad_rows
from draftd.engine.features import Features


class RestingRow(NamedTuple):
    """A row that no step includes for now, in caches of its own, and its tokens to feed again."""

    caches: Caches
    replay: list[int]


class ReplayingCaches:
    """Caches whose layers may roll back further than asked. The excess tokens are fed again at the start of the row's
    next block, which widens that forward but adds none. If a token of the block is rejected, the same tokens are rolled
    back and fed again, until the row has a step without a draft."""

    def __init__(self, caches: Caches) -> None:
        self.caches = caches
        self.replays: list[list[int]] = []  # by row: tokens to feed again
        self.width = 0  # of the last forward
        self.features: list[Features | None] = []  # by row: of the first token of the last forward that is no replay

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, including those to feed again."""
        return [length + len(replay) for length, replay in zip(self.caches.lengths, self.replays, strict=True)]

    def pretend(self, lengths: Sequence[int]) -> bool:
        """Sets row lengths; see `Caches.pretend`."""
        if not self.caches.pretend(lengths):
            return False
        self.replays = [[] for _ in lengths]
        return True

    def append(self, rows: int) -> None:
        """Notes that new rows have joined the caches."""
        self.replays = [*self.replays, *([] for _ in range(rows))]

    def select(self, places: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        self.caches.select(places)
        self.replays = [self.replays[i] for i in places]

    def split(self, row: int) -> RestingRow:
        """Moves a row to caches of its own."""
        return RestingRow(self.caches.split([row], rest=True), self.replays.pop(row))

    def join(self, resting: RestingRow) -> None:
        """Appends a row that `split` has moved out."""
        self.caches.join(resting.caches)
        self.replays = [*self.replays, resting.replay]

    def roll_back(self, lengths: list[int], texts: Sequence[Sequence[int]]) -> None:
        """Rolls each row back to `lengths[row]`. `texts`: the rows' tokens."""
        reached = self.caches.rollback(lengths)
        if reached != lengths:
            self.replays = [list(text[start:end]) for text, start, end in zip(texts, reached, lengths, strict=True)]

    def forward(self, tokens: mx.array, widths: list[int]) -> mx.array:
        """Returns the logits of `tokens`, rows × width; each row's first `widths` tokens are real."""
        lengths, replays = self.lengths, self.replays
        logits = self._forward(tokens, widths)
        states = self.caches.states
        self.features = [
            None if states is None else Features(length, 1, states, row, len(replay))
            for row, (length, replay) in enumerate(zip(lengths, replays, strict=True))
        ]
        return logits

    def _forward(self, tokens: mx.array, widths: list[int]) -> mx.array:
        replays, width = self.replays, tokens.shape[1]
        self.width = width
        if not any(replays):
            return self.caches.forward(tokens, widths)
        self.replays = [[] for _ in replays]
        more, most = mx.array([[len(replay)] for replay in replays]), max(map(len, replays))
        wide = [len(replay) + real for replay, real in zip(replays, widths, strict=True)]
        self.width = max(wide)
        place = mx.arange(self.width)[None]
        source = mx.where(place < more, place, mx.minimum(place - more, width - 1) + most)
        fed = mx.take_along_axis(mx.concatenate([pad_rows(replays), tokens.astype(mx.uint32)], axis=1), source, axis=1)
        read = [[min(len(replay) + n, self.width - 1) for n in range(width)] for replay in replays]
        return self.caches.forward(fed, wide, at=read)
