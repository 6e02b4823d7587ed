"""The result for one architecture. Imports no MLX."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

COLUMNS = ("served", "batched", "speculating", "prefix", "identical", "quantised", "forms")


@dataclass
class Result:
    """The result for one architecture. `reasons` explains each of COLUMNS that is false; `notes` has further remarks.

    - served: mlx-lm's own loop runs it on this backend, and the engine answers every request.
    - batched: one forward serves all sequences.
    - speculating: a request with a draft model drafts from its first token to its last.
    - prefix: a text that continues is not computed again.
    - identical: every text is mlx-lm's own, or the sampled one that the same seed gave without drafts; in ties the two
      candidates were practically equal.
    - quantised: the same holds with 4-bit weights.
    - forms: with its configuration as transformers 4 or transformers 5 writes it, its logits are mlx-lm's.
    """

    name: str
    caches: str = ""  # kinds of the layers' caches, as mlx-lm makes them
    served: bool = False
    batched: bool = False
    speculating: bool = False
    prefix: bool = False
    identical: bool = False
    quantised: bool = False
    forms: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    texts: int = 0  # that were compared
    ties: list[str] = field(default_factory=list)  # of these, those that differ by a tie
    different: list[str] = field(default_factory=list)  # and those that differ otherwise
    consistent: bool = True  # mlx-lm's own text does not depend on how a prompt is cut into slices
    distinct: int = 0  # tokens that occur in the reference texts
    agreement: float = 0.0  # share of tokens that the draft has right
    drafted: int = 0
    accepted: int = 0
    rollbacks: int = 0
    looked_up: int = 0  # tokens that prompt lookup drafted
    continued: int = 0  # tokens read from the prefix cache for a text that goes on
    shared: int = 0  # and for one that shares a part of its prompt
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        """Returns True if mlx-lm runs it, but the engine does not serve it, changes a text or does not read a
        configuration."""
        if self.served and not self.forms:
            return True
        return self.consistent and (bool(self.different) or (not self.served and bool(self.texts)))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, found: dict[str, Any]) -> Result:
        return cls(**found)
