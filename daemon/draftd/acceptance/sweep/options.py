"""What is asked of a sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from draftd.acceptance.asked import Asked, OptionError
from draftd.acceptance.sweep.prompts import GROUPS
from draftd.client.prompts import Prompt
from draftd.core import DrafterKind

LONGEST_BLOCK = 64
MOST_AT_ONCE = 256
HOTTEST = 100.0


@dataclass(frozen=True, slots=True)
class SweepOptions(Asked):
    """Raises OptionError. The autoregressive arm is measured at every temperature and concurrency, asked or not.

    One knob is turned at a time, from a base: `block_length` tokens a round, the first drafter, temperature 0, one
    request at a time. What the daemon cannot do is left out and said.
    """

    stage: ClassVar[str] = "the sweep"

    block_lengths: tuple[int, ...] = (0, 2, 3, 4, 6)
    block_length: int = 4
    drafters: tuple[DrafterKind, ...] | None = None  # None: all that the daemon offers
    temperatures: tuple[float, ...] = (0.8,)  # besides 0
    concurrency: tuple[int, ...] = (2, 4)  # besides 1
    groups: tuple[str, ...] = GROUPS
    each: int = 4  # prompts of each workload class; a tier is asked whole
    prompts: tuple[Prompt, ...] = ()  # of one's own, besides the groups
    repetitions: int = 3
    max_tokens: int | None = None  # None: each prompt's own
    cool_down: float = 0.1  # seconds between two requests
    heat_seconds: float = 300.0  # longest wait for a machine that throttles
    seed: int = 0

    def __post_init__(self) -> None:
        _whole("block_lengths", self.block_lengths, 0, LONGEST_BLOCK)
        _whole("block_length", (self.block_length,), 1, LONGEST_BLOCK)
        _whole("concurrency", self.concurrency, 1, MOST_AT_ONCE)
        _whole("each", (self.each,), 1, 1000)
        _whole("repetitions", (self.repetitions,), 1, 1000)
        _whole("seed", (self.seed,), 0, 2**63 - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", (self.max_tokens,), 2, 2**31 - 1)  # of a single token nothing but the first is timed
        for name, value, most in (
            *(("temperatures", one, HOTTEST) for one in self.temperatures),
            ("cool_down", self.cool_down, 3600.0),
            ("heat_seconds", self.heat_seconds, 86_400.0),
        ):
            if not (math.isfinite(value) and 0 <= value <= most):
                raise OptionError(name, value, f"a number from 0 to {most:g}")
        for temperature in self.temperatures:
            if float(f"{temperature:g}") != temperature:
                raise OptionError("temperatures", temperature, "six digits at most: arms are named by them")
        for name in ("block_lengths", "drafters", "temperatures", "concurrency", "groups"):
            values = getattr(self, name) or ()
            if len(set(values)) < len(values):
                raise OptionError(name, values, "each no more than once")
        for group in self.groups:
            if group not in GROUPS:
                raise OptionError("groups", group, ", ".join(GROUPS))
        if not self.groups and not self.prompts:
            allowed = f"at least one of {', '.join(GROUPS)}, or prompts of your own"
            raise OptionError("groups", self.groups, allowed)

    @property
    def longest_block(self) -> int:
        """That a daemon must allow for all of it to be measured."""
        return max((self.block_length, *self.block_lengths))


def _whole(name: str, values: tuple[int, ...], least: int, most: int) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise OptionError(name, value, f"a whole number from {least} to {most}")
