"""One model's caches of the texts that are being taken in, apart from the running ones until they join those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from draftd.engine.cache.base import Caches
from draftd.engine.cache.prefix_store import PrefixStore

_PIECE = 128  # tokens: what is taken in is kept in pieces of at least so many, so that none takes long


@dataclass(slots=True)
class _Text:
    caches: Caches
    length: int  # that its caches will have
    shares: bool  # whether it uses what is kept of other texts, and is kept itself
    kept: int = 0  # tokens of it that were found or kept


class Prefill:
    """Texts go by keys of the caller's."""

    def __init__(self, running: Caches, store: PrefixStore) -> None:
        """What `store` has of a text is not taken in, and what is taken in is kept there."""
        self._running, self._store = running, store
        self._texts: dict[int, _Text] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._texts

    def open(self, key: int, length: int, prefix: Sequence[int]) -> int | None:
        """Begins a text of which `length` tokens will be taken in. `prefix` is looked up in the prefix store, but for
        its last token, whose logits are asked for; empty: the text is neither looked up nor kept. Returns how many
        tokens were found; None where none were looked for."""
        text = self._texts[key] = _Text(self._running.fresh(length), length, bool(prefix))
        if not (prefix and self._store.open):
            return None
        kept = self._store.find(prefix, len(prefix) - 1)
        if kept:
            text.caches.restore(kept)
        text.kept = text.caches.lengths[0]
        return text.kept

    def take_in(self, key: int, tokens: Sequence[int], last: int = 0) -> mx.array:
        """Begins to take in more tokens; where these are more than `last`, the last so many in a forward of their own.
        Returns the logits of the last forward, 1 × width × vocabulary, which cost nothing unless they are read."""
        caches = self._texts[key].caches
        split = len(tokens) - last if 0 < last < len(tokens) else 0
        if split:
            caches.forward(mx.array([tokens[:split]], dtype=mx.uint32), [split])
            mx.async_eval(caches.arrays())
        return caches.forward(mx.array([tokens[split:]], dtype=mx.uint32), [len(tokens) - split])

    def settle(self, key: int, *more: mx.array) -> None:
        """Computes what the last forward left to be computed, and `more` with it."""
        mx.eval(self._texts[key].caches.arrays(), *more)

    def held(self, key: int) -> int:
        """Tokens of the text that were taken in."""
        return self._texts[key].caches.lengths[0]

    def keep_piece(self, key: int, tokens: Sequence[int]) -> None:
        """Keeps what was taken in of the text `tokens`, where that is a piece more than was kept before."""
        text = self._texts[key]
        if text.caches.segmented and text.caches.lengths[0] - text.kept >= _PIECE:
            self.keep(key, tokens)

    def keep(self, key: int, tokens: Sequence[int]) -> None:
        """Keeps what was taken in of the text `tokens`, if it is one that is kept."""
        text = self._texts[key]
        if text.shares:
            text.kept = min(text.caches.lengths[0], len(tokens))
            self._store.keep(tokens, text.caches, 0, text.kept)

    def join(self, key: int) -> None:
        """Makes the text the last of the running ones."""
        self._running.join(self._texts.pop(key).caches)

    def drop(self, key: int) -> None:
        """Forgets a text; an unknown one is no error."""
        text = self._texts.pop(key, None)
        if text is not None:
            text.caches.clear()

    def clear(self) -> None:
        """Forgets all texts."""
        for text in self._texts.values():
            text.caches.clear()
        self._texts.clear()

    @property
    def nbytes(self) -> int:
        return sum(text.caches.nbytes for text in self._texts.values())
