"""The dashboards, one file each. All their thresholds come from the alerts' settings."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.board import Board
from dashboards.boards import fallback, latency, machine, overview, ranks, remote, speculation, telemetry
from dashboards.settings import Alerting


def boards(alerting: Alerting) -> Sequence[Board]:
    """Returns all dashboards, in the order in which a person would look at them."""
    made = (
        overview.board,
        speculation.board,
        remote.board,
        ranks.board,
        fallback.board,
        latency.board,
        machine.board,
        telemetry.board,
    )
    return tuple(make(alerting) for make in made)
