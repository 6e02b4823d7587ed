"""Dashboard of the ranks: the processes, on one machine or several, that one target runs on."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, WARN, Panel, Text, Word, Words, bars, lines, single, states, tile
from dashboards.queries import ranks as ask
from dashboards.settings import Alerting
from draftd.group import GroupState

_COLORS = {
    GroupState.SERVING: GOOD,
    GroupState.STARTING: "yellow",
    GroupState.RESTARTING: WARN,
    GroupState.FAILED: BAD,
}
_STATES: Words = {figure: Word(state.value, _COLORS[state]) for state, figure in ask.FIGURES.items()}
_BYTES, _SILENT_SECONDS, _UNKNOWN = "suffix: B", 3.0, "not known"


def board(alerting: Alerting) -> Board:
    return Board(
        "ranks",
        "Ranks",
        "A target that runs on several ranks (processes): their group, each rank, and the records that rank 0 sends. "
        "Panels are empty for a daemon whose target runs in its own process.",
        (
            Row("The group, over the time shown", _figures(alerting)),
            Row("What happens to the group", _group()),
            Row("Each rank", _ranks(alerting)),
            Row("What rank 0 sends", _records()),
        ),
    )


def _figures(alerting: Alerting) -> tuple[Panel, ...]:
    none = _UNKNOWN
    return (
        single(tile("Group",
                    "State of the group of ranks now; the worst if there are several groups. Only a serving group "
                    "answers requests.", look.LEVEL, no_value=none), ask.STATE_NOW,
               words=_STATES),
        single(tile("Ranks",
                    "Ranks of all groups now, each rank 0 included.", look.COUNT, no_value=none, decimals=0),
               ask.RANKS_NOW),
        single(tile("Losses",
                    "How often a group was lost, over the time shown. Each loss ends the requests that run, and the "
                    "whole group starts again.", look.COUNT, no_value=none, decimals=0), ask.LOSSES_NOW,
               steps=((None, GOOD), (alerting.group_losses + 1, BAD))),
        single(tile("Exchange between ranks",
                    "Estimated share of a rank's time spent in collectives: exchanging data with the other ranks, or "
                    "waiting for them. Over the time shown, of the rank with the most.", look.SHARE,
                    no_value=none, decimals=0), ask.COLLECTIVE_NOW),
        single(tile("Lag",
                    "Records (operations sent by rank 0) that the slowest rank has not executed yet, now. It should "
                    "be a few.", look.COUNT, no_value=none, decimals=0),
               ask.LAG_NOW, steps=((None, GOOD), (alerting.rank_lag, BAD))),
        single(tile("Bytes per record",
                    "Mean size of a record that rank 0 sends to each other rank, over the time shown. A few dozen "
                    "bytes are normal.", _BYTES, no_value=none,
                    decimals=0), ask.EACH_NOW),
    )  # fmt: skip


def _group() -> tuple[Panel, ...]:
    return (
        states(
            Text("State of the group",
                 "Starting (ranks start and read their weights), serving, restarting after a loss, or failed (it "
                 "does not restart).",
                 look.LEVEL),
            (ask.STATES, _STATES),
        ),
        bars(
            Text("Losses by reason",
                 "Losses of a group over the time shown, by reason. A rank died (its process or connection ended), "
                 "was silent, stalled (its step did not end), fell behind, or failed with an error.",
                 look.OCCURRENCES, low=0, decimals=0, no_value=_UNKNOWN),
            ask.LOSSES,
        ),
        lines(
            Text("Starts and losses",
                 "How often per rate interval a group started (begun), and was lost.", look.COUNT, low=0),
            *ask.EVENTS,
            colors={"begun": GOOD, "lost": BAD},
        ),
    )  # fmt: skip


def _ranks(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(
            Text("Memory by rank",
                 "Memory of the MLX arrays of each rank. Dashed: the most that the rank may use.", look.BYTES, 12,
                 low=0),
            ask.MEMORY,
            ask.MEMORY_LIMIT,
            dashed=("^limit",),
        ),
        lines(
            Text("Exchange time by rank",
                 "Share of each rank's time spent exchanging data with the other ranks or waiting for them. "
                 "Estimated: number of collectives times the time that one took at load. Too high if the machine was "
                 "busy then.", look.SHARE, 12, low=0, high=1),
            ask.COLLECTIVE,
        ),
        lines(
            Text("Lag by rank",
                 f"Records (operations sent by rank 0) that the rank has not executed yet. Above {alerting.rank_lag} "
                 "DraftdRankBehind fires.", look.COUNT, low=0),
            ask.LAG,
            steps=((None, GOOD), (alerting.rank_lag, BAD)),
        ),
        lines(
            Text("Silence by rank",
                 f"Time since each rank's last report; a rank reports once per second. Above {_SILENT_SECONDS:g} s "
                 "the rank or its network hangs.",
                 look.SECONDS, low=0),
            ask.SILENCE,
            steps=((None, GOOD), (_SILENT_SECONDS, BAD)),
        ),
        lines(
            Text("Records executed",
                 "Records (operations sent by rank 0) that each rank executes per second. All ranks have the same "
                 "line unless one is behind.",
                 look.PER_SECOND, low=0),
            ask.EXECUTED,
        ),
    )  # fmt: skip


def _records() -> tuple[Panel, ...]:
    return (
        lines(Text("Records",
                   "Records that rank 0 sends to each other rank, per second. A record is one forward pass or one "
                   "cache operation.", look.PER_SECOND, low=0),
              ask.SENT),
        lines(Text("Bytes of a record",
                   "Mean size of a record (one operation) that rank 0 sends to each other rank.",
                   _BYTES, low=0), ask.EACH),
        lines(Text("Bytes to a follower",
                   "Bytes of records per second that rank 0 sends to each follower (a rank other than 0). The data "
                   "that ranks exchange in collectives are not counted.",
                   look.BYTES_PER_SECOND, low=0), ask.BYTES),
    )  # fmt: skip
