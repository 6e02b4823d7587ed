"""What is asked of a soak."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from draftd.acceptance.arms import AUTOREGRESSIVE, Arm
from draftd.acceptance.asked import Asked, OptionError
from draftd.acceptance.soak.windows import WINDOW_SECONDS
from draftd.core import DrafterKind
from draftd.protocol import DRAFTERS

if TYPE_CHECKING:
    from draftd.v1 import inference_pb2 as pb

SECONDS = 600.0
STREAMS = 4
_LONGEST = 7 * 86_400.0
_MOST_STREAMS = 64
_MOST_BLOCK = 64
_SHORTEST_ANSWER = 8


@dataclass(frozen=True, slots=True)
class SoakOptions(Asked):
    """Raises OptionError. What is None is the daemon's own, and is settled before the soak begins."""

    stage: ClassVar[str] = "the soak"

    duration: float = SECONDS
    streams: int | None = None  # requests at a time: four, or fewer where the daemon decodes fewer together
    block_length: int | None = None  # 0 is autoregressive
    drafter: DrafterKind | None = None
    max_tokens: int | None = None  # longest answer; lengths are mixed, from an eighth of it
    window_seconds: float = WINDOW_SECONDS
    sample_seconds: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, number, least, most in (
            ("duration", self.duration, 1.0, _LONGEST),
            ("window_seconds", self.window_seconds, 0.1, _LONGEST),
            ("sample_seconds", self.sample_seconds, 0.01, 60.0),
        ):
            if not (math.isfinite(number) and least <= number <= most):
                raise OptionError(name, number, f"a number from {least:g} to {most:g}")
        for name, value, fewest, highest in (
            ("streams", self.streams, 1, _MOST_STREAMS),
            ("block_length", self.block_length, 0, _MOST_BLOCK),
            ("max_tokens", self.max_tokens, _SHORTEST_ANSWER, 2**31 - 1),
            ("seed", self.seed, 0, 2**63 - 1),
        ):
            if value is not None and (isinstance(value, bool) or not fewest <= value <= highest):
                raise OptionError(name, value, f"a whole number from {fewest} to {highest}")

    def settled(self, model: pb.GetModelResponse, max_batch: int | None) -> Self:
        """With the daemon's own in the place of None. Raises OptionError for what this daemon cannot do."""
        offered = [DRAFTERS[kind] for kind in model.drafters]
        block = self.block_length
        if block is None:
            block = model.max_draft_tokens if offered else 0
        elif block > (model.max_draft_tokens if offered else 0):
            most = model.max_draft_tokens if offered else 0
            why = f" (it does not speculate: {model.speculation_reason})" if not offered else ""
            raise OptionError("block_length", block, f"up to {most}, as this daemon drafts{why}")
        drafter = self.drafter or (offered[0] if offered else None)
        if block and drafter not in offered:
            raise OptionError("drafter", drafter, f"one that this daemon offers: {', '.join(map(str, offered))}")
        return replace(
            self,
            streams=self.streams or min(STREAMS, max_batch or STREAMS),
            block_length=block,
            drafter=drafter if block else None,
            max_tokens=self.max_tokens or max(_SHORTEST_ANSWER, min(256, model.context_length // 4)),
        )

    @property
    def arm(self) -> Arm:
        """Of options that are settled."""
        assert self.block_length is not None, self
        assert self.streams is not None, self
        if not self.block_length:
            return replace(AUTOREGRESSIVE, concurrency=self.streams)
        return Arm(self.block_length, self.drafter, concurrency=self.streams)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the answers."""
        assert self.max_tokens is not None, self
        return tuple(max(1, self.max_tokens // share) for share in (8, 4, 2, 1))
