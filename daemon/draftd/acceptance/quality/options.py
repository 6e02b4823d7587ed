"""What is asked of a quality run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from draftd.acceptance.arms import Arm
from draftd.acceptance.asked import Asked, OptionError
from draftd.core import DrafterKind
from draftd.protocol import DRAFTERS

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

_MOST_BLOCK = 64


@dataclass(frozen=True, slots=True)
class QualityOptions(Asked):
    """Raises OptionError. What is None is the daemon's own, and is settled before the run begins.

    Greedy answers are always the same, and are asked for once. `temperature` asks for `repeats` others besides, each
    with a seed of its own.
    """

    stage: ClassVar[str] = "quality"

    block_length: int | None = None
    drafter: DrafterKind | None = None
    temperature: float = 0.0
    repeats: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise OptionError("temperature", self.temperature, "a number from 0 to 100; 0 asks for no others")
        for name, value, least, most in (
            ("block_length", self.block_length, 1, _MOST_BLOCK),
            ("repeats", self.repeats, 1, 1000),
            ("seed", self.seed, 0, 2**63 - 1),
        ):
            if value is not None and (isinstance(value, bool) or not least <= value <= most):
                raise OptionError(name, value, f"a whole number from {least} to {most}")

    def settled(self, model: pb.GetModelResponse) -> Self:
        """With the daemon's own in the place of None. Raises OptionError for what this daemon cannot do."""
        offered = [DRAFTERS[kind] for kind in model.drafters]
        if not offered or not model.max_draft_tokens:
            raise OptionError("daemon", "no drafts", f"one that speculates: {model.speculation_reason}")
        block = self.block_length or model.max_draft_tokens
        if block > model.max_draft_tokens:
            raise OptionError("block_length", block, f"up to {model.max_draft_tokens}, as this daemon drafts")
        drafter = self.drafter or offered[0]
        if drafter not in offered:
            raise OptionError("drafter", drafter, f"one that this daemon offers: {', '.join(map(str, offered))}")
        return replace(self, block_length=block, drafter=drafter)

    @property
    def arms(self) -> tuple[tuple[Arm, Arm], ...]:
        """Each speculative arm with its autoregressive one, of options that are settled."""
        assert self.block_length, self
        greedy = Arm(self.block_length, self.drafter)
        both = (greedy, replace(greedy, temperature=self.temperature)) if self.temperature else (greedy,)
        return tuple((arm.baseline, arm) for arm in both)
