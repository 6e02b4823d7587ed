"""Drafters: who guesses the next tokens, so that the target can judge several in one forward pass.

A draft model (small, same tokenizer) and prompt lookup (n-grams of prompt and output; no weights) stand behind one
seam. Drafters are handed the rows that want a draft this round and answer with one `Draft`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from draftd.engine.batch import Row
from draftd.engine.cache import Caches, make_caches
from draftd.engine.prefill import Prefill
from draftd.engine.sampling import Sampling, draw, one_hot, uniforms


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a list of rows. `tokens`: rows × k, uint32; row i's first `depths[i]` are real.

    `q`: rows × k × vocabulary, the transformed distributions they were drawn from; None when all rows are greedy.
    `forwards[i]`: forward passes of a draft model spent on row i.
    """

    tokens: mx.array
    depths: list[int]
    q: mx.array | None
    forwards: list[int]


class Drafter(Protocol):
    """Called on the engine thread only. What it raises costs its rows their speculation, never their text."""

    def prefill(self, row: Row, chunk: int) -> bool:
        """Takes in up to `chunk` more tokens of the prompt of a newcomer; True once there are none left."""
        ...

    def propose(self, rows: Sequence[Row], depths: Sequence[int], sampling: Sampling) -> Draft: ...

    def leave(self, row: Row) -> None:
        """Forgets a row; one that it never knew is no error."""
        ...

    def close(self) -> None:
        """Lets go of everything, the weights too."""
        ...

    @property
    def nbytes(self) -> int: ...


class DraftModel:
    """Drafts with a small model, whose caches follow the rows' texts.

    A row's cache may lag behind its text (by the last accepted token after full acceptance, by more after rounds
    without a draft): each proposal first catches up in the same forward that drafts the first token.
    """

    def __init__(self, model: Any, vocabulary: int) -> None:
        self._vocabulary = vocabulary  # of the target: the pair may pad their embeddings differently
        self._caches: Caches = make_caches(model)
        self._rows: list[Row] = []
        self._prefill = Prefill(self._caches)

    def prefill(self, row: Row, chunk: int) -> bool:
        whole = len(row.tokens) - 1  # what `propose` catches up with
        self._prefill.advance(row, whole, chunk)
        if not self._prefill.done(row, whole):
            return False
        self._prefill.settle(row)
        self._prefill.join(row)
        self._rows.append(row)
        return True

    def propose(self, rows: Sequence[Row], depths: Sequence[int], sampling: Sampling) -> Draft:
        caches, members = self._caches, self._rows
        place = {id(row): i for i, row in enumerate(members)}
        at = [place[id(row)] for row in rows]
        whole = at == list(range(len(members)))
        # The text may have been cut back since: what lies beyond it is stale.
        caches.truncate([min(n, len(row.tokens) - 1) for n, row in zip(caches.lengths, members, strict=True)])
        asked = [int(i in at) for i in range(len(members))]
        spread = None if whole else mx.array([at.index(i) if asked[i] else 0 for i in range(len(members))])
        chosen = None if whole else mx.array(at)

        k = max(depths)
        dice = None if sampling.greedy else uniforms([row.generator for row in rows], depths)
        tokens: list[mx.array] = []
        distributions: list[mx.array] = []
        for step in range(k):
            if step == 0:
                logits = self._catch_up(asked)
            else:
                feed = tokens[-1] if spread is None else tokens[-1][spread]
                logits = caches.forward(feed[:, None], asked)[:, -1]
            logits = self._fitted(logits if chosen is None else logits[chosen])
            if dice is None:
                token = mx.argmax(logits, axis=-1)
            else:
                q = sampling.distribution(logits[:, None])
                distributions.append(q)
                token = draw(q[:, 0], dice[:, step])
            mx.async_eval(token)
            tokens.append(token)
        return Draft(
            tokens=mx.stack(tokens, axis=1),
            depths=list(depths),
            q=mx.concatenate(distributions, axis=1) if distributions else None,
            forwards=list(depths),
        )

    def leave(self, row: Row) -> None:
        self._prefill.drop(row)
        if row in self._rows:
            keep = [i for i, other in enumerate(self._rows) if other is not row]
            self._caches.select(keep)
            self._rows = [self._rows[i] for i in keep]

    def close(self) -> None:
        self._prefill.clear()
        self._caches.clear()
        self._rows = []

    @property
    def nbytes(self) -> int:
        return self._caches.nbytes + self._prefill.nbytes

    def _catch_up(self, asked: Sequence[int]) -> mx.array:
        """Feeds what each row's text has and its cache has not; returns logits after the text, rows × vocabulary."""
        behind = zip(self._rows, self._caches.lengths, asked, strict=True)
        pending = [row.tokens[n:] if wanted else [] for row, n, wanted in behind]
        widths = [len(p) for p in pending]
        width = max(widths)
        padded = mx.array([p + [0] * (width - len(p)) for p in pending], dtype=mx.uint32)
        logits = self._caches.forward(padded, widths)
        if min(widths) == width:
            return logits[:, -1]
        return logits[mx.arange(len(pending)), mx.array([max(w, 1) - 1 for w in widths])]

    def _fitted(self, logits: mx.array) -> mx.array:
        """Cuts or pads the vocabulary axis to the target's."""
        have = logits.shape[-1]
        if have > self._vocabulary:
            return logits[:, : self._vocabulary]
        if have < self._vocabulary:
            return mx.pad(logits, [(0, 0), (0, self._vocabulary - have)], constant_values=-mx.inf)
        return logits


class PromptLookup:
    """Drafts by repeating what followed the last n-gram where it stood before in prompt or output."""

    def __init__(self, vocabulary: int, sizes: tuple[int, ...] = (3, 2)) -> None:
        self._vocabulary = vocabulary
        self._sizes = sizes

    def prefill(self, row: Row, chunk: int) -> bool:
        row.lookup = _NgramIndex(self._sizes)
        return True

    def propose(self, rows: Sequence[Row], depths: Sequence[int], sampling: Sampling) -> Draft:
        found: list[list[int]] = []
        for row, depth in zip(rows, depths, strict=True):
            if not isinstance(row.lookup, _NgramIndex):
                row.lookup = _NgramIndex(self._sizes)
            found.append(row.lookup.continuation(row.tokens, depth))
        k = max(map(len, found))
        tokens = mx.array([f + [0] * (k - len(f)) for f in found], dtype=mx.uint32).reshape(len(rows), k)
        q = None if sampling.greedy else one_hot(tokens, self._vocabulary)
        return Draft(tokens=tokens, depths=[len(f) for f in found], q=q, forwards=[0] * len(rows))

    def leave(self, row: Row) -> None:
        row.lookup = None

    def close(self) -> None:
        return None

    @property
    def nbytes(self) -> int:
        return 0


class _NgramIndex:
    """Where each n-gram of a growing text last ended, longest first. The text's own last n-gram is not its match."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in sizes]
        self._indexed = 0  # n-grams ending at or before this position are in the index

    def continuation(self, tokens: list[int], depth: int) -> list[int]:
        """Up to `depth` tokens that followed; empty where no n-gram recurs."""
        for end in range(self._indexed + 1, len(tokens)):
            for size, ends in zip(self._sizes, self._ends, strict=True):
                if end >= size:
                    ends[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens) - 1
        for size, ends in zip(self._sizes, self._ends, strict=True):
            at = ends.get(tuple(tokens[-size:]))
            if at is not None:
                return tokens[at : at + depth]
        return []


def merge(parts: Sequence[tuple[Sequence[int], Draft]], rows: int, vocabulary: int, greedy: bool) -> Draft | None:
    """One draft for all `rows` from the drafts of groups of them; each part names the rows it is for.

    None when nobody proposed anything.
    """
    k = max((max(draft.depths, default=0) for _, draft in parts), default=0)
    if k == 0:
        return None
    if len(parts) == 1 and list(parts[0][0]) == list(range(rows)):
        return parts[0][1]
    tokens: list[mx.array] = [mx.zeros((1, k), dtype=mx.uint32)] * rows
    q: list[mx.array] = [] if greedy else [mx.zeros((1, k, vocabulary))] * rows
    depths, forwards = [0] * rows, [0] * rows
    for members, draft in parts:
        short = k - draft.tokens.shape[1]
        padded = mx.pad(draft.tokens, [(0, 0), (0, short)]) if short else draft.tokens
        for i, row in enumerate(members):
            tokens[row] = padded[i : i + 1]
            depths[row], forwards[row] = draft.depths[i], draft.forwards[i]
            if not greedy:
                own = draft.q[i : i + 1] if draft.q is not None else one_hot(draft.tokens[i : i + 1], vocabulary)
                q[row] = mx.pad(own, [(0, 0), (0, short), (0, 0)]) if short else own
    return Draft(mx.concatenate(tokens), depths, None if greedy else mx.concatenate(q), forwards)
