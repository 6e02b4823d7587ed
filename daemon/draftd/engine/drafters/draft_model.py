"""The drafter that runs a draft model: a small model with the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import Caches, last, pad_rows, places_after
from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.prefill import Prefill
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.drafters.base import Draft, Drafter, DraftSequence
from draftd.engine.sampling.acceptance import draw
from draftd.engine.sampling.transforms import Sampling, uniforms
from draftd.models.mlx_lm import vocabulary_size

_FORWARDS = 32  # forwards that one rollback may undo: one for each token of a block


class DraftModel(Drafter):
    """Drafts with a small model whose caches follow the sequences' texts.

    A sequence's cache may lag behind its text: by the last accepted token after full acceptance, by more after steps
    without a draft. Each proposal first catches up in the forward that drafts the first token."""

    def __init__(self, model: Any, vocabulary: int, prefix: PrefixCache | None = None) -> None:
        self._vocabulary = vocabulary  # the target's: the two models may pad their embeddings differently
        self._last = vocabulary_size(model) - 1  # the last token that the draft has an embedding for
        self._caches: Caches = make_caches(model, _FORWARDS)
        self._sequences: list[DraftSequence] = []
        self._prefix = prefix or PrefixCache()
        self._places: dict[int, int] = {}  # by a sequence's id(): its row in the caches
        self._store = self._prefix.store(self._caches)
        self.texts = Prefill(self._caches, self._store)  # texts that are prefilling, and the prefix cache
        self._unsure: dict[int, list[int]] = {}  # by id(): the last tokens in its cache, which may be rolled back
        self._drafted: tuple[list[int], mx.array] | None = None  # ids, and the last proposals for them

    def behind(self, sequence: DraftSequence) -> int | None:
        place = self._places.get(id(sequence))
        return None if place is None else max(0, len(sequence.tokens) - 1 - self._caches.lengths[place])

    def follow(self, sequences: Sequence[DraftSequence], chunk: int) -> None:
        unknown = next((sequence for sequence in sequences if id(sequence) not in self._places), None)
        if unknown is not None:
            self.prefill(unknown, chunk)
            return
        self._roll_back()
        wanted = {self._places[id(sequence)] for sequence in sequences}
        pieces: list[list[int]] = []
        for i, (sequence, n) in enumerate(zip(self._sequences, self._caches.lengths, strict=True)):
            piece = sequence.tokens[n : min(n + chunk, len(sequence.tokens) - 1)] if i in wanted else []
            pieces.append(self.clip_to_vocabulary(piece))
        if any(pieces):
            self._caches.forward(pad_rows(pieces), [len(p) for p in pieces])
            mx.eval(self._caches.arrays())

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
        self.texts.join([key])
        self._places[id(sequence)] = len(self._sequences)
        self._sequences.append(sequence)
        return True

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        caches, members = self._caches, self._sequences
        at = [self._places[id(sequence)] for sequence in sequences]
        whole = at == list(range(len(members)))
        self._roll_back()
        lag = max(len(sequence.tokens) - caches.lengths[i] for i, sequence in zip(at, sequences, strict=True))
        widths = [int(i in at) for i in range(len(members))]
        spread = None if whole else mx.array([at.index(i) if widths[i] else 0 for i in range(len(members))])
        chosen = None if whole else mx.array(at)

        k = max(depths)
        starts = [sequence.answered + sequence.guesses for sequence in sequences]
        dice = None if sampling.deterministic else uniforms([sequence.generator for sequence in sequences], depths)
        tokens: list[mx.array] = []
        distributions: list[mx.array] = []
        for step in range(k):
            if step == 0:
                logits = self._catch_up(widths)
            else:
                feed = tokens[-1] if spread is None else tokens[-1][spread]
                logits = caches.forward(feed[:, None], widths)[:, -1]
            logits = self._fit_vocabulary(logits if chosen is None else logits[chosen])
            if dice is None:
                token = sampling.choose(logits[:, None], starts, step, more=k - step)[:, 0]
            else:
                q = sampling.distribution(logits[:, None], starts, step, more=k - step)
                distributions.append(q)
                token = draw(q[:, 0], dice[:, step])
            mx.async_eval(token)
            tokens.append(token)
        drafted = mx.stack(tokens, axis=1)
        self._drafted = ([id(sequence) for sequence in sequences], drafted)
        return Draft(
            tokens=drafted,
            depths=list(depths),
            q=mx.concatenate(distributions, axis=1) if distributions else None,
            forwards=list(depths),
            lag=lag,
        )

    def leave(self, sequence: DraftSequence) -> None:
        trusted = not sequence.degraded  # drafting may have failed during a forward
        if trusted and id(sequence) in self.texts:
            self.texts.keep(id(sequence), sequence.tokens)
        self.texts.drop(id(sequence))
        if id(sequence) in self._places:
            at = self._places[id(sequence)]
            if trusted and sequence.shares and sequence.ended:
                self._roll_back()
                self._store.keep(sequence.tokens, self._caches, at, self._caches.lengths[at])
            self._unsure.pop(id(sequence), None)
            keep = places_after(len(self._sequences), [at])
            self._caches.select(keep)
            self._sequences = [self._sequences[i] for i in keep]
            self._places = {id(other): i for i, other in enumerate(self._sequences)}

    def close(self) -> None:
        self.texts.clear()
        self._caches.clear()
        self._prefix.give_up(self._store)
        self._sequences, self._places, self._unsure, self._drafted = [], {}, {}, None

    @property
    def nbytes(self) -> int:
        return self._caches.nbytes + self.texts.nbytes

    def _roll_back(self) -> None:
        """Rolls each sequence's cache back to the longest common prefix with its text. Final tokens are not compared
        again."""
        if self._drafted is not None:
            ids, drafted = self._drafted  # computed by now: reading them as they are saves another wait
            for key, tokens in zip(ids, drafted.tolist(), strict=True):
                self._unsure.setdefault(key, []).extend(tokens[:-1])  # the last token was not fed
        lengths, unsure = list[int](), dict[int, list[int]]()
        for sequence, length in zip(self._sequences, self._caches.lengths, strict=True):
            fed_last = self._unsure.get(id(sequence), [])
            common = length - len(fed_last)
            for token in fed_last:
                if common >= len(sequence.tokens) or token != sequence.tokens[common]:
                    break
                common += 1
            common = min(common, len(sequence.tokens) - 1)  # the last token is fed to predict the next
            lengths.append(common)
        reached = self._caches.rollback(lengths)  # `_catch_up` feeds what a layer rolled back beyond that
        for sequence, length in zip(self._sequences, reached, strict=True):
            if sequence.guesses:
                unsure[id(sequence)] = sequence.tokens[len(sequence.tokens) - sequence.guesses : length]
        self._unsure, self._drafted = unsure, None

    def _catch_up(self, drafting: Sequence[int]) -> mx.array:
        """Feeds the tokens that each text has and its cache lacks. Returns the logits after each text, rows ×
        vocabulary."""
        behind = zip(self._sequences, self._caches.lengths, drafting, strict=True)
        pending = [self.clip_to_vocabulary(sequence.tokens[n:]) if wanted else [] for sequence, n, wanted in behind]
        widths = [len(p) for p in pending]
        logits = self._caches.forward(pad_rows(pending), widths, at=last(widths))
        for sequence, wanted in zip(self._sequences, drafting, strict=True):
            if wanted and sequence.guesses:
                self._unsure[id(sequence)] = sequence.tokens[-sequence.guesses :]
        return logits[:, 0]

    def clip_to_vocabulary(self, tokens: list[int]) -> list[int]:
        """Replaces padding ids of the target's vocabulary by the draft's last token id. The draft has no embedding for
        padding, and MLX reads past the end of an array without an error."""
        return [min(token, self._last) for token in tokens] if self._last < self._vocabulary - 1 else tokens

    def _fit_vocabulary(self, logits: mx.array) -> mx.array:
        """Cuts or pads the vocabulary axis to the target's."""
        have = logits.shape[-1]
        if have > self._vocabulary:
            return logits[:, : self._vocabulary]
        if have < self._vocabulary:
            return mx.pad(logits, [(0, 0), (0, self._vocabulary - have)], constant_values=-mx.inf)
        return logits
