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
        "One target over several ranks: the group, each rank, and the records that rank 0 sends. A daemon whose "
        "target runs in its own process shows nothing here.",
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
        single(tile("Group", "State of the group, where it is worst.", look.LEVEL, no_value=none), ask.STATE_NOW,
               words=_STATES),
        single(tile("Ranks", "Ranks of all groups, each rank 0 included.", look.COUNT, no_value=none, decimals=0),
               ask.RANKS_NOW),
        single(tile("Lost", "How often a group was lost.", look.COUNT, no_value=none, decimals=0), ask.LOSSES_NOW,
               steps=((None, GOOD), (alerting.group_losses + 1, BAD))),
        single(tile("Exchange between ranks", "Estimated share of a rank's time spent in collectives: exchanging data "
                    "with the others or waiting for them. Shown for the rank with the most.", look.SHARE,
                    no_value=none, decimals=0), ask.COLLECTIVE_NOW),
        single(tile("Lag", "Records that the slowest rank had not executed.", look.COUNT, no_value=none, decimals=0),
               ask.LAG_NOW, steps=((None, GOOD), (alerting.rank_lag, BAD))),
        single(tile("Bytes per record", "Mean length of what rank 0 sends to each follower.", _BYTES, no_value=none,
                    decimals=0), ask.EACH_NOW),
    )  # fmt: skip


def _group() -> tuple[Panel, ...]:
    return (
        states(
            Text("State of the group", "Starting, serving, restarting after a loss, or failed for good.",
                 look.LEVEL),
            (ask.STATES, _STATES),
        ),
        bars(
            Text("Losses by reason", "Over the time shown: a rank died, was silent, stalled, fell behind, or failed.",
                 look.OCCURRENCES, low=0, decimals=0, no_value=_UNKNOWN),
            ask.LOSSES,
        ),
        lines(
            Text("Starts and losses", "When groups started, and when they were lost.", look.COUNT, low=0),
            *ask.EVENTS,
            colors={"begun": GOOD, "lost": BAD},
        ),
    )  # fmt: skip


def _ranks(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(
            Text("Memory by rank", "MLX arrays that each rank holds. Dashed: the rank's limit.", look.BYTES, 12,
                 low=0),
            ask.MEMORY,
            ask.MEMORY_LIMIT,
            dashed=("^limit",),
        ),
        lines(
            Text("Time of the exchange, by rank", "Share of each rank's time spent exchanging data with the others or "
                 "waiting for them. Estimated from the number of collectives and the time that one took at load: too "
                 "high if the machine was busy then.", look.SHARE, 12, low=0, high=1),
            ask.COLLECTIVE,
        ),
        lines(
            Text("Lag by rank", "Records that rank 0 had sent and the rank had not yet executed. Above "
                 f"{alerting.rank_lag} DraftdRankBehind fires.", look.COUNT, low=0),
            ask.LAG,
            steps=((None, GOOD), (alerting.rank_lag, BAD)),
        ),
        lines(
            Text("Silence by rank", "Time since each rank's last report. A rank sends one report per second.",
                 look.SECONDS, low=0),
            ask.SILENCE,
            steps=((None, GOOD), (_SILENT_SECONDS, BAD)),
        ),
        lines(
            Text("Records executed", "Records executed by each rank. All are the same if no rank is behind.",
                 look.PER_SECOND, low=0),
            ask.EXECUTED,
        ),
    )  # fmt: skip


def _records() -> tuple[Panel, ...]:
    return (
        lines(Text("Records", "Cache operations and forwards that rank 0 sends.", look.PER_SECOND, low=0),
              ask.SENT),
        lines(Text("Bytes of a record", "Mean length of a record sent to a follower.", _BYTES, low=0), ask.EACH),
        lines(Text("Bytes to a follower", "Records only. The backend sends the collectives' own traffic, which is not "
                   "counted.",
                   look.BYTES_PER_SECOND, low=0), ask.BYTES),
    )  # fmt: skip
