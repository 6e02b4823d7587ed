"""A model of what several ranks gain: not a measurement. Tensor parallel decoding and prefill of one sequence.

With n ranks, L layers, hidden size H, and a forward of w tokens:

    one rank    T1(w) = v(w) · B / M
    n ranks     Tn(w) = v(w) · (u + (B − u) / n) / M + (2L + 1) · c(w · H · 2 bytes)
    collective  c(b)  = o + (n − 1) · r + 2 (n − 1) / n · b / β

B: bytes of the weights, of which u (embedding and head, which mlx-lm does not shard) are read whole by every rank. M:
bytes of weights a second; decoding is bound by memory (Leviathan 2023, arXiv 2211.17192, and any roofline). v(w): a
forward of w tokens over one of a single token. Two sums a layer, after the attention and after the MLP (mlx-lm's
`shard()`, as Megatron-LM's, arXiv 1909.08053), and one that tells all ranks the tokens. c: a ring sends 2 (n − 1)
messages of b / n bytes, one after the other (Patarasuk and Yuan 2009); r: a round trip, o: what the library takes.
A prompt is bound by arithmetic: T1(w) = 2 · P · w / F, of which the share that is sharded goes by n.

A speculative step drafts k tokens on rank 0 alone, verifies k + 1 in one forward, and emits
E = (1 − α^(k+1)) / (1 − α).
"""

from __future__ import annotations

from dataclasses import dataclass

_BYTES = 2  # of an activation, bf16


@dataclass(frozen=True, slots=True)
class Link:
    """`round_trip`: seconds. `bandwidth`: bytes a second, one way. `own`: seconds a collective takes besides."""

    name: str
    round_trip: float
    bandwidth: float
    own: float

    def collective(self, ranks: int, size: float) -> float:
        """Seconds of a sum of `size` bytes over all ranks."""
        return self.own + (ranks - 1) * self.round_trip + 2 * (ranks - 1) / ranks * size / self.bandwidth


@dataclass(frozen=True, slots=True)
class Machine:
    """`reads`: bytes of weights a second; `computes`: operations a second of a prompt; `wide`: v(4), a forward of four
    tokens over one of a single token."""

    name: str
    reads: float
    computes: float
    wide: float


@dataclass(frozen=True, slots=True)
class Shape:
    """`parameters` in all; `bits` of each as it lies in memory, scales among them."""

    name: str
    layers: int
    hidden: int
    vocabulary: int
    parameters: float
    bits: float = 4.5
    tied: bool = False  # embedding and head are one matrix

    @property
    def bytes(self) -> float:
        """That a token reads: all but the rows of the embedding that it does not look up."""
        skipped = 0 if self.tied else self.vocabulary * self.hidden
        return (self.parameters - skipped) * self.bits / 8

    @property
    def whole(self) -> float:
        """Bytes of the head, which every rank reads whole."""
        return self.vocabulary * self.hidden * self.bits / 8


@dataclass(frozen=True, slots=True)
class Drafts:
    """`share`: what drafting a token costs, of a plain step on one machine."""

    depth: int = 3
    acceptance: float = 0.7
    share: float = 0.06

    @property
    def emitted(self) -> float:
        return (1 - self.acceptance ** (self.depth + 1)) / (1 - self.acceptance)


def forward(shape: Shape, machine: Machine, ranks: int, link: Link, width: int = 1) -> float:
    """Seconds of one forward of 1 or 4 tokens."""
    wide = 1.0 if width == 1 else machine.wide
    read = shape.whole + (shape.bytes - shape.whole) / ranks
    return wide * read / machine.reads + _together(shape, ranks, link, width)


def step(shape: Shape, machine: Machine, ranks: int, link: Link, drafts: Drafts) -> float:
    """Seconds of a speculative step."""
    alone = forward(shape, machine, 1, link)
    drafting = drafts.depth * drafts.share * alone
    return drafting + forward(shape, machine, ranks, link, drafts.depth + 1)


def prefill(shape: Shape, machine: Machine, ranks: int, link: Link, tokens: int) -> float:
    """Seconds of a prompt; its head is computed for the last token only."""
    sharded = shape.parameters - shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return 2 * sharded * tokens / ranks / machine.computes + _together(shape, ranks, link, tokens)


def _together(shape: Shape, ranks: int, link: Link, width: int) -> float:
    if ranks == 1:
        return 0.0
    return (2 * shape.layers + 1) * link.collective(ranks, width * shape.hidden * _BYTES)


def longest_collective(shape: Shape, machine: Machine, ranks: int) -> float:
    """Seconds of a collective below which plain decoding on so many ranks is faster than on one."""
    read = (shape.bytes - shape.whole) * (1 - 1 / ranks)
    return read / machine.reads / (2 * shape.layers + 1)
