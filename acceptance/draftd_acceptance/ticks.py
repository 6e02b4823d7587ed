"""An arm is a way of decoding; a tick is one request of an arm, raw; figures are what a tick shows.

Arms are measured on the same prompts, in turn. Every figure of a run is derived from its ticks, and can be again.
Seconds; None, or nothing, where there is nothing to measure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from draftd.client.timing import TimedChunk, time_to_first_token
from draftd.core import DRAFT_MODEL, DecodeMode, DepthMode, DrafterName, FinishReason, WorkloadClass
from draftd.counts import DraftCounts

Key = tuple[str, str, str, int]  # of a request: Arm.id, prompt's group and name, repetition


class Stage(StrEnum):
    """What a tick was measured for."""

    SWEEP = "sweep"
    SOAK = "soak"
    QUALITY = "quality"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run a request stands. `session` is which of its starts; a run that was interrupted has several."""

    stage: Stage
    session: int
    arm: str  # Arm.id
    repetition: int
    prompt: str
    group: str
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    warm_up: bool = False  # measured, and not counted

    @property
    def key(self) -> tuple[str, str]:
        """Which prompt it is: two groups may have one of the same name."""
        return self.group, self.prompt


@dataclass(frozen=True, slots=True)
class Granted:
    """How the daemon said that it would decode: it may allow less than was asked."""

    mode: DecodeMode
    max_draft_tokens: int
    drafter: DrafterName | None
    level: str
    variant: str
    reason: str
    depth_mode: DepthMode = DepthMode.FIXED  # all that there was before there was a choice


@dataclass(frozen=True, slots=True)
class Served:
    """The daemon's own account of a request, in seconds; None where it was not reached."""

    queue: float | None
    prefill: float | None
    time_to_first_token: float | None  # from its arrival there
    total: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """`elapsed` is monotonic seconds from the session's start until it was asked, `asked_at` Unix time.
    `ended` is when the stream did, in seconds after it was asked. `error` is empty where it was answered in full."""

    place: Place
    elapsed: float
    asked_at: float
    ended: float
    chunks: tuple[TimedChunk, ...]
    error: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: FinishReason | None = None
    granted: Granted | None = None
    degraded: str = ""
    served: Served | None = None
    counts: DraftCounts = field(default_factory=DraftCounts)
    digest: str = ""  # SHA-256 of the token ids: two answers are the same where it is
    text: str | None = None  # kept where an answer is judged


@dataclass(frozen=True, slots=True)
class Arm:
    """`block_length` tokens are drafted each step; 0 is autoregressive, and then `drafter` is None. Where it is
    `automatic`, the daemon chooses anew each step how many up to that many, and which drafter: `drafter` is then the
    one whose place others may take.

    `concurrency` requests run at a time.
    """

    block_length: int
    drafter: DrafterName | None = DRAFT_MODEL
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
        if self.drafter not in (None, DRAFT_MODEL):
            parts.append(str(self.drafter))
        if self.temperature:
            parts.append(f"t{self.temperature:g}")
        if self.concurrency > 1:
            parts.append(f"x{self.concurrency}")
        return "-".join(parts)

    @classmethod
    def parse(cls, name: str) -> Arm | None:
        """The arm of that id; None for one that no version of draftd gave."""
        temperature = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
        found = re.fullmatch(rf"(?:ar|(k|auto)([1-9]\d*))(?:-([a-z_]+))?(?:-t({temperature}))?(?:-x(\d+))?", name)
        if found is None:
            return None
        how, length, drafter, temperature, together = found.groups()
        kind = DrafterName(drafter or DRAFT_MODEL) if length else None
        return cls(int(length or 0), kind, float(temperature or 0), int(together or 1), how == "auto")

    @property
    def speculative(self) -> bool:
        return self.block_length > 0

    @property
    def depth_mode(self) -> DepthMode:
        return DepthMode.AUTOMATIC if self.automatic else DepthMode.FIXED

    @property
    def baseline(self) -> Arm:
        """The autoregressive arm that it is measured against."""
        return replace(self, block_length=0, drafter=None, automatic=False)


AUTOREGRESSIVE = Arm(0, None)


def usable(tick: Tick) -> bool:
    """Whether it counts: answered to its end, and not to warm up."""
    ended = tick.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    return ended and not tick.error and not tick.place.warm_up


def network(tick: Tick) -> float | None:
    """What the way there and back adds to the time to the first token, over the daemon's own."""
    here, there = time_to_first_token(tick), tick.served.time_to_first_token if tick.served is not None else None
    return here - there if here is not None and there is not None else None


def time_per_output_token(tick: Tick) -> float | None:
    """(duration - TTFT) / (output tokens - 1), as the GenAI conventions define it; None below two tokens."""
    first = time_to_first_token(tick)
    return (tick.ended - first) / (tick.output_tokens - 1) if first is not None and tick.output_tokens > 1 else None


def output_tokens_per_second(tick: Tick) -> float | None:
    """All tokens over the whole time, the wait for the first included."""
    return tick.output_tokens / tick.ended if tick.output_tokens and tick.ended > 0 else None
