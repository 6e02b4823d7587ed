"""How far a model's results for a token depend, on this machine, on what else is computed with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FLIPS_OF = 1000  # tokens of a text, in the estimate of its changed choices
_MOST_NAMED = 3


class OperationKind(StrEnum):
    """Kinds of operations."""

    LINEAR = "linear"
    NORM = "norm"
    ROTATION = "rotary embedding"
    CONVOLUTION = "convolution"
    STATE = "state update"
    ATTENTION = "attention"
    BLOCK = "block"  # of several operations, none of which differs by itself
    FORWARD = "whole forward"


@dataclass(frozen=True, slots=True)
class OperationExactness:
    """An operation, and whether its result for a token is that of the token alone, bit by bit.

    `width`: the fewest tokens in a call from which it differs; `batch`: the fewest sequences of one token each;
    `padding`: whether it differs beside sequences of another length; `slice_width`: the fewest tokens of a slice of a
    prompt. None: it does not differ at any that was tried. `difference`: the largest, in standard deviations of the
    results."""

    name: str
    kind: OperationKind
    width: int | None = None
    batch: int | None = None
    padding: bool = False
    slice_width: int | None = None
    difference: float = 0.0

    @property
    def differs(self) -> bool:
        return self.padding or any(at is not None for at in (self.width, self.batch, self.slice_width))

    @property
    def where(self) -> str:
        """Says where it differs: "from 13 tokens, 13 sequences"."""
        where = [f"{at} {of}" for at, of in ((self.width, "tokens"), (self.batch, "sequences")) if at is not None]
        where += ["unequal lengths"] if self.padding else []
        where += [] if self.slice_width is None else [f"slices of {self.slice_width}"]
        return f"from {', '.join(where)}" if where else "nowhere"

    def in_words(self) -> str:
        """Says where it differs and by how much: "from 13 tokens, 13 sequences, by 2e-06"."""
        return f"{self.where}, by {self.difference:.1g}" if self.differs else self.where


@dataclass(frozen=True, slots=True)
class Exactness:
    """The findings of a measurement of a model on this machine.

    `exact`: whether `engine.exact` is set, so that decoding avoids what differs; `by_token`: it does so by a forward
    for each token of each sequence. `forward`: the whole forward as it decodes now. `operations`: those that differ by
    themselves, of `measured`. `flips`: the expected changed choices in FLIPS_OF tokens of a greedy text, estimated from
    `positions` logit gaps. `seconds`: that the measurement took."""

    exact: bool
    by_token: bool
    forward: OperationExactness
    operations: tuple[OperationExactness, ...] = ()
    measured: int = 0
    flips: float = 0.0
    positions: int = 0
    seconds: float = 0.0

    def in_words(self) -> str:
        """Summarises it in a line."""
        if self.exact:
            how = "each token by itself" if self.by_token else "what differs by itself"
            if not self.forward.differs:
                return f"exact: computes {how}; a text is the same at every depth and batch size"
            return f"engine.exact computes {how}, and the whole forward differs {self.forward.in_words()}"
        if not self.forward.differs:
            return "a token's logits are the same at every depth and batch size that was tried"
        return f"logits differ {self.forward.in_words()}; about {self.flips:.2g} choices in {FLIPS_OF:,} tokens change"

    @property
    def named(self) -> str:
        """The operations that differ, by name, those that differ most first."""
        worst = sorted(self.operations, key=lambda one: -one.difference)
        more = f" and {len(worst) - _MOST_NAMED} more" if len(worst) > _MOST_NAMED else ""
        return ", ".join(one.name for one in worst[:_MOST_NAMED]) + more
