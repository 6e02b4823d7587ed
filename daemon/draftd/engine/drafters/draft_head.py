"""The drafter that runs a draft head: a few layers that draft from the target's hidden states.

Entry i of its caches comes from the pair (hidden state at position i, token i + 1), so after n tokens it has n - 1
entries, and the pair with the last token is fed when it drafts. Further ahead its own output takes the place of the
target's states; such entries are taken back after each step.

It cannot compute a hidden state that it missed. States wait until it drafts, or until there are enough of them to be
taken in together. Of a layer whose logits are not read, MLX computes only keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from draftd.engine.cache.base import last, pad_rows
from draftd.engine.cache.model_layers import record_states
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.drafters.base import Draft, DraftSequence, merge
from draftd.engine.drafters.cached import CachedDrafter
from draftd.engine.features import Features
from draftd.engine.sampling.transforms import Sampling
from draftd.models.head_weights import Head

_WAITING = 128  # hidden states of a text for which no cache entries are computed yet, at most
_WIDE = 8  # waiting states that a forward which drafts may take in


class DraftHead(CachedDrafter):
    """Drafts with an MTP or EAGLE head."""

    fed = True

    def __init__(self, head: Head, vocabulary: int, prefix: PrefixCache | None = None) -> None:
        """`vocabulary`: the target's."""
        super().__init__(head, vocabulary, prefix)
        self._head = head
        record_states(head, inputs_of=[] if head.form.own_after_norm else [head.norm])
        self._waiting: dict[int, list[Features]] = {}  # by id(), of all known sequences: states not taken in yet
        self._lengths: dict[int, int] = {}  # by id(), of those that have a row: entries from the target's own states
        self._states: mx.array | None = None  # rows × 1 × size: the head's own, after the token that it drafted last
        self._places_of_ids: mx.array | None = None  # by token id: its logit, or the one after all for none
        if head.ids is not None:
            places = mx.full((vocabulary,), head.ids.size, dtype=mx.uint32)
            places[head.ids] = mx.arange(head.ids.size, dtype=mx.uint32)
            self._places_of_ids = places

    # which texts it knows

    def begin(self, sequence: DraftSequence, cached: int) -> None:
        self._forget(sequence)
        key, most = id(sequence), cached if self.caches.segmented else 0  # else no last state could be read
        self.texts.open(key, len(sequence.tokens), sequence.tokens if sequence.shares else (), most=most)
        self._waiting[key] = []
        if self.texts.length(key) != cached:
            self._forget(sequence)
        elif cached:  # the last entry was made with another text's next token
            keys, values = self.texts.step_back(key).layers[-1]
            state = mx.concatenate([keys, values], axis=-1)[:, 0]
            self._waiting[key].append(Features(cached - 1, 1, state))

    def known_prefix(self, tokens: Sequence[int]) -> int:
        return self.texts.known_length(tokens) if self.caches.segmented else 0

    def behind(self, sequence: DraftSequence) -> int | None:
        return 0 if self._ready(sequence) else None

    def _ready(self, sequence: DraftSequence) -> bool:
        """Returns whether it has the states of all but the text's last token."""
        if id(sequence) not in self._waiting or sequence.guesses:
            return False
        return self._end(sequence) == len(sequence.tokens) - 1

    def _length(self, sequence: DraftSequence) -> int:
        """Returns the entries of a known text that come from the target's own states."""
        key = id(sequence)
        return self._lengths[key] if key in self._lengths else self.texts.length(key)

    def _end(self, sequence: DraftSequence) -> int:
        """Returns up to which position it has a known text's hidden states, taken in or waiting."""
        return self._length(sequence) + _count(self._waiting[id(sequence)])

    # hidden states

    def feed(self, sequence: DraftSequence, features: Features) -> None:
        key = id(sequence)
        if key not in self._waiting:
            if features.start:
                return
            self.begin(sequence, 0)
        if features.start != self._end(sequence):
            self._forget(sequence)
            return
        self._waiting[key].append(features)
        if _count(self._waiting[key]) >= _WAITING:
            self._take_in(sequence)

    def _take_in(self, sequence: DraftSequence) -> None:
        """Begins to take in the states that wait, except for the pair with the last token, which a draft needs; if the
        text has ended, with it."""
        key = id(sequence)
        if key in self._lengths:
            self._take_in_rows()
            return
        tokens = self._next_tokens(sequence)
        if tokens:
            with self._head.fed.of(self.project_rows([key], [self._pop_states(key, len(tokens))], len(tokens))):
                self.texts.take_in(key, tokens)
            if (states := self.texts.take_states(key)) is not None:
                self.took_in([key], [len(tokens)], states)
            self.texts.begin_to_settle(key)
            self.texts.keep_piece(key, sequence.tokens)

    def _take_in_rows(self) -> None:
        """Begins to take in the states that wait of all sequences that have a row."""
        self.roll_back()
        pieces = [self._next_tokens(sequence) for sequence in self.sequences]
        if any(pieces):
            self.forward(pieces)
            mx.async_eval(self.caches.arrays())

    def _next_tokens(self, sequence: DraftSequence) -> list[int]:
        """Returns the tokens of the pairs that can be taken in."""
        most = len(sequence.tokens) - (not sequence.ended)
        return sequence.tokens[self._length(sequence) + 1 : min(self._end(sequence) + 1, most)]

    def forward(self, pieces: Sequence[Sequence[int]]) -> mx.array:
        """Feeds each row its next tokens, with the states that wait for them. Returns the logits after each row's last
        token, rows × 1 × vocabulary."""
        widths = [len(piece) for piece in pieces]
        keys = [id(sequence) for sequence in self.sequences]
        rows = [self._pop_states(key, width) for key, width in zip(keys, widths, strict=True)]
        with self._head.fed.of(self.project_rows(keys, rows, max(widths))):
            logits = self.caches.forward(pad_rows(pieces), widths, at=last(widths))
        self._lengths.update(zip(keys, self.caches.lengths, strict=True))
        if (states := self.caches.states) is not None:
            self.took_in(keys, widths, states)
        return logits

    def _pop_states(self, key: int, count: int) -> list[mx.array]:
        """Removes the first `count` waiting states of a text. Returns them in parts, 1 × part × size."""
        parts, waiting = list[mx.array](), self._waiting[key]
        while count:
            start, positions, states, row, first = waiting[0]
            taken = min(count, positions)
            parts.append(states[row : row + 1, first : first + taken])
            waiting[:1] = [Features(start + taken, positions - taken, states, row, first + taken)][taken == positions :]
            count -= taken
        return parts

    def project_rows(self, keys: Sequence[int], rows: Sequence[Sequence[mx.array]], width: int) -> mx.array:
        """Returns the states of the texts `keys`, given in parts for each, as the head's: rows × width × size."""
        if len({part.shape[-1] for row in rows for part in row}) > 1:  # one that the prefix cache kept is the head's
            return _pad_states([[self._head.project(part) for part in row] for row in rows], width)
        return self._head.project(_pad_states(rows, width))

    def took_in(self, keys: Sequence[int], widths: Sequence[int], states: mx.array) -> None:
        """Takes the states that the head made of the tokens that texts took in, rows × width × size. If they were kept
        without being computed, they would hold all keys and values of that time."""
        return

    # drafting

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        ready = [i for i, sequence in enumerate(sequences) if self._ready(sequence)]
        for i in ready:
            self._prepare(sequences[i])
        if len(ready) == len(sequences):
            return super().propose(sequences, depths, sampling)
        zeros = [0] * len(sequences)
        nothing = Draft(mx.array(zeros, dtype=mx.uint32)[:, None], zeros, None, zeros)
        if not ready:
            return nothing
        part = super().propose([sequences[i] for i in ready], [depths[i] for i in ready], sampling.select(ready))
        return merge([(ready, part)], len(sequences), self.vocabulary, sampling.deterministic) or nothing

    def _prepare(self, sequence: DraftSequence) -> None:
        """Gives a sequence that drafts a row, with no more than a few states left to take in."""
        if _count(self._waiting[id(sequence)]) > _WIDE:
            self._take_in(sequence)
        if id(sequence) not in self._lengths:
            self._lengths[id(sequence)] = self.texts.length(id(sequence))
            self.texts.keep(id(sequence), sequence.tokens)
            self.seat(sequence)

    def lag(self, sequence: DraftSequence) -> int:
        return _count(self._waiting[id(sequence)])

    def roll_back(self) -> None:
        """Takes back the entries that come from the head's own states."""
        self.caches.rollback([self._lengths[id(sequence)] for sequence in self.sequences])

    def pieces(self, drafting: Sequence[int]) -> list[list[int]]:
        """Returns the tokens of the pairs that `catch_up` has to feed, by row."""
        return [
            sequence.tokens[self._lengths[id(sequence)] + 1 :] if wanted else []
            for sequence, wanted in zip(self.sequences, drafting, strict=True)
        ]

    def catch_up(self, drafting: Sequence[int]) -> mx.array:
        pieces = self.pieces(drafting)
        logits, states = self.forward(pieces), self.caches.states
        assert states is not None, "the head records its states"
        ends = mx.array(last([len(piece) for piece in pieces]))
        self._states = mx.take_along_axis(states, ends[:, :, None], axis=1)
        return logits[:, 0]

    def own_states(self, states: mx.array) -> mx.array:
        """Returns the states that the head made of the tokens it drafted last, rows × 1 × size, as it is fed them."""
        return states

    def go_on(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        assert self._states is not None, "the text was caught up with before"
        with self._head.fed.of(self.own_states(self._states)):
            logits = super().go_on(tokens, widths)
        self._states = self.caches.states
        return logits

    def fit_vocabulary(self, logits: mx.array) -> mx.array:
        """Returns `logits`, rows × the head's vocabulary, as rows × the target's."""
        if self._places_of_ids is None:
            return super().fit_vocabulary(logits)
        padded = mx.pad(logits, [(0, 0), (0, 1)], constant_values=-mx.inf)
        return mx.take(padded, self._places_of_ids, axis=-1)

    # leaving

    def leave(self, sequence: DraftSequence) -> None:
        trusted = not sequence.degraded and sequence.shares and id(sequence) in self._waiting
        if trusted and _count(self._waiting[id(sequence)]):
            self._take_in(sequence)
        super().leave(sequence)
        self._waiting.pop(id(sequence), None)
        self._lengths.pop(id(sequence), None)

    def _forget(self, sequence: DraftSequence) -> None:
        """Drops what it has of a text; it drafts for it no more, unless the text begins again."""
        self._waiting.pop(id(sequence), None)
        self.leave(sequence)

    def close(self) -> None:
        super().close()
        self._waiting, self._lengths, self._states = {}, {}, None


def _count(waiting: Sequence[Features]) -> int:
    return sum(features.positions for features in waiting)


def _beside(parts: Sequence[mx.array]) -> mx.array:
    """Returns parts of a row's states, each 1 × part × size, as one array."""
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)


def _pad_states(rows: Sequence[Sequence[mx.array]], width: int) -> mx.array:
    """Returns the states of all rows, given in parts, as rows × width × size, with zeros for what a row lacks."""
    like = next(row[0] for row in rows if row)
    lines = []
    for row in rows:
        lacking = width - sum(part.shape[1] for part in row)
        blank = [mx.zeros((1, lacking, like.shape[-1]), like.dtype)] if lacking else []
        lines.append(_beside([*row, *blank]))
    return lines[0] if len(lines) == 1 else mx.concatenate(lines)
