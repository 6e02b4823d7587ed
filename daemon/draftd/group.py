"""The ranks of a target that runs on several machines: what the engine, telemetry and the protocols know of them.

A *rank* is one process of the group, numbered from 0. Rank 0 leads: it alone decides; the others are followers."""

from __future__ import annotations

import enum
import secrets
from dataclasses import dataclass


class GroupState(enum.StrEnum):
    """STARTING: ranks are started, prove that they fit, and read their weights. SERVING: all of them execute steps.
    RESTARTING: the group was lost, and begins anew after a pause. FAILED: it is not restarted."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    FAILED = "failed"


class Loss(enum.StrEnum):
    """Why a group ended, as metrics, logs and alerts spell it. DIED: a rank's process or its connection ended.
    SILENT: nothing was heard of it within the bound. STALLED: it is heard of, and its step does not end. BEHIND: it
    executes, too far behind rank 0. FAILED: it told of an error of its own."""

    DIED = "died"
    SILENT = "silent"
    STALLED = "stalled"
    BEHIND = "behind"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank as of its last report, about a second ago. `records`: executed since the group began; `lag`: records
    that rank 0 had sent and this one had not executed. Bytes: `memory_bytes` of MLX arrays held, `limit_bytes` that it
    may hold, 0 where that is not known. `collective_seconds`: in collectives since the group began, as estimated from
    their number and the time that one took at load. `seconds_silent`: since its last report."""

    rank: int
    host: str
    memory_bytes: int = 0
    limit_bytes: int = 0
    records: int = 0
    lag: int = 0
    collective_seconds: float = 0.0
    seconds_silent: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """`id`: the group's for the life of the daemon, a resource attribute of its telemetry, which is fixed at its start;
    `starts` counts how often the group began. `backend`: as MLX names it; `parallel`: "tensor" or "pipeline".
    `losses`: how often the group was lost since the daemon started, by why; `reason`: of the last loss, in words, empty
    before. `record_bytes`: sent to each follower since the group began, in `records`."""

    id: str
    state: GroupState
    backend: str
    parallel: str
    ranks: tuple[RankStatus, ...]
    losses: dict[Loss, int]
    reason: str = ""
    restart_seconds: float | None = None  # until the group begins anew; None unless RESTARTING
    records: int = 0
    record_bytes: int = 0
    starts: int = 1


def new_group_id() -> str:
    """Of a group that a daemon begins with: random, short enough to be read aloud."""
    return secrets.token_hex(6)
