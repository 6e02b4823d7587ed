"""The drafter that runs a draft model: a small model with the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import last, pad_rows
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.drafters.base import DraftSequence
from draftd.engine.drafters.cached import CachedDrafter
from draftd.models.mlx_lm import vocabulary_size


class DraftModel(CachedDrafter):
    """Drafts with a small model whose caches follow the sequences' texts.

    A sequence's cache may lag behind its text: by the last accepted token after full acceptance, by more after steps
    without a draft. Each proposal first catches up in the forward that drafts the first token."""

    def __init__(self, model: Any, vocabulary: int, prefix: PrefixCache | None = None) -> None:
        """`vocabulary`: the target's; the two models may pad their embeddings differently."""
        super().__init__(model, vocabulary, prefix)
        self._last = vocabulary_size(model) - 1  # the last token that the draft has an embedding for
        self._unsure: dict[int, list[int]] = {}  # by id(): the last tokens in its cache, which may be rolled back
        self._drafted: tuple[list[int], mx.array] | None = None  # ids, and the last proposals for them

    def behind(self, sequence: DraftSequence) -> int | None:
        place = self.places.get(id(sequence))
        return None if place is None else max(0, len(sequence.tokens) - 1 - self.caches.lengths[place])

    def follow(self, sequences: Sequence[DraftSequence], chunk: int) -> None:
        unknown = next((sequence for sequence in sequences if id(sequence) not in self.places), None)
        if unknown is not None:
            self.prefill(unknown, chunk)
            return
        self.roll_back()
        wanted = {self.places[id(sequence)] for sequence in sequences}
        pieces: list[list[int]] = []
        for i, (sequence, n) in enumerate(zip(self.sequences, self.caches.lengths, strict=True)):
            piece = sequence.tokens[n : min(n + chunk, len(sequence.tokens) - 1)] if i in wanted else []
            pieces.append(self.clip_to_vocabulary(piece))
        if any(pieces):
            self.caches.forward(pad_rows(pieces), [len(p) for p in pieces])
            mx.eval(self.caches.arrays())

    def prefill(self, sequence: DraftSequence, chunk: int) -> bool:
        whole, key = len(sequence.tokens) - 1, id(sequence)  # `propose` feeds the last one
        if key not in self.texts:
            self.texts.open(key, whole, sequence.tokens if sequence.shares else ())
        start = self.texts.length(key)
        if start < whole:
            self.texts.take_in(key, self.clip_to_vocabulary(sequence.tokens[start : min(start + chunk, whole)]))
            self.texts.settle(key)
        if self.texts.length(key) < whole:
            self.texts.keep_piece(key, sequence.tokens)
            return False
        self.texts.keep(key, sequence.tokens)
        self.seat(sequence)
        return True

    def leave(self, sequence: DraftSequence) -> None:
        super().leave(sequence)
        self._unsure.pop(id(sequence), None)

    def close(self) -> None:
        super().close()
        self._unsure, self._drafted = {}, None

    def note_drafted(self, sequences: Sequence[DraftSequence], drafted: mx.array) -> None:
        self._drafted = ([id(sequence) for sequence in sequences], drafted)

    def roll_back(self) -> None:
        """Rolls each sequence's cache back to the longest common prefix with its text. Final tokens are not compared
        again."""
        if self._drafted is not None:
            ids, drafted = self._drafted  # computed by now: reading them as they are saves another wait
            for key, tokens in zip(ids, drafted.tolist(), strict=True):
                self._unsure.setdefault(key, []).extend(tokens[:-1])  # the last token was not fed
        lengths, unsure = list[int](), dict[int, list[int]]()
        for sequence, length in zip(self.sequences, self.caches.lengths, strict=True):
            fed_last = self._unsure.get(id(sequence), [])
            common = length - len(fed_last)
            for token in fed_last:
                if common >= len(sequence.tokens) or token != sequence.tokens[common]:
                    break
                common += 1
            common = min(common, len(sequence.tokens) - 1)  # the last token is fed to predict the next
            lengths.append(common)
        reached = self.caches.rollback(lengths)  # `catch_up` feeds what a layer rolled back beyond that
        for sequence, length in zip(self.sequences, reached, strict=True):
            if sequence.guesses:
                unsure[id(sequence)] = sequence.tokens[len(sequence.tokens) - sequence.guesses : length]
        self._unsure, self._drafted = unsure, None

    def catch_up(self, drafting: Sequence[int]) -> mx.array:
        behind = zip(self.sequences, self.caches.lengths, drafting, strict=True)
        pending = [self.clip_to_vocabulary(sequence.tokens[n:]) if wanted else [] for sequence, n, wanted in behind]
        widths = [len(p) for p in pending]
        logits = self.caches.forward(pad_rows(pending), widths, at=last(widths))
        for sequence, wanted in zip(self.sequences, drafting, strict=True):
            if wanted and sequence.guesses:
                self._unsure[id(sequence)] = sequence.tokens[-sequence.guesses :]
        return logits[:, 0]

    def clip_to_vocabulary(self, tokens: list[int]) -> list[int]:
        """Replaces padding ids of the target's vocabulary by the draft's last token id. The draft has no embedding for
        padding, and MLX reads past the end of an array without an error."""
        return [min(token, self._last) for token in tokens] if self._last < self.vocabulary - 1 else tokens
