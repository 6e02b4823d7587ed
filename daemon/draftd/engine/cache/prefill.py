"""One model's caches of texts that are still prefilling, separate from the running ones until they join those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from draftd.engine.cache.base import CachedPrefix, Caches, KVSegment, last, pad_rows
from draftd.engine.cache.prefix_store import PrefixStore
from draftd.engine.cache.slices import AnySlices
from draftd.engine.sampling.logprobs import PromptLogprobs

_PIECE = 128  # tokens: prefixes are kept in pieces of at least this many, so that no copy takes long
# Tokens of one forward on a CPU. Attention writes out a score for each pair of positions there, masked ones too, which
# takes longer than all else in a long prompt: 3,072 tokens of SmolLM2 took 20.4 s by 256, 22.7 s by 512, 25.1 by 1,024.
_WIDEST_ON_CPU = 256


@dataclass(slots=True)
class _PrefillText:
    caches: Caches  # texts may share caches
    length: int  # tokens that its caches will have
    prefix: Sequence[int]  # the text, if it uses the prefix cache; else empty
    prompt: int  # its tokens before an answer that is continued
    kept: int = 0  # tokens that were found in the prefix cache, or kept there
    row: int = 0  # of the caches
    forks: list[int] = field(default_factory=list)  # lengths to keep on the way, ascending
    states: list[mx.array] = field(default_factory=list)  # hidden states of what was taken in, if they are recorded


class Prefill:
    """The texts of one model that are prefilling, by keys that the caller chooses."""

    def __init__(self, running: Caches, store: PrefixStore, slices: AnySlices | None = None) -> None:
        """`store`: supplies known prefixes, and keeps new ones. `slices`: how prompts are cut; None: anywhere."""
        self.running, self.store, self.slices = running, store, slices or AnySlices()
        self._texts: dict[int, _PrefillText] = {}
        self._widest = _WIDEST_ON_CPU if mx.default_device() == mx.Device(mx.cpu) else 1 << 30

    def __contains__(self, key: int) -> bool:
        return key in self._texts

    def open(
        self,
        key: int,
        length: int,
        prefix: Sequence[int],
        *,
        computed: bool = False,
        prompt: int | None = None,
        most: int | None = None,
    ) -> int | None:
        """Begins a text of which `length` tokens will be taken in. Returns the tokens found in the prefix cache, or
        None without a lookup.

        `prefix` is looked up except for its last token, whose logits the caller needs; if empty, the text is neither
        looked up nor kept. `computed`: all tokens are computed, so nothing is looked up. `prompt`: tokens before the
        answer; None: all. `most`: of the kept tokens, how many may be used; None: all."""
        prompt = length if prompt is None else prompt
        text = self._texts[key] = _PrefillText(self.running.fresh(length), length, prefix, prompt)
        if not (prefix and self.store.open):
            return None
        kept = [] if computed else self._find(prefix, prompt, len(prefix) - 1 if most is None else most)
        if kept:
            text.caches.restore(kept)
        text.kept = text.caches.lengths[0]
        if not text.caches.segmented and self.usable(length, prompt) < length:
            self.fork(key, length)  # its end cannot be kept
        shared = self.store.shared_length(prefix, len(prefix) - 1)
        if shared - text.kept >= _PIECE:
            self.fork(key, shared)
        return text.kept

    def fork(self, key: int, length: int) -> None:
        """Keeps the first `length` tokens as soon as they are taken in, unless they are the whole text."""
        text = self._texts[key]
        length = self.usable(length, text.prompt)
        if text.prefix and length:
            text.forks = sorted({*text.forks, length})

    def usable(self, length: int, prompt: int | None = None) -> int:
        """Returns how many of the first `length` tokens can be kept for other texts. `prompt`: tokens before the
        answer; None: all."""
        return self.slices.usable(length, length if prompt is None else prompt)

    def known_length(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first tokens `open` would find."""
        return self.usable(self.store.known_length(tokens))

    def _find(self, prefix: Sequence[int], prompt: int, most: int) -> list[CachedPrefix]:
        most = min(most, len(prefix) - 1)
        if self.slices.width > 1:
            most = self.usable(self.store.known_length(prefix[:most]), prompt)
        return self.store.find(prefix, most)

    def take_in(self, key: int, tokens: Sequence[int], logprobs: PromptLogprobs | None = None) -> mx.array:
        """Begins to take in more tokens. Returns the logits of the last one, 1 × 1 × vocabulary, which cost nothing
        unless read. `logprobs` computes and reads the logits of all tokens, piece by piece.

        Keeps a snapshot where the text departs from another, as after a common system prompt: what cannot be kept in
        segments then serves the next text that begins in the same way (Pan et al. 2024, Marconi)."""
        text = self._texts[key]
        while text.forks and not text.caches.segmented and text.forks[0] - self._length(text) < len(tokens):
            fork = text.forks.pop(0)
            ahead = fork - self._length(text)
            if ahead < 0:
                continue
            if ahead:
                self._forward(text, tokens[:ahead], logprobs)
            self.store.keep(text.prefix, text.caches, text.row, fork)
            tokens = tokens[ahead:]
        return self._forward(text, tokens, logprobs)

    def _forward(self, text: _PrefillText, tokens: Sequence[int], logprobs: PromptLogprobs | None = None) -> mx.array:
        most = self._widest if logprobs is None else min(self._widest, logprobs.widest)
        while True:
            length = self._length(text)
            widest = self.slices.widest(length, text.prompt, most)
            piece, tokens = tokens[:widest], tokens[widest:]
            read = last([len(piece)]) if logprobs is None else None
            with self.slices.computing(length, text.prompt):
                logits = text.caches.forward(mx.array([piece], dtype=mx.uint32), [len(piece)], at=read)
            if text.caches.states is not None:
                text.states.append(text.caches.states)
            if logprobs is not None:
                logprobs.add(piece, logits)
            if not tokens:
                return logits[:, -1:]

    def take_in_together(self, texts: Mapping[int, Sequence[int]]) -> mx.array:
        """Begins to take in several whole new texts in one forward. Returns the logits of their last tokens, texts × 1
        × vocabulary, in the same order."""
        caches = self.running.fresh(*(self._texts[key].length for key in texts))
        for row, key in enumerate(texts):
            text = self._texts[key]
            text.caches.clear()
            text.caches, text.row = caches, row
        tokens = list(texts.values())
        widths = [len(ids) for ids in tokens]
        logits = caches.forward(pad_rows(tokens), widths, at=last(widths))
        if caches.states is not None:
            for row, (key, width) in enumerate(zip(texts, widths, strict=True)):
                self._texts[key].states = [caches.states[row : row + 1, :width]]
        return logits

    def take_states(self, key: int) -> mx.array | None:
        """Returns the hidden states of the tokens taken in since the last call, 1 × tokens × size; None if the model
        records none."""
        states, self._texts[key].states = self._texts[key].states, []
        if len(states) < 2:
            return states[0] if states else None
        return mx.concatenate(states, axis=1)

    def settle(self, key: int, *more: mx.array) -> None:
        """Computes what the last forward left uncomputed, together with `more`."""
        mx.eval(self._texts[key].caches.arrays(), *more)

    def begin_to_settle(self, key: int) -> None:
        """Begins to compute what the last forward left uncomputed, without waiting for it."""
        mx.async_eval(self._texts[key].caches.arrays())

    def step_back(self, key: int) -> KVSegment:
        """Takes back the last token of a text that has its own caches. Returns what they held of it. The caches must be
        segmented."""
        text = self._texts[key]
        length = self._length(text)
        segment = text.caches.extract(text.row, length - 1, length)
        assert isinstance(segment, KVSegment)
        text.caches.rollback([length - 1])
        return segment

    def length(self, key: int) -> int:
        """Returns the tokens of the text that were taken in."""
        return self._length(self._texts[key])

    def keep_piece(self, key: int, tokens: Sequence[int]) -> None:
        """Keeps the text so far in the prefix cache if it has grown by a piece, or if another text departs from it
        here."""
        text = self._texts[key]
        length = self._length(text)
        reached = [fork for fork in text.forks if fork <= length]
        del text.forks[: len(reached)]
        if reached or (text.caches.segmented and length - text.kept >= _PIECE):
            self.keep(key, tokens)

    def keep(self, key: int, tokens: Sequence[int]) -> None:
        """Keeps the text so far in the prefix cache, if it uses that."""
        text = self._texts[key]
        if text.prefix:
            length = min(self._length(text), len(tokens))
            text.kept = self.usable(length, text.prompt)
            if text.caches.segmented or text.kept == length:
                self.store.keep(tokens, text.caches, text.row, text.kept)

    def join(self, keys: Sequence[int]) -> list[int]:
        """Moves these texts to the end of the running ones. Returns the order of their keys there."""
        joined: list[int] = []
        while len(joined) < len(keys):
            caches = next(self._texts[key].caches for key in keys if key in self._texts)
            some = [key for key in keys if key in self._texts and self._texts[key].caches is caches]
            rows = [self._texts.pop(key).row for key in some]
            if len(rows) < len(caches.lengths):
                part = caches.split(rows)
                self._renumber(caches)
            else:
                part = caches
                part.select(rows)
            self.running.join(part)
            joined += some
        return joined

    def drop(self, key: int) -> None:
        """Forgets a text; an unknown key is no error."""
        text = self._texts.pop(key, None)
        if text is not None:
            rows = list(range(len(text.caches.lengths)))
            if len(rows) == 1:
                text.caches.clear()
            else:
                text.caches.select([row for row in rows if row != text.row])
                self._renumber(text.caches)

    def _renumber(self, caches: Caches) -> None:
        """Updates the row numbers of the texts that still share `caches`."""
        sharing = sorted((text for text in self._texts.values() if text.caches is caches), key=lambda text: text.row)
        for row, text in enumerate(sharing):
            text.row = row

    def _length(self, text: _PrefillText) -> int:
        return text.caches.lengths[text.row]

    def clear(self) -> None:
        """Forgets all texts."""
        for text in self._texts.values():
            text.caches.clear()
        self._texts.clear()

    @property
    def nbytes(self) -> int:
        return sum({id(text.caches): text.caches.nbytes for text in self._texts.values()}.values())
