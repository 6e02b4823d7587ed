"""A tick is one request as it was seen to go: raw. Every figure there is, is derived from ticks and can be again."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from draftd.core import DecodeMode, DepthMode, DraftCounts, DrafterKind, FinishReason, WorkloadClass


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


@dataclass(frozen=True, slots=True)
class Chunk:
    """One message: `at` seconds after it was asked, `tokens` in it, `from_draft` of them drafted and accepted."""

    at: float
    tokens: int
    from_draft: int


@dataclass(frozen=True, slots=True)
class Granted:
    """How the daemon said that it would decode: it may allow less than was asked."""

    mode: DecodeMode
    max_draft_tokens: int
    drafter: DrafterKind | None
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
    chunks: tuple[Chunk, ...]
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
