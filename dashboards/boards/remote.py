"""Dashboard of two daemons: this one as an edge of a remote, and as a verifier for others."""

from __future__ import annotations

from dashboards.board import Board, Row, traces
from dashboards.boards import look
from dashboards.panels import (
    BAD,
    GOOD,
    PLAIN,
    WARN,
    Panel,
    Text,
    Word,
    Words,
    bars,
    lines,
    single,
    spread,
    states,
    tile,
)
from dashboards.queries import remote as ask
from dashboards.queries import traces as tempo
from dashboards.settings import Alerting
from draftd.strategies import RemoteLevel

_ALLOWED: Words = {
    RemoteLevel.SPECULATIVE: Word("speculative", GOOD),
    RemoteLevel.STREAMING: Word("streaming", WARN),
    RemoteLevel.LOCAL: Word("local", BAD),
}
_STRATEGIES = {"^local$": "text", "^remote$": WARN, "^speculative$": PLAIN}
_VERIFIERS = {"^local": "text", "^remote": PLAIN}
_TOKENS_PER_SECOND_OF_TARGET = "suffix: tok/s"
_PER_HOUR, _BYTES = "suffix: /h", "suffix: B"


def board(alerting: Alerting) -> Board:
    return Board(
        "remote",
        "Remote",
        "Two daemons: an edge drafts, a verifier verifies. The upper rows show edges, the last two show verifiers. A "
        "daemon that is neither shows nothing here.",
        (
            Row("The link, over the time shown", _figures(alerting)),
            Row("How far the remote is", _distance(alerting)),
            Row("What drafting for the remote brings", _gain(alerting)),
            Row("Failures and changes", _faults()),
            Row("What answers are worth and cost", _money()),
            Row("As a verifier", _verifier(alerting)),
            Row("What edges send", _traffic()),
        ),
    )


def _figures(alerting: Alerting) -> tuple[Panel, ...]:
    none = "no steps"
    return (
        single(tile("Link", "Whether requests may be opened at the remote, on the edge where it is worst.", look.LEVEL,
                    no_value="not known"), ask.UP_NOW, words=look.UP),
        single(tile("Round trip", "Median time of a step to the verifier and back, without the verifier's own time.",
                    look.SECONDS, no_value=none, decimals=1), ask.ROUND_TRIP_NOW,
               steps=((None, GOOD), (alerting.remote_round_trip_seconds, BAD))),
        single(tile("Speed", "Speed of requests drafted here and verified there, divided by that of the remote's own "
                    "streaming.", look.TIMES,
                    no_value="not known", decimals=2), ask.SPEEDUP_NOW,
               steps=((None, BAD), (alerting.remote_speed_floor, WARN), (1.0, GOOD))),
        single(tile("Round trips hidden", "Share of verdicts that the next proposal, already sent, had guessed right.",
                    look.SHARE,
                    no_value=none, decimals=0), ask.HIDDEN_NOW),
        single(tile("Bytes per token", "Bytes of messages both ways, per token that the remote chose.", _BYTES,
                    no_value=none, decimals=0), ask.BYTES_PER_TOKEN_NOW),
        single(tile("Failed over", "Requests that the edge went on with on its own model.", look.COUNT,
                    no_value="not known", decimals=0),
               ask.FAILOVERS_NOW, steps=((None, GOOD), (1, WARN))),
    )  # fmt: skip


def _distance(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        traces(
            lines(
                Text("Round trip to the remote", "Time from sending a step to its verdict, without the verifier's own "
                     "time. Dashed: the estimated round trip below which drafting is faster than the remote's own "
                     "streaming. "
                     f"Above {alerting.remote_round_trip_seconds:g} s DraftdRemoteSlow fires.", look.SECONDS, low=0),
                *ask.ROUND_TRIPS,
                ask.BREAK_EVEN,
                colors=look.PERCENTILES,
                dashed=("^break-even",),
            ),
            tempo.REMOTE,
            "Requests of the remote's",
        ),
        spread(Text("Spread of round trips", "Number of steps by round trip, over time.",
                    look.SECONDS), ask.ROUND_TRIP_SPREAD),
        lines(
            Text("In flight", "Steps without a verdict yet, and sequences open at the remote.",
                 look.COUNT, low=0),
            ask.IN_FLIGHT,
            ask.OPEN,
        ),
    )  # fmt: skip


def _gain(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(
            Text("Speed over streaming", "Speed of requests drafted here and verified there, divided by that of the "
                 f"remote's own streaming with the same waits. Below {alerting.remote_speed_floor:g} "
                 "for two windows "
                 "DraftdRemoteBelowStreaming fires.", look.TIMES, decimals=2),
            ask.SPEEDUP,
            steps=((None, BAD), (alerting.remote_speed_floor, GOOD)),
        ),
        lines(
            Text("Hidden and wasted", "Hidden: verdicts whose round trip cost no wait. Wasted: proposed tokens that "
                 "no forward took, because the text had gone another way.", look.SHARE, low=0, high=1),
            ask.HIDDEN,
            ask.WASTED,
            colors={"hidden": GOOD, "wasted": WARN},
        ),
        lines(
            Text("Tokens per verdict", "Tokens that a step of the remote's target gives: 1 without drafts.", look.COUNT,
                 low=0,
                 decimals=1),
            ask.PER_VERDICT,
        ),
        lines(
            Text("Steps and verdicts", "Steps, verdicts and proposed tokens per second.",
                 look.PER_SECOND, low=0),
            *ask.SENT,
            ask.PROPOSED,
        ),
        lines(
            Text("Tokens by verifier", "Tokens emitted, by the daemon whose target chose them.", look.TOKENS_PER_SECOND,
                 low=0),
            *ask.BY_VERIFIER,
            stacked=True,
            colors=_VERIFIERS,
        ),
        lines(
            Text("Time at the remote", "For each verdict: how long its step waited at the verifier, and its share of "
                 "the target's forward.", look.SECONDS, low=0),
            *ask.REMOTE_TIME,
            stacked=True,
            colors={"waited": WARN, "target": PLAIN},
        ),
        lines(
            Text("Bytes per token, over time", "Bytes of messages both ways, per token that the remote chose.", _BYTES,
                 12, low=0),
            ask.BYTES_PER_TOKEN,
        ),
        lines(Text("Bytes to and from the remote", "Messages both ways, per second.", look.BYTES_PER_SECOND, 12, low=0),
              ask.BYTES),
    )  # fmt: skip


def _faults() -> tuple[Panel, ...]:
    return (
        states(
            Text("Link and allowed level", "Whether the link is up, and the level that the fallback allows for the "
                 "remote.",
                 look.LEVEL),
            (ask.UP, look.UP),
            (ask.LEVELS, _ALLOWED),
        ),
        traces(
            lines(
                Text("Faults", "Errors (late, refused, connection lost), requests that went on locally, sequences "
                     "resumed on a new connection, verdicts after the end.", look.COUNT, low=0),
                *ask.FAILED,
                colors={"errors": BAD, "failed over": WARN, "resumed": PLAIN, "connections": GOOD, "late": "text"},
            ),
            tempo.FAILED_OVER,
            "Requests that failed over",
        ),
        bars(
            Text("Changes of the allowed level", "Over the time shown: the level before, the level after, and the "
                 "signal that asked.",
                 look.OCCURRENCES, low=0, decimals=0, no_value="no change"),
            ask.CHANGES,
        ),
    )  # fmt: skip


def _money() -> tuple[Panel, ...]:
    return (
        single(tile("Cost of all answers", "Over the time shown, for each currency that a daemon has in cost.currency.",
                    look.COUNT, no_value="no price", decimals=4),
               ask.COST_NOW),
        single(tile("Cost of an answer", "On average over the time shown, for each currency that a daemon has in "
                    "cost.currency.", look.COUNT, no_value="no price", decimals=5), ask.COST_OF_ANSWER_NOW),
        single(tile("Allowed", "The level that the fallback allows for the remote, on the edge where it is lowest.",
                    look.LEVEL,
                    no_value="not known"), ask.LEVEL_NOW, words=_ALLOWED),
        bars(
            Text("Answers by strategy and class", "Over the time shown: answers that ended well.", look.COUNT, 12, 4),
            ask.ANSWERS,
        ),
        lines(
            Text("Cost per hour, by verifier", "Cost of answers in cost.currency, by the verifier that is paid for.",
                 _PER_HOUR, low=0, no_value="no price"),
            ask.COST,
            stacked=True,
            colors=_VERIFIERS,
        ),
        lines(Text("Tokens by strategy", "Tokens emitted, by the strategy of their request.", look.TOKENS_PER_SECOND,
                   low=0), ask.BY_STRATEGY, stacked=True, colors=_STRATEGIES),
        lines(Text("Seconds per answer", "Mean time from a request's arrival to its end, by strategy.", look.SECONDS,
                   low=0), ask.LATENCY, colors=_STRATEGIES),
    )  # fmt: skip


def _verifier(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(Text("Edges", "Connected edges, and their open sequences.", look.COUNT, low=0), *ask.PEERS),
        lines(
            Text("Tokens per second of target time", "Tokens decided for edges, divided by the target time charged to "
                 "them. Autoregressive decoding alone gives one token per forward.",
                 _TOKENS_PER_SECOND_OF_TARGET, low=0),
            ask.PER_TARGET_SECOND,
        ),
        lines(
            Text("Target time for edges", "Share of the time that the target's forwards spend on edges.", look.SHARE,
                 low=0, high=1),
            ask.TARGET_SHARE,
        ),
        lines(
            Text("Queue", "Mean time that a step waits for its forward. Above "
                 f"{alerting.verify_queue_seconds:g} s for two windows DraftdPeersWait fires.", look.SECONDS, low=0),
            ask.VERIFY_QUEUE,
            steps=((None, GOOD), (alerting.verify_queue_seconds, BAD)),
        ),
        lines(
            Text("Stale, discarded, dropped", "Stale: steps that disagreed with the text. Discarded: decided tokens "
                 "that the edge never applied. Dropped: proposed tokens that no forward took.", look.SHARE, low=0,
                 high=1),
            ask.STALE,
            ask.DISCARDED,
            ask.UNVERIFIED,
        ),
        lines(
            Text("Tokens verified", "Drafted tokens that forwards took, drafted tokens accepted, and tokens decided.",
                 look.TOKENS_PER_SECOND, low=0),
            *ask.VERIFIED,
            colors={"accepted": GOOD, "drafted": WARN, "decided": PLAIN},
        ),
    )  # fmt: skip


def _traffic() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Connections and sequences", "Connections and sequences that edges opened, and those refused.",
                 look.COUNT, 12, low=0),
            *ask.VERIFY_EVENTS,
            colors={"refused": BAD},
        ),
        lines(Text("Bytes to and from edges", "Messages both ways, per second.", look.BYTES_PER_SECOND, 12, low=0),
              ask.VERIFY_BYTES),
    )  # fmt: skip
