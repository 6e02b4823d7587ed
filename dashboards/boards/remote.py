"""Remote: this daemon as an edge of another, and as a verifier of others."""

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
        "Two daemons: an edge drafts, a verifier verifies. The upper rows are of edges, the last ones of verifiers; a "
        "daemon that is neither shows nothing here.",
        (
            Row("The link, over the time shown", _figures(alerting)),
            Row("How far the remote is", _distance(alerting)),
            Row("What drafting for it brings", _gain(alerting)),
            Row("When it breaks", _faults()),
            Row("What answers are worth and cost", _money()),
            Row("As a verifier", _verifier(alerting)),
            Row("What edges send", _traffic()),
        ),
    )


def _figures(alerting: Alerting) -> tuple[Panel, ...]:
    none = "no steps"
    return (
        single(tile("Link", "Whether requests may be opened at the remote, where it is worst.", look.LEVEL,
                    no_value="not known"), ask.UP_NOW, words=look.UP),
        single(tile("Round trip", "Median of a step's way to the verifier and back, its own time left out.",
                    look.SECONDS, no_value=none, decimals=1), ask.ROUND_TRIP_NOW,
               steps=((None, GOOD), (alerting.remote_round_trip_seconds, BAD))),
        single(tile("Speed", "Requests drafted here and verified there, over the remote's own streaming.", look.TIMES,
                    no_value="not known", decimals=2), ask.SPEEDUP_NOW,
               steps=((None, BAD), (alerting.remote_speed_floor, WARN), (1.0, GOOD))),
        single(tile("Round trips hidden", "Verdicts that a proposal already sent went on from.", look.SHARE,
                    no_value=none, decimals=0), ask.HIDDEN_NOW),
        single(tile("Bytes a token", "Messages both ways, for each token that the remote chose.", _BYTES,
                    no_value=none, decimals=0), ask.BYTES_PER_TOKEN_NOW),
        single(tile("Failed over", "Requests that went on with this daemon's own model.", look.COUNT,
                    no_value="not known", decimals=0),
               ask.FAILOVERS_NOW, steps=((None, GOOD), (1, WARN))),
    )  # fmt: skip


def _distance(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        traces(
            lines(
                Text("Round trip to the remote", "From a step's departure until its verdict, without the verifier's "
                     "own time. Dashed: below it drafting is faster than the remote's own streaming, as estimated. "
                     f"Above {alerting.remote_round_trip_seconds:g} s DraftdRemoteSlow fires.", look.SECONDS, low=0),
                *ask.ROUND_TRIPS,
                ask.BREAK_EVEN,
                colors=look.PERCENTILES,
                dashed=("^break-even",),
            ),
            tempo.REMOTE,
            "Requests of the remote's",
        ),
        spread(Text("Spread of round trips", "Where they fell, over time.", look.SECONDS), ask.ROUND_TRIP_SPREAD),
        lines(
            Text("In flight", "Steps that have no verdict yet, and sequences that are open at the remote.",
                 look.COUNT, low=0),
            ask.IN_FLIGHT,
            ask.OPEN,
        ),
    )  # fmt: skip


def _gain(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(
            Text("Speed over streaming", "Requests drafted here and verified there, against what the remote alone "
                 f"would have streamed in their time. Below {alerting.remote_speed_floor:g} for two windows "
                 "DraftdRemoteBelowStreaming fires.", look.TIMES, decimals=2),
            ask.SPEEDUP,
            steps=((None, BAD), (alerting.remote_speed_floor, GOOD)),
        ),
        lines(
            Text("Hidden and wasted", "Verdicts whose round trip was not waited for; and proposed tokens that no "
                 "forward took, because the text had gone another way.", look.SHARE, low=0, high=1),
            ask.HIDDEN,
            ask.WASTED,
            colors={"hidden": GOOD, "wasted": WARN},
        ),
        lines(
            Text("Tokens a verdict", "What a step of the remote's target gives; 1 without drafts.", look.COUNT, low=0,
                 decimals=1),
            ask.PER_VERDICT,
        ),
        lines(
            Text("Steps and verdicts", "What passes: steps and verdicts a second, and the tokens proposed.",
                 look.PER_SECOND, low=0),
            *ask.SENT,
            ask.PROPOSED,
        ),
        lines(
            Text("Tokens by verifier", "Whose target chose the tokens emitted.", look.TOKENS_PER_SECOND, low=0),
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
            Text("Bytes a token, over time", "Messages both ways, for each token that the remote chose.", _BYTES,
                 12, low=0),
            ask.BYTES_PER_TOKEN,
        ),
        lines(Text("Bytes to and from the remote", "Messages both ways, a second.", look.BYTES_PER_SECOND, 12, low=0),
              ask.BYTES),
    )  # fmt: skip


def _faults() -> tuple[Panel, ...]:
    return (
        states(
            Text("Link and what is allowed", "Whether the link is up, and what the fallback allows of the remote.",
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
            Text("Changes of what is allowed", "Over the time shown: from what to what, and which signal asked.",
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
        single(tile("Allowed", "What the fallback allows of the remote, where it is least.", look.LEVEL,
                    no_value="not known"), ask.LEVEL_NOW, words=_ALLOWED),
        bars(
            Text("Answers by strategy and class", "Over the time shown: answers that ended well.", look.COUNT, 12, 4),
            ask.ANSWERS,
        ),
        lines(
            Text("Cost an hour, by verifier", "What answers cost, by whose target is paid for, in cost.currency.",
                 _PER_HOUR, low=0, no_value="no price"),
            ask.COST,
            stacked=True,
            colors=_VERIFIERS,
        ),
        lines(Text("Tokens by strategy", "Tokens emitted, by how their request was planned.", look.TOKENS_PER_SECOND,
                   low=0), ask.BY_STRATEGY, stacked=True, colors=_STRATEGIES),
        lines(Text("Seconds an answer", "Mean time from a request's arrival to its end, by strategy.", look.SECONDS,
                   low=0), ask.LATENCY, colors=_STRATEGIES),
    )  # fmt: skip


def _verifier(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(Text("Edges", "Edges that are connected, and their open sequences.", look.COUNT, low=0), *ask.PEERS),
        lines(
            Text("Tokens a second of target time", "Tokens decided for edges, over the time of the target that they "
                 "are charged for. Autoregressive decoding alone gives one token a forward.",
                 _TOKENS_PER_SECOND_OF_TARGET, low=0),
            ask.PER_TARGET_SECOND,
        ),
        lines(
            Text("Target time for edges", "Seconds a second of the target's forwards.", look.SHARE, low=0, high=1),
            ask.TARGET_SHARE,
        ),
        lines(
            Text("Queue", "How long a step waits for its forward. Above "
                 f"{alerting.verify_queue_seconds:g} s for two windows DraftdPeersWait fires.", look.SECONDS, low=0),
            ask.VERIFY_QUEUE,
            steps=((None, GOOD), (alerting.verify_queue_seconds, BAD)),
        ),
        lines(
            Text("Stale, discarded, dropped", "Steps that disagreed with the text; tokens decided that the edge never "
                 "applied; proposed tokens that no forward took.", look.SHARE, low=0, high=1),
            ask.STALE,
            ask.DISCARDED,
            ask.UNVERIFIED,
        ),
        lines(
            Text("Tokens verified", "Drafted tokens that forwards took, those accepted, and tokens decided.",
                 look.TOKENS_PER_SECOND, low=0),
            *ask.VERIFIED,
            colors={"accepted": GOOD, "drafted": WARN, "decided": PLAIN},
        ),
    )  # fmt: skip


def _traffic() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Connections and sequences", "What edges opened, and what was refused them.", look.COUNT, 12, low=0),
            *ask.VERIFY_EVENTS,
            colors={"refused": BAD},
        ),
        lines(Text("Bytes of edges", "Messages from and to edges.", look.BYTES_PER_SECOND, 12, low=0),
              ask.VERIFY_BYTES),
    )  # fmt: skip
