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
from draftd.engine.cache import Caches, left
from draftd.engine.layouts import make_caches
from draftd.engine.prefill import Prefill
from draftd.engine.prefix import PrefixCache
from draftd.engine.sampling import Sampling, draw, one_hot, uniforms


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a list of rows. `tokens`: rows × k, uint32; row i's first `depths[i]` are real.

    `q`: rows × k × vocabulary, the transformed distributions they were drawn from; None when all rows are settled.
    `forwards[i]`: forward passes of a draft model spent on row i. `lag`: the most tokens of a row that the first of
    them took in.
    """

    tokens: mx.array
    depths: list[int]
    q: mx.array | None
    forwards: list[int]
    lag: int = 0


class Drafter(Protocol):
    """Called on the engine thread only. What it raises costs its rows their speculation, never their text."""

    def prefill(self, row: Row, chunk: int) -> bool:
        """Takes in up to `chunk` more tokens of the prompt of a newcomer; True once there are none left."""
        ...

    def propose(self, rows: Sequence[Row], depths: Sequence[int], sampling: Sampling) -> Draft: ...

    def behind(self, row: Row) -> int | None:
        """Tokens of the row's text that it has not taken in, the last aside; None where it does not know the row."""
        ...

    def follow(self, rows: Sequence[Row], chunk: int) -> None:
        """Takes in up to `chunk` tokens of running rows that it does not know, or lags behind."""
        ...

    def reach(self, row: Row, most: int) -> int:
        """How many tokens, up to `most`, it could propose now for a row that it knows."""
        ...

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

    def __init__(
        self, model: Any, vocabulary: int, most_rows: int | None = None, prefix: PrefixCache | None = None
    ) -> None:
        self._vocabulary = vocabulary  # of the target: the pair may pad their embeddings differently
        self._caches: Caches = make_caches(model, most_rows)
        self._rows: list[Row] = []
        self._prefix = prefix or PrefixCache()
        self._places: dict[int, int] = {}  # of the rows, by id
        self._shelf = self._prefix.shelf(self._caches)
        self._prefill = Prefill(self._caches, self._shelf)
        self._proposed: dict[int, tuple[int, int]] = {}  # by a row's id: its place in `_drafted`, its length then
        self._drafted: mx.array | None = None  # the last proposals

    def behind(self, row: Row) -> int | None:
        place = self._places.get(id(row))
        return None if place is None else max(0, len(row.tokens) - 1 - self._caches.lengths[place])

    def reach(self, row: Row, most: int) -> int:
        return most

    def follow(self, rows: Sequence[Row], chunk: int) -> None:
        unknown = next((row for row in rows if id(row) not in self._places), None)
        if unknown is not None:
            self.prefill(unknown, chunk)
            return
        self._roll_back()
        wanted = {self._places[id(row)] for row in rows}
        pieces: list[list[int]] = []
        for i, (row, n) in enumerate(zip(self._rows, self._caches.lengths, strict=True)):
            pieces.append(row.tokens[n : min(n + chunk, len(row.tokens) - 1)] if i in wanted else [])
        width = max(map(len, pieces))
        if width:
            padded = mx.array([p + [0] * (width - len(p)) for p in pieces], dtype=mx.uint32)
            self._caches.forward(padded, [len(p) for p in pieces])
            mx.eval(self._caches.arrays())

    def prefill(self, row: Row, chunk: int) -> bool:
        whole = len(row.tokens) - 1  # what `propose` catches up with
        self._prefill.advance(row, whole, chunk)
        if not self._prefill.done(row, whole):
            return False
        self._prefill.settle(row)
        self._prefill.join(row)
        self._places[id(row)] = len(self._rows)
        self._rows.append(row)
        return True

    def propose(self, rows: Sequence[Row], depths: Sequence[int], sampling: Sampling) -> Draft:
        caches, members = self._caches, self._rows
        at = [self._places[id(row)] for row in rows]
        whole = at == list(range(len(members)))
        self._roll_back()
        lag = max(len(row.tokens) - caches.lengths[i] for i, row in zip(at, rows, strict=True))
        asked = [int(i in at) for i in range(len(members))]
        spread = None if whole else mx.array([at.index(i) if asked[i] else 0 for i in range(len(members))])
        chosen = None if whole else mx.array(at)

        k = max(depths)
        starts = [row.emitted for row in rows]
        dice = None if sampling.settled else uniforms([row.generator for row in rows], depths)
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
                token = sampling.choose(logits[:, None], starts, step, more=k - step)[:, 0]
            else:
                q = sampling.distribution(logits[:, None], starts, step, more=k - step)
                distributions.append(q)
                token = draw(q[:, 0], dice[:, step])
            mx.async_eval(token)
            tokens.append(token)
        drafted = mx.stack(tokens, axis=1)
        self._drafted = drafted
        self._proposed = {id(row): (i, len(row.tokens)) for i, row in enumerate(rows)}
        return Draft(
            tokens=drafted,
            depths=list(depths),
            q=mx.concatenate(distributions, axis=1) if distributions else None,
            forwards=list(depths),
            lag=lag,
        )

    def leave(self, row: Row) -> None:
        trusted = not row.degraded  # drafting may have failed in the middle of a forward
        self._prefill.drop(row, keep=trusted)
        if id(row) in self._places:
            at = self._places[id(row)]
            if trusted and row.shares and row.finish is not None:
                self._roll_back()
                self._shelf.keep(row.tokens, self._caches, at, self._caches.lengths[at])
            self._proposed.pop(id(row), None)
            keep = left(len(self._rows), [at])
            self._caches.select(keep)
            self._rows = [self._rows[i] for i in keep]
            self._places = {id(other): i for i, other in enumerate(self._rows)}

    def close(self) -> None:
        self._prefill.clear()
        self._caches.clear()
        self._prefix.give_up(self._shelf)
        self._rows, self._places, self._proposed, self._drafted = [], {}, {}, None

    @property
    def nbytes(self) -> int:
        return self._caches.nbytes + self._prefill.nbytes

    def _roll_back(self) -> None:
        """Takes back what was drafted and does not stand. The text says so, but not by its length: it may have grown
        beyond the draft since, in rounds that drafted nothing."""
        drafted: list[list[int]] = [] if self._drafted is None else self._drafted.tolist()
        lengths = list[int]()
        for row, held in zip(self._rows, self._caches.lengths, strict=True):
            stands = min(held, len(row.tokens) - 1)
            if id(row) in self._proposed:
                i, end = self._proposed[id(row)]
                for token in drafted[i]:
                    if end >= stands or token != row.tokens[end]:
                        break
                    end += 1
                stands = min(stands, end)
            lengths.append(stands)
        self._proposed, self._drafted = {}, None
        self._caches.truncate(lengths)

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

    def behind(self, row: Row) -> int | None:
        return 0

    def follow(self, rows: Sequence[Row], chunk: int) -> None:
        return None

    def reach(self, row: Row, most: int) -> int:
        if not isinstance(row.lookup, _NgramIndex):
            row.lookup = _NgramIndex(self._sizes)
        return len(row.lookup.continuation(row.tokens, most))

    def propose(self, rows: Sequence[Row], depths: Sequence[int], sampling: Sampling) -> Draft:
        found: list[list[int]] = []
        for row, depth in zip(rows, depths, strict=True):
            if not isinstance(row.lookup, _NgramIndex):
                row.lookup = _NgramIndex(self._sizes)
            found.append(row.lookup.continuation(row.tokens, depth))
        k = max(map(len, found))
        tokens = mx.array([f + [0] * (k - len(f)) for f in found], dtype=mx.uint32).reshape(len(rows), k)
        q = None if sampling.settled else one_hot(tokens, self._vocabulary)
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


def merge(parts: Sequence[tuple[Sequence[int], Draft]], rows: int, vocabulary: int, settled: bool) -> Draft | None:
    """One draft for all `rows` from the drafts of groups of them; each part names the rows it is for.

    None when nobody proposed anything.
    """
    k = max((max(draft.depths, default=0) for _, draft in parts), default=0)
    if k == 0:
        return None
    if len(parts) == 1 and list(parts[0][0]) == list(range(rows)):
        return parts[0][1]
    tokens: list[mx.array] = [mx.zeros((1, k), dtype=mx.uint32)] * rows
    q: list[mx.array] = [] if settled else [mx.zeros((1, k, vocabulary))] * rows
    depths, forwards = [0] * rows, [0] * rows
    for members, draft in parts:
        short = k - draft.tokens.shape[1]
        padded = mx.pad(draft.tokens, [(0, 0), (0, short)]) if short else draft.tokens
        for i, row in enumerate(members):
            tokens[row] = padded[i : i + 1]
            depths[row], forwards[row] = draft.depths[i], draft.forwards[i]
            if not settled:
                own = draft.q[i : i + 1] if draft.q is not None else one_hot(draft.tokens[i : i + 1], vocabulary)
                q[row] = mx.pad(own, [(0, 0), (0, short), (0, 0)]) if short else own
    lag = max(draft.lag for _, draft in parts)
    return Draft(mx.concatenate(tokens), depths, None if settled else mx.concatenate(q), forwards, lag)
