"""Whether, on this machine, a model's results for a token depend on what is computed with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FLIPS_OF = 1000  # tokens of a greedy text, in the estimate of its flips
_MOST_NAMED = 3
_IN_SMALLER_CALLS = "operations that differ are computed in smaller calls"


class OperationKind(StrEnum):
    """Kinds of operations."""

    LINEAR = "linear"
    NORM = "norm"
    ROTATION = "rotary embedding"
    CONVOLUTION = "convolution"
    STATE = "state update"
    ATTENTION = "attention"
    COMPOSITE = "composite"  # a layer made of layers, measured while those compute tokens alone
    FORWARD = "whole forward"


@dataclass(frozen=True, slots=True)
class OperationExactness:
    """An operation, and the smallest sizes at which a token's result is not, bit for bit, that of the token alone.

    `width`: tokens in one call; `batch`: sequences of one token each; `slice_width`: tokens of a prompt slice. None: it
    does not differ at any size tried. `padding`: whether it differs beside sequences of another length. `difference`:
    the largest, in standard deviations of the results."""

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
        """Says where it differs: "first at 13 tokens, 13 sequences"."""
        sizes = [f"{at} {of}" for at, of in ((self.width, "tokens"), (self.batch, "sequences")) if at is not None]
        where = [f"first at {', '.join(sizes)}"] if sizes else []
        where += ["with unequal lengths"] if self.padding else []
        where += [] if self.slice_width is None else [f"in slices of {self.slice_width}"]
        return ", ".join(where) or "at no size tried"

    def in_words(self) -> str:
        """Says where it differs and by how much: "first at 13 tokens; at most 2e-06 standard deviations"."""
        return f"{self.where}; at most {self.difference:.1g} standard deviations" if self.differs else self.where


@dataclass(frozen=True, slots=True)
class Exactness:
    """The result of a measurement of a model on this machine.

    `exact`: whether `engine.exact` is set; `by_token`: whether each token of each sequence then gets a forward pass of
    its own. `forward`: the whole forward pass as it decodes now. `operations`: each that differs; `measured`: number of
    kinds of operations measured. `flips`: the expected tokens of FLIPS_OF greedy ones that would change, estimated from
    `positions` logit gaps. `seconds`: the time that the measurement took."""

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
        where = self.forward.in_words()
        if self.exact:
            how = "one forward pass for each token" if self.by_token else _IN_SMALLER_CALLS
            if not self.forward.differs:
                return f"exact: {how}; a text is the same at every depth and batch size"
            return f"engine.exact is on, but logits still differ: {where}"
        if not self.forward.differs:
            return "a token's logits are the same at every depth and batch size tried"
        flips = f"about {self.flips:.2g} of {FLIPS_OF:,} greedy tokens would change"
        return f"logits are not the same at every size: {where}; {flips}"

    @property
    def named(self) -> str:
        """The operations that differ, by name, those that differ most first."""
        worst = sorted(self.operations, key=lambda one: -one.difference)
        more = f" and {len(worst) - _MOST_NAMED} more" if len(worst) > _MOST_NAMED else ""
        return ", ".join(one.name for one in worst[:_MOST_NAMED]) + more
