"""Drafting with a model whose caches follow the sequences' texts: what a draft model and a draft head share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import Caches, places_after
from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.prefill import Prefill
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.drafters.base import Draft, Drafter, DraftSequence
from draftd.engine.sampling.acceptance import draw
from draftd.engine.sampling.transforms import Sampling, uniforms

_FORWARDS = 32  # forwards that one rollback may undo: one for each token of a block


class CachedDrafter(Drafter):
    """Keeps a row of its model's caches for each sequence, and drafts a token with each forward."""

    def __init__(self, model: Any, vocabulary: int, prefix: PrefixCache | None = None) -> None:
        """`vocabulary`: the target's."""
        self.vocabulary = vocabulary
        self.caches: Caches = make_caches(model, _FORWARDS)
        self.sequences: list[DraftSequence] = []  # those that have a row, in the order of the rows
        self._prefix = prefix or PrefixCache()
        self.places: dict[int, int] = {}  # by a sequence's id(): its row in the caches
        self._store = self._prefix.store(self.caches)
        self.texts = Prefill(self.caches, self._store)  # texts that are prefilling, and the prefix cache

    @abstractmethod
    def roll_back(self) -> None:
        """Rolls each row back to where its text can go on."""

    @abstractmethod
    def catch_up(self, drafting: Sequence[int]) -> mx.array:
        """Feeds what each text has and its cache lacks, for rows with a 1 in `drafting`. Returns the logits after each
        text, rows × the model's vocabulary."""

    def go_on(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        """Feeds the tokens just drafted, rows × 1. Returns the logits after them, rows × the model's vocabulary."""
        return self.caches.forward(tokens, widths)[:, -1]

    def lag(self, sequence: DraftSequence) -> int:
        """Returns the tokens that `catch_up` has to feed for a sequence."""
        return len(sequence.tokens) - self.caches.lengths[self.places[id(sequence)]]

    def note_drafted(self, sequences: Sequence[DraftSequence], drafted: mx.array) -> None:
        """Notes what was just drafted, sequences × k."""
        return

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        members = self.sequences
        at = [self.places[id(sequence)] for sequence in sequences]
        whole = at == list(range(len(members)))
        self.roll_back()
        lag = max(map(self.lag, sequences))
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
                logits = self.catch_up(widths)
            else:
                feed = tokens[-1] if spread is None else tokens[-1][spread]
                logits = self.go_on(feed[:, None], widths)
            logits = self.fit_vocabulary(logits if chosen is None else logits[chosen])
            if dice is None:
                token = sampling.choose(logits[:, None], starts, step, more=k - step)[:, 0]
            else:
                q = sampling.distribution(logits[:, None], starts, step, more=k - step)
                distributions.append(q)
                token = draw(q[:, 0], dice[:, step])
            mx.async_eval(token)
            tokens.append(token)
        drafted = mx.stack(tokens, axis=1)
        self.note_drafted(sequences, drafted)
        return Draft(
            tokens=drafted,
            depths=list(depths),
            q=mx.concatenate(distributions, axis=1) if distributions else None,
            forwards=list(depths),
            lag=lag,
        )

    def seat(self, sequence: DraftSequence) -> None:
        """Gives a sequence whose text was prefilled a row of the caches."""
        self.texts.join([id(sequence)])
        self.places[id(sequence)] = len(self.sequences)
        self.sequences.append(sequence)

    def leave(self, sequence: DraftSequence) -> None:
        trusted = not sequence.degraded  # drafting may have failed during a forward
        if trusted and id(sequence) in self.texts:
            self.texts.keep(id(sequence), sequence.tokens)
        self.texts.drop(id(sequence))
        if id(sequence) in self.places:
            at = self.places[id(sequence)]
            if trusted and sequence.shares and sequence.ended:
                self.roll_back()
                self._store.keep(sequence.tokens, self.caches, at, self.caches.lengths[at])
            keep = places_after(len(self.sequences), [at])
            self.caches.select(keep)
            self.sequences = [self.sequences[i] for i in keep]
            self.places = {id(other): i for i, other in enumerate(self.sequences)}

    def close(self) -> None:
        self.texts.clear()
        self.caches.clear()
        self._prefix.give_up(self._store)
        self.sequences, self.places = [], {}

    @property
    def nbytes(self) -> int:
        return self.caches.nbytes + self.texts.nbytes

    def clip_to_vocabulary(self, tokens: list[int]) -> list[int]:
        """Returns the ids that the model is fed for these of the target's."""
        return tokens

    def fit_vocabulary(self, logits: mx.array) -> mx.array:
        """Returns `logits`, rows × the model's vocabulary, cut or padded to the target's."""
        have = logits.shape[-1]
        if have > self.vocabulary:
            return logits[:, : self.vocabulary]
        if have < self.vocabulary:
            return mx.pad(logits, [(0, 0), (0, self.vocabulary - have)], constant_values=-mx.inf)
        return logits
