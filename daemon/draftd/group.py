"""The state of the ranks of a target that runs on several machines, for the engine, telemetry and the protocols.

A *rank* is one process of the group, numbered from 0. Rank 0 leads and alone decides; the others are followers.
"""

from __future__ import annotations

import enum
import secrets
from dataclasses import dataclass


class GroupState(enum.StrEnum):
    """The group's state. STARTING: ranks start, are checked, and read their weights. SERVING: all execute steps.
    RESTARTING: the group was lost and starts again after a pause. FAILED: it is not restarted."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    FAILED = "failed"


class Loss(enum.StrEnum):
    """Why a group ended, in the spelling of metrics, logs and alerts. DIED: a rank's process or connection ended.
    SILENT: a rank sent nothing for too long. STALLED: it reports, but its step does not end. BEHIND: it executes, too
    far behind rank 0. FAILED: it reported an error."""

    DIED = "died"
    SILENT = "silent"
    STALLED = "stalled"
    BEHIND = "behind"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank as of its last report, about a second old. `records`: operations executed since the group started;
    `lag`: those sent by rank 0 and not executed here yet. `memory_bytes`: MLX arrays; `limit_bytes`: allowed, 0 if
    unknown. `collective_seconds`: estimated time in collectives since the start: their number times the seconds of one,
    measured at load. `seconds_silent`: since the last report."""

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
    """The group as a whole. `id`: constant for the daemon's life, a resource attribute of its telemetry; `starts`: how
    often the group started. `backend`: MLX's name; `parallel`: "tensor" or "pipeline". `losses`: by cause, since the
    daemon started; `reason`: of the last loss, for people. `records`, `record_bytes`: operations sent to each follower
    since the group started, and their bytes."""

    id: str
    state: GroupState
    backend: str
    parallel: str
    ranks: tuple[RankStatus, ...]
    losses: dict[Loss, int]
    reason: str = ""
    restart_seconds: float | None = None  # until the group restarts; None unless RESTARTING
    records: int = 0
    record_bytes: int = 0
    starts: int = 1


def new_group_id() -> str:
    """Returns a random id for a group, short enough to read aloud."""
    return secrets.token_hex(6)
