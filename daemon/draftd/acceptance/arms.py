"""An arm is one way of decoding that is measured against others, on the same prompts and in turn with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from draftd.core import DepthMode, DrafterKind, ModePreference


@dataclass(frozen=True, slots=True)
class Arm:
    """`block_length` tokens are drafted each round; 0 is autoregressive, and then `drafter` is None. Where it is
    `automatic`, the daemon chooses anew each round how many up to that many, and which drafter: `drafter` is then the
    one whose place others may take.

    `concurrency` requests run at a time.
    """

    block_length: int
    drafter: DrafterKind | None = DrafterKind.DRAFT_MODEL
    temperature: float = 0.0
    concurrency: int = 1
    automatic: bool = False

    def __post_init__(self) -> None:
        assert (self.block_length == 0) == (self.drafter is None), self
        assert self.block_length or not self.automatic, self

    @property
    def id(self) -> str:
        """Stable, short, and good in a file: ar, k4, auto6, k4-prompt_lookup, k4-t0.8, ar-x4."""
        parts = [f"{'auto' if self.automatic else 'k'}{self.block_length}" if self.block_length else "ar"]
        if self.drafter not in (None, DrafterKind.DRAFT_MODEL):
            parts.append(str(self.drafter))
        if self.temperature:
            parts.append(f"t{self.temperature:g}")
        if self.concurrency > 1:
            parts.append(f"x{self.concurrency}")
        return "-".join(parts)

    @classmethod
    def parse(cls, name: str) -> Arm:
        """The arm of that id. Raises ValueError."""
        found = re.fullmatch(r"(?:ar|(k|auto)([1-9]\d*))(?:-([a-z_]+))?(?:-t([\d.e+-]+))?(?:-x(\d+))?", name)
        if found is None:
            raise ValueError(
                f"an arm's id: got {name!r}; allowed: such as ar, k4, auto6, k4-prompt_lookup, k4-t0.8, ar-x4"
            )
        how, length, drafter, temperature, together = found.groups()
        kind = DrafterKind(drafter or DrafterKind.DRAFT_MODEL) if length else None
        return cls(int(length or 0), kind, float(temperature or 0), int(together or 1), how == "auto")

    @property
    def speculative(self) -> bool:
        return self.block_length > 0

    @property
    def mode(self) -> ModePreference:
        return ModePreference.SPECULATIVE if self.speculative else ModePreference.AUTOREGRESSIVE

    @property
    def depth_mode(self) -> DepthMode:
        return DepthMode.AUTOMATIC if self.automatic else DepthMode.FIXED

    @property
    def baseline(self) -> Arm:
        """The autoregressive arm that it is measured against."""
        return replace(self, block_length=0, drafter=None, automatic=False)


AUTOREGRESSIVE = Arm(0, None)
