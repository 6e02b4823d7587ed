"""An arm is a way of decoding; a tick is the raw record of one request of an arm; figures are computed from ticks. A
sample is one reading of the machine by the daemon: memory, pressure, swap, heat, power.

Arms are measured on the same prompts, in turn. Every figure of a run can be derived from its ticks again. Times are
seconds; None or empty means that there is nothing to measure.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum

from draftd.client.client import StatusReply
from draftd.client.timing import TimedChunk, time_to_first_token
from draftd.core import DRAFT_MODEL, DecodeMode, DepthMode, DrafterName, FinishReason, WorkloadClass
from draftd.counts import DraftCounts
from draftd.protocol import plain

Key = tuple[str, str, str, int]  # of a request: Arm.id, prompt's group and name, repetition


class Stage(StrEnum):
    """The stage of a run that a tick belongs to."""

    SWEEP = "sweep"
    SOAK = "soak"
    QUALITY = "quality"


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A request's place in a run. `session` counts the run's starts; an interrupted run has several."""

    stage: Stage
    session: int
    arm: str  # Arm.id
    repetition: int
    prompt: str
    group: str
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    warm_up: bool = False  # measured but not counted

    @property
    def key(self) -> tuple[str, str]:
        """The prompt's key: two groups may have a prompt of the same name."""
        return self.group, self.prompt


@dataclass(frozen=True, slots=True)
class GrantedPlan:
    """The decoding plan that the daemon reported: it may allow less than requested."""

    mode: DecodeMode
    max_draft_tokens: int
    drafter: DrafterName | None
    level: str
    variant: str
    reason: str
    depth_mode: DepthMode = DepthMode.FIXED  # older runs had no choice


@dataclass(frozen=True, slots=True)
class ServerTiming:
    """The daemon's own times of a request, in seconds; None for a stage that it did not reach."""

    queue: float | None
    prefill: float | None
    time_to_first_token: float | None  # from its arrival there
    total: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """`elapsed` is monotonic seconds from the session's start to the request, `asked_at` Unix time. `ended` is the
    stream's end, in seconds after the request. `error` is empty if the answer is complete."""

    place: RunPlace
    elapsed: float
    asked_at: float
    ended: float
    chunks: tuple[TimedChunk, ...]
    error: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: FinishReason | None = None
    granted: GrantedPlan | None = None
    degraded: str = ""
    served: ServerTiming | None = None
    counts: DraftCounts = field(default_factory=DraftCounts)
    digest: str = ""  # SHA-256 of the token ids: equal for equal answers
    text: str | None = None  # kept if the answer is judged


@dataclass(frozen=True, slots=True)
class Arm:
    """`block_length` tokens are drafted each step; 0 is autoregressive, and then `drafter` is None. `concurrency`
    requests run at a time. If `automatic`, the daemon chooses the number up to `block_length` and the drafter in each
    step; others may then replace `drafter`."""

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
        """A stable short name that is valid in file names: ar, k4, auto6, k4-prompt_lookup, k4-t0.8, ar-x4."""
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
        """Returns the arm of that id; None if no version of draftd gave it."""
        temperature = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
        match = re.fullmatch(rf"(?:ar|(k|auto)([1-9]\d*))(?:-([a-z_]+))?(?:-t({temperature}))?(?:-x(\d+))?", name)
        if match is None:
            return None
        how, length, drafter, temperature, together = match.groups()
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
    """Whether the tick counts: complete, and no warm-up."""
    ended = tick.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    return ended and not tick.error and not tick.place.warm_up


def network(tick: Tick) -> float | None:
    """Returns the time that the network adds to the daemon's own time to the first token."""
    here, there = time_to_first_token(tick), tick.served.time_to_first_token if tick.served is not None else None
    return here - there if here is not None and there is not None else None


def time_per_output_token(tick: Tick) -> float | None:
    """Returns (duration - TTFT) / (output tokens - 1), as the GenAI conventions define it; None below two tokens."""
    first = time_to_first_token(tick)
    return (tick.ended - first) / (tick.output_tokens - 1) if first is not None and tick.output_tokens > 1 else None


def output_tokens_per_second(tick: Tick) -> float | None:
    """Returns all tokens over the whole time, including the wait for the first."""
    return tick.output_tokens / tick.ended if tick.output_tokens and tick.ended > 0 else None


@dataclass(frozen=True, slots=True)
class MachineSample:
    """One reading in bytes, seconds, watts, degrees Celsius; a value that could not be read is None, never 0.

    `elapsed` is monotonic seconds since the session began. Counters (critical seconds, swap-ins, throttles) count since
    the daemon started.
    """

    stage: Stage
    session: int
    arm: str  # running when the sample was taken; empty between arms
    elapsed: float
    at: float  # Unix time
    resident: int | None = None  # of the daemon's process
    available: int | None = None  # of the machine, without swapping
    headroom: int | None = None  # available beyond the floor
    floor: int | None = None
    pressure: str | None = None  # normal, warn, critical
    critical_seconds: float = 0.0
    swap_in: int | None = None
    mlx_active: int | None = None
    mlx_cache: int | None = None
    thermal: str | None = None  # nominal, moderate, heavy, trapping, sleeping
    throttles: int | None = None
    temperature: float | None = None  # the hottest sensor's
    watts: float | None = None  # all that is measured, together

    @property
    def mlx(self) -> int | None:
        """MLX's active memory and its cache together, bytes."""
        return None if self.mlx_active is None else self.mlx_active + (self.mlx_cache or 0)


def sample(status: StatusReply, stage: Stage, session: int, arm: str, elapsed: float) -> MachineSample:
    """Returns the machine's reading from a status."""
    hardware = plain(status.hardware)
    temperatures, power = hardware["temperatures"], hardware["power"]
    return MachineSample(
        stage=stage,
        session=session,
        arm=arm,
        elapsed=elapsed,
        at=time.time(),
        resident=hardware["process_resident_bytes"],
        available=hardware["memory_available_bytes"],
        headroom=hardware["memory_headroom_bytes"],
        floor=hardware["memory_floor_bytes"],
        pressure=_state_or_none(hardware["memory_pressure"]),
        critical_seconds=hardware["critical_pressure"] or 0.0,
        swap_in=hardware["swap_in_bytes"],
        mlx_active=hardware["mlx_active_bytes"],
        mlx_cache=hardware["mlx_cache_bytes"],
        thermal=_state_or_none(hardware["thermal_level"]),
        throttles=hardware["throttles"],
        temperature=max(temperatures.values(), default=None),
        watts=sum(power.values()) if power else None,
    )


def _state_or_none(state: str | None) -> str | None:
    return None if state == "unspecified" else state
