"""Compares a model's whole forwards, as steps run them, with forwards of one token of one sequence."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from draftd.engine.cache.alone_mode import mode_of, tokens_alone
from draftd.engine.cache.base import CachedPrefix, Caches, KVSegment, last, pad_rows
from draftd.engine.cache.layouts import make_caches
from draftd.engine.exactness.compare import compare, spread_of
from draftd.engine.exactness.operations import StepSizes, some_of
from draftd.exactness import FLIPS_OF, OperationExactness, OperationKind

_LEAST_STEPS = 8  # tokens of each text that follow its prompt
_NEAR = 8  # the smallest eighth of the gaps estimates their density at zero

Pieces = Generator[None, None, None]


@dataclass(slots=True)
class LogitDifferences:
    """The sizes at which logits differed from those of a token alone, and by how much. `moved`: the changes of the gap
    between the two likeliest tokens, at all positions that were compared."""

    widths: set[int] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)
    slices: set[int] = field(default_factory=set)
    padding: bool = False
    largest: float = 0.0
    moved: list[float] = field(default_factory=list)

    def operation(self, name: str, kind: OperationKind) -> OperationExactness:
        return OperationExactness(
            name,
            kind,
            min(self.widths, default=None),
            min(self.batches, default=None),
            self.padding,
            min(self.slices, default=None),
            self.largest,
        )

    @property
    def mean_move(self) -> float:
        return sum(self.moved) / len(self.moved) if self.moved else 0.0


class ForwardComparison:
    """Compares forwards over some texts. Each text begins with a prompt and goes on with the model's own choices."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], sizes: StepSizes, slice_width: int) -> None:
        """`slice_width`: tokens of a prompt in a forward."""
        self._model, self._sizes, self._slice = model, sizes, slice_width
        self._prompts = sorted(prompts, key=len)[: max(sizes.batches, default=1)]
        self._kept: list[CachedPrefix] = []
        self._texts: list[list[int]] = [[] for _ in self._prompts]
        self._gaps: list[float] = []
        self._alone: dict[int, list[mx.array]] = {}  # by text: the logits after each token, computed alone
        self._empty, self._attention = make_caches(model), True
        self._steps = max(_LEAST_STEPS, max(sizes.widths, default=1) + 1)

    def prepare(self, *, in_mode: bool = False) -> Pieces:
        """Decodes all texts in one batch, and some of them alone."""
        first = list[int]()
        for prompt in self._prompts:
            caches, logits = self._empty.fresh(len(prompt)), mx.zeros((1, 1, 1))
            for start in range(0, len(prompt), self._slice):
                piece = prompt[start : start + self._slice]
                logits = caches.forward(pad_rows([piece]), [len(piece)], at=last([len(piece)]))
            kept = caches.extract(0, 0, len(prompt))
            mx.eval(logits, caches.arrays())
            assert kept is not None
            self._kept.append(kept)
            first.append(int(mx.argmax(logits[0, -1]).item()))
            caches.clear()
            yield None
        caches = self._start(range(len(self._prompts)))
        for text, token in zip(self._texts, first, strict=True):
            text.append(token)
        for _ in range(self._steps):
            with self._mode(in_mode):
                logits = caches.forward(mx.array([[text[-1]] for text in self._texts]), [1] * len(self._texts))
            mx.eval(logits, caches.arrays())
            likeliest = mx.topk(logits[:, 0].astype(mx.float32), 2, axis=-1)
            self._gaps += mx.abs(likeliest[:, 0] - likeliest[:, 1]).tolist()
            for text, token in zip(self._texts, mx.argmax(logits[:, 0], axis=-1).tolist(), strict=True):
                text.append(token)
            yield None
        caches.clear()
        most = max(self._sizes.widths, default=1)
        for place in sorted({0, len(self._texts) - 1}):
            caches, alone = self._start([place]), list[mx.array]()
            for token in self._texts[place][: most + 1 if place else self._steps]:
                alone.append(caches.forward(mx.array([[token]]), [1])[0, 0])
                mx.eval(alone[-1], caches.arrays())
                yield None
            self._alone[place] = alone
            caches.clear()

    def compare(
        self, differences: LogitDifferences, *, in_mode: bool, attention: bool = True, slices: bool = True
    ) -> Pieces:
        """Compares forwards at all sizes in use. `in_mode`: compute them in the model's mode (cache/alone.py). Without
        `attention`, attention is computed as usual even then, so that any difference is attention's."""
        self._attention = attention
        batches = some_of(self._sizes.batches)
        for width in self._sizes.widths:
            if (yield from self._run([0], width, differences, in_mode=in_mode)):
                differences.widths.add(width)
        for batch in batches:
            if (yield from self._run([0] * batch, 1, differences, in_mode=in_mode)):
                differences.batches.add(batch)
        if len(set(map(len, self._prompts))) > 1 and batches:
            rows = [-1, *(row % len(self._texts) for row in range(batches[-1] - 1))]
            width = max(self._sizes.widths, default=1)
            differences.padding = yield from self._run(rows, width, differences, in_mode=in_mode, uneven=True)
        if slices and (yield from self._run([0], self._steps, differences, in_mode=in_mode)):
            differences.slices.add(self._steps)

    def flips(self, differences: LogitDifferences) -> float:
        """Returns how many of FLIPS_OF tokens of a greedy text would change, as expected.

        A token changes if the gap between its two largest logits closes: it must be smaller than the move, and half of
        all moves widen it. With density f of gaps at 0 and mean move m, a share f · m / 2 changes. f is estimated as k
        / (n · g), where g is the k-th smallest of n gaps."""
        gaps = sorted(self._gaps)
        k = max(1, len(gaps) // _NEAR)
        density = k / (len(gaps) * max(gaps[k - 1], 1e-9))
        return FLIPS_OF * min(1.0, density * differences.mean_move / 2)

    @property
    def prepare_pieces(self) -> int:
        """The number of pieces of `prepare`."""
        alone = self._steps + (max(self._sizes.widths, default=1) + 1 if len(self._prompts) > 1 else 0)
        return len(self._prompts) + self._steps + alone

    @property
    def compare_pieces(self) -> int:
        """The most pieces of `compare`."""
        return len(self._sizes.widths) + len(some_of(self._sizes.batches)) + 3

    @property
    def positions(self) -> int:
        """The number of logit gaps."""
        return len(self._gaps)

    def close(self) -> None:
        self._empty.clear()
        self._kept.clear()

    @contextlib.contextmanager
    def _mode(self, in_mode: bool) -> Iterator[None]:
        mode = mode_of(self._model)
        if not in_mode or mode is None:
            yield
            return
        mode.attention = self._attention
        try:
            with tokens_alone(self._model):
                yield
        finally:
            mode.attention = True

    def _start(self, texts: Sequence[int]) -> Caches:
        """Returns caches of these texts after their prompts."""
        caches: Caches | None = None
        for text in texts:
            kept = self._kept[text]
            length = len(self._prompts[text])
            row = self._empty.fresh(length + self._steps + 1)
            copy = kept if isinstance(kept, KVSegment) else kept.cut(length)
            assert copy is not None
            row.restore([copy])
            if caches is None:
                caches = row
            else:
                caches.join(row)
        assert caches is not None
        return caches

    def _run(
        self,
        rows: Sequence[int],
        width: int,
        differences: LogitDifferences,
        *,
        in_mode: bool,
        uneven: bool = False,
    ) -> Generator[None, None, bool]:
        """Runs a step of `width` tokens of these texts; -1 is the last. `uneven`: every other row takes one token.
        Returns whether logits differed."""
        rows = [row % len(self._texts) for row in rows]
        caches, differed, places = self._start(rows), False, [0] * len(rows)
        # After an uneven step another one, which continues from what its padding has left.
        for step in range(2 if uneven else 1):
            widths = [1 if step or (uneven and row % 2) else width for row in range(len(rows))]
            fed = [self._texts[text][at : at + taken] for text, at, taken in zip(rows, places, widths, strict=True)]
            with self._mode(in_mode):
                logits = caches.forward(pad_rows(fed), widths)
            mx.eval(logits, caches.arrays())
            for row, text in enumerate(rows):
                expected = self._alone.get(text, [])[places[row] : places[row] + widths[row]]
                if row in (0, 1, len(rows) - 1):
                    for at, alone in enumerate(expected):
                        differed |= _note(logits[row, at], alone, differences)
            places = [at + taken for at, taken in zip(places, widths, strict=True)]
            yield None
        caches.clear()
        return differed


def _note(logits: mx.array, alone: mx.array, differences: LogitDifferences) -> bool:
    same, off = compare(logits, alone, spread_of(alone))
    differences.largest = max(differences.largest, off)
    if same:
        differences.moved.append(0.0)
        return False
    a, b = alone.astype(mx.float32), logits.astype(mx.float32)
    first = mx.argmax(a)
    second = mx.argmax(mx.where(mx.arange(a.size) == first, -mx.inf, a))
    differences.moved.append(abs(float(((a[first] - a[second]) - (b[first] - b[second])).item())))
    return True
