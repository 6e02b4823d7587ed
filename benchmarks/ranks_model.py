"""Models what several ranks gain in tensor-parallel decoding and prefill of one sequence. Nothing here is measured.

With n ranks, L layers, hidden size H, and a forward of w tokens:

    one rank    T1(w) = v(w) · B / M
    n ranks     Tn(w) = v(w) · (u + (B − u) / n) / M + (2L + 1) · c(w · H · 2 bytes)
    collective  c(b)  = o + (n − 1) · r + 2 (n − 1) / n · b / β

B: bytes of the weights. u: those of the output head, which mlx-lm does not shard, so that every rank reads them. M:
bytes of weights read per second, because memory bounds decoding (Leviathan 2023, arXiv 2211.17192, and any roofline).
v(w): time of a forward of w tokens divided by that of one token. Each layer has two sums, after the attention and after
the MLP (mlx-lm's `shard()`, as Megatron-LM's, arXiv 1909.08053); one more collective sends the tokens to all ranks. c:
a ring sends 2 (n − 1) messages of b / n bytes, one after the other (Patarasuk and Yuan 2009); r: a round trip, o: the
library's own time, β: bandwidth. Arithmetic bounds a prompt: T1(w) = 2 · P · w / F, whose sharded share is divided by
n.

A speculative step drafts k tokens on rank 0 alone, verifies k + 1 in one forward, and emits E = (1 − α^(k+1)) / (1 − α)
tokens, where α is the acceptance of a drafted token.
"""

from __future__ import annotations

from dataclasses import dataclass

_BYTES = 2  # bytes of an activation, in bf16


@dataclass(frozen=True, slots=True)
class Link:
    """A network link. `round_trip` is seconds, `bandwidth` bytes per second in one direction, and `own` the seconds
    that the library adds to each collective."""

    name: str
    round_trip: float
    bandwidth: float
    own: float

    def collective(self, ranks: int, size: float) -> float:
        """Returns the seconds of a sum (all-reduce) of `size` bytes over all ranks."""
        return self.own + (ranks - 1) * self.round_trip + 2 * (ranks - 1) / ranks * size / self.bandwidth


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine. `reads` is bytes of weights read per second, `computes` operations per second in prefill. `wide` is
    v(4): a forward's time for four tokens divided by that for one token."""

    name: str
    reads: float
    computes: float
    wide: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's size. `parameters` is their total number; `bits` is the bits of each in memory, scales included."""

    name: str
    layers: int
    hidden: int
    vocabulary: int
    parameters: float
    bits: float = 4.5
    tied: bool = False  # embedding and head are one matrix

    @property
    def bytes(self) -> float:
        """Bytes of weights that decoding a token reads: all, except an embedding that is not tied to the head."""
        skipped = 0 if self.tied else self.vocabulary * self.hidden
        return (self.parameters - skipped) * self.bits / 8

    @property
    def whole(self) -> float:
        """Bytes of the output head, which every rank reads whole."""
        return self.vocabulary * self.hidden * self.bits / 8


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculation's parameters. `depth` is draft tokens a step and `acceptance` the probability that one is accepted.
    `share` is the time to draft a token divided by that of a plain step on one machine."""

    depth: int = 3
    acceptance: float = 0.7
    share: float = 0.06

    @property
    def emitted(self) -> float:
        return (1 - self.acceptance ** (self.depth + 1)) / (1 - self.acceptance)


def forward(shape: Shape, machine: Machine, ranks: int, link: Link, width: int = 1) -> float:
    """Returns the seconds of one forward of `width` tokens, 1 or 4."""
    wide = 1.0 if width == 1 else machine.wide
    read = shape.whole + (shape.bytes - shape.whole) / ranks
    return wide * read / machine.reads + _together(shape, ranks, link, width)


def step(shape: Shape, machine: Machine, ranks: int, link: Link, drafts: Drafts) -> float:
    """Returns the seconds of a speculative step: drafting on one rank, then a forward that verifies on all ranks."""
    alone = forward(shape, machine, 1, link)
    drafting = drafts.depth * drafts.share * alone
    return drafting + forward(shape, machine, ranks, link, drafts.depth + 1)


def prefill(shape: Shape, machine: Machine, ranks: int, link: Link, tokens: int) -> float:
    """Returns the seconds to process a prompt of `tokens` tokens. The head's work is left out: it computes the last
    token only."""
    sharded = shape.parameters - shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return 2 * sharded * tokens / ranks / machine.computes + _together(shape, ranks, link, tokens)


def _together(shape: Shape, ranks: int, link: Link, width: int) -> float:
    if ranks == 1:
        return 0.0
    return (2 * shape.layers + 1) * link.collective(ranks, width * shape.hidden * _BYTES)


def longest_collective(shape: Shape, machine: Machine, ranks: int) -> float:
    """Returns the seconds a collective may take before plain decoding on `ranks` ranks is slower than on one."""
    read = (shape.bytes - shape.whole) * (1 - 1 / ranks)
    return read / machine.reads / (2 * shape.layers + 1)
