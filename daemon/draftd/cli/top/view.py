"""What one frame of the screen is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from draftd.cli.top.history import History, Stretch
from draftd.cli.top.rates import Drafting, Rates, Snapshot, drafting
from draftd.v1 import control_pb2 as pb


@dataclass(frozen=True, slots=True)
class Lost:
    """The daemon does not answer. Seconds since it last did, and until it is asked again; None while it is asked."""

    why: str
    silent: float
    retry: float | None


@dataclass(frozen=True, slots=True)
class View:
    """`at` is the time of the curve's right edge. `notice` is what the last key did."""

    target: str
    at: float
    interval: float
    status: pb.GetStatusResponse
    now: Rates | None
    minute: Rates | None
    whole: Drafting
    stretches: tuple[Stretch, ...] = ()
    lost: Lost | None = None
    paused: bool = False
    notice: str = ""

    @classmethod
    def of(
        cls,
        history: History,
        latest: Snapshot,
        target: str,
        interval: float,
        *,
        at: float,
        lost: Lost | None = None,
        paused: bool = False,
        notice: str = "",
    ) -> View:
        """`latest` is the history's own."""
        status = latest.status
        return cls(
            target=target,
            at=at,
            interval=interval,
            status=status,
            now=history.now,
            minute=history.window,
            whole=drafting(status.counts, status.output_tokens),
            stretches=history.stretches,
            lost=lost,
            paused=paused,
            notice=notice,
        )
