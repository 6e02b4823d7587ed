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
        "Two daemons: an edge drafts, a verifier (the edge's remote) verifies. The last two rows show verifiers, the "
        "rows above them edges. Panels are empty for a daemon that is neither.",
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
        single(tile("Link",
                    "Whether requests can be opened at the remote now; down if it is down on any chosen edge.",
                    look.LEVEL,
                    no_value="not known"), ask.UP_NOW, words=look.UP),
        single(tile("Round trip",
                    "Median time of a step to the verifier and back, over the time shown. The verifier's own time is "
                    f"left out. Red from {alerting.remote_round_trip_seconds:g} s.",
                    look.SECONDS, no_value=none, decimals=1), ask.ROUND_TRIP_NOW,
               steps=((None, GOOD), (alerting.remote_round_trip_seconds, BAD))),
        single(tile("Speed over streaming now",
                    "Speed of requests that are drafted here and verified by the remote, divided by the speed of the "
                    "remote's own streaming, on the edge where it is lowest. Below 1× drafting slows answers down.",
                    look.TIMES,
                    no_value="not known", decimals=2), ask.SPEEDUP_NOW,
               steps=((None, BAD), (alerting.remote_speed_floor, WARN), (1.0, GOOD))),
        single(tile("Round trips hidden",
                    "Share of the verdicts (the verifier's answers to steps) for which the edge did not wait, over "
                    "the time shown: a proposal that it had already sent continued from them. High is good.",
                    look.SHARE,
                    no_value=none, decimals=0), ask.HIDDEN_NOW),
        single(tile("Bytes per token",
                    "Bytes sent and received per token that the remote chose, over the time shown.", _BYTES,
                    no_value=none, decimals=0), ask.BYTES_PER_TOKEN_NOW),
        single(tile("Failed over",
                    "Requests that began at the remote and continued with the edge's own model, over the time shown.",
                    look.COUNT,
                    no_value="not known", decimals=0),
               ask.FAILOVERS_NOW, steps=((None, GOOD), (1, WARN))),
    )  # fmt: skip


def _distance(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        traces(
            lines(
                Text("Round trip to the remote",
                     "Time from sending a step to its answer (verdict), without the verifier's own time: median, "
                     "95th and 99th percentile. Dashed: break-even, the estimated round trip below which drafting is "
                     "faster than the remote's own streaming. DraftdRemoteSlow fires if the median stays above "
                     f"{alerting.remote_round_trip_seconds:g} s for two windows.", look.SECONDS, low=0),
                *ask.ROUND_TRIPS,
                ask.BREAK_EVEN,
                colors=look.PERCENTILES,
                dashed=("^break-even",),
            ),
            tempo.REMOTE,
            "Requests of the remote's",
        ),
        spread(Text("Spread of round trips",
                    "Number of steps by round trip time, over time. The verifier's own time is left out.",
                    look.SECONDS), ask.ROUND_TRIP_SPREAD),
        lines(
            Text("In flight",
                 "For each edge: steps that it sent and that have no answer (verdict) yet, and sequences (requests) "
                 "that it has open at the remote.",
                 look.COUNT, low=0),
            ask.IN_FLIGHT,
            ask.OPEN,
        ),
    )  # fmt: skip


def _gain(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(
            Text("Speed over streaming",
                 "Speed of requests that are drafted here and verified by the remote, divided by the speed of the "
                 "remote's own streaming, waits included in both. DraftdRemoteBelowStreaming fires if it stays below "
                 f"{alerting.remote_speed_floor:g} for two windows.", look.TIMES, decimals=2),
            ask.SPEEDUP,
            steps=((None, BAD), (alerting.remote_speed_floor, GOOD)),
        ),
        lines(
            Text("Hidden and wasted",
                 "Hidden: share of the verdicts for which the edge did not wait, because a proposal already sent "
                 "continued from them; high is good. Wasted: share of the proposed tokens that the remote never "
                 "verified, because it decided the text before them differently; low is good.",
                 look.SHARE, low=0, high=1),
            ask.HIDDEN,
            ask.WASTED,
            colors={"hidden": GOOD, "wasted": WARN},
        ),
        lines(
            Text("Tokens per verdict",
                 "Mean number of output tokens from one forward pass (verdict) of the remote's target. At 1 drafts "
                 "bring nothing.", look.COUNT,
                 low=0,
                 decimals=1),
            ask.PER_VERDICT,
        ),
        lines(
            Text("Steps and verdicts",
                 "Per second: steps sent to the remote, answers to them (verdicts), and tokens proposed in the "
                 "steps. Counted when their request ends.",
                 look.PER_SECOND, low=0),
            *ask.SENT,
            ask.PROPOSED,
        ),
        lines(
            Text("Tokens by verifier",
                 "Output tokens per second, by the daemon whose target chose them: this one (local) or the remote.",
                 look.TOKENS_PER_SECOND,
                 low=0),
            *ask.BY_VERIFIER,
            stacked=True,
            colors=_VERIFIERS,
        ),
        lines(
            Text("Time at the remote",
                 "Mean time per verdict at the verifier: waiting for a forward pass, and the request's share of that "
                 "forward pass.", look.SECONDS, low=0),
            *ask.REMOTE_TIME,
            stacked=True,
            colors={"waited": WARN, "target": PLAIN},
        ),
        lines(
            Text("Bytes per token, over time",
                 "Bytes sent and received per token that the remote chose.", _BYTES,
                 12, low=0),
            ask.BYTES_PER_TOKEN,
        ),
        lines(Text("Bytes to and from the remote",
                   "Bytes of messages per second, sent (transmit) and received.", look.BYTES_PER_SECOND, 12, low=0),
              ask.BYTES),
    )  # fmt: skip


def _faults() -> tuple[Panel, ...]:
    return (
        states(
            Text("Link and allowed level",
                 "For each edge: whether the link is up, and what the fallback allows of the remote: speculative "
                 "(drafts for it), streaming (its answers, no drafts) or local (nothing is sent to it).",
                 look.LEVEL),
            (ask.UP, look.UP),
            (ask.LEVELS, _ALLOWED),
        ),
        traces(
            lines(
                Text("Faults",
                     "Per rate interval: errors (late, refused, connection lost), requests that continued with this "
                     "daemon's own model, sequences resumed on a new connection, connections that came up, and "
                     "verdicts that came after the end of their request.", look.COUNT, low=0),
                *ask.FAILED,
                colors={"errors": BAD, "failed over": WARN, "resumed": PLAIN, "connections": GOOD, "late": "text"},
            ),
            tempo.FAILED_OVER,
            "Requests that failed over",
        ),
        bars(
            Text("Changes of the allowed level",
                 "Changes of what the fallback allows of the remote, over the time shown, by the level before, the "
                 "level after, and the signal that asked.",
                 look.OCCURRENCES, low=0, decimals=0, no_value="no change"),
            ask.CHANGES,
        ),
    )  # fmt: skip


def _money() -> tuple[Panel, ...]:
    return (
        single(tile("Cost of all answers",
                    "Total cost of answers over the time shown, in each currency (cost.currency).",
                    look.COUNT, no_value="no price", decimals=4),
               ask.COST_NOW),
        single(tile("Cost of an answer",
                    "Mean cost of an answer over the time shown, in each currency (cost.currency).",
                    look.COUNT, no_value="no price", decimals=5), ask.COST_OF_ANSWER_NOW),
        single(tile("Allowed level",
                    "What the fallback allows of the remote now, on the edge where it is lowest: speculative (drafts "
                    "for it), streaming (its answers, no drafts) or local (nothing is sent to it).",
                    look.LEVEL,
                    no_value="not known"), ask.LEVEL_NOW, words=_ALLOWED),
        bars(
            Text("Answers by strategy and class",
                 "Successful answers over the time shown, by strategy and quality class. local: this daemon answers. "
                 "remote: the remote answers. speculative: drafted here, verified by the remote.", look.COUNT, 12, 4),
            ask.ANSWERS,
        ),
        lines(
            Text("Cost per hour, by verifier",
                 "Cost of answers per hour in cost.currency, by the daemon whose target is paid for: this one "
                 "(local) or the remote.",
                 _PER_HOUR, low=0, no_value="no price"),
            ask.COST,
            stacked=True,
            colors=_VERIFIERS,
        ),
        lines(Text("Tokens by strategy",
                   "Output tokens per second, by strategy of their request. local: this daemon answers. remote: the "
                   "remote answers. speculative: drafted here, verified by the remote.", look.TOKENS_PER_SECOND,
                   low=0), ask.BY_STRATEGY, stacked=True, colors=_STRATEGIES),
        lines(Text("Seconds per answer",
                   "Mean time from a request's arrival to its end, by strategy. Failed requests are included.",
                   look.SECONDS,
                   low=0), ask.LATENCY, colors=_STRATEGIES),
    )  # fmt: skip


def _verifier(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        lines(Text("Edges",
                   "Edges connected to each verifier, and sequences (requests) that they have open there.",
                   look.COUNT, low=0), *ask.PEERS),
        lines(
            Text("Tokens per second of target time",
                 "Tokens decided for edges, per second of the target's time that is charged to them. High: the "
                 "edges' drafts are accepted, and one forward pass serves several tokens.",
                 _TOKENS_PER_SECOND_OF_TARGET, low=0),
            ask.PER_TARGET_SECOND,
        ),
        lines(
            Text("Target time for edges",
                 "Share of the time that the verifier's target works for edges. Near 100 % it can serve no more.",
                 look.SHARE,
                 low=0, high=1),
            ask.TARGET_SHARE,
        ),
        lines(
            Text("Queue",
                 "Mean time that an edge's step waits at the verifier for its forward pass. DraftdPeersWait fires if "
                 f"it stays above {alerting.verify_queue_seconds:g} s for two windows.", look.SECONDS, low=0),
            ask.VERIFY_QUEUE,
            steps=((None, GOOD), (alerting.verify_queue_seconds, BAD)),
        ),
        lines(
            Text("Stale, discarded, dropped",
                 "Waste at the verifier. Stale: share of the edges' steps that did not continue the text. Discarded: "
                 "share of the decided tokens that the edge never applied. Dropped: share of the proposed tokens "
                 "that were never verified.", look.SHARE, low=0,
                 high=1),
            ask.STALE,
            ask.DISCARDED,
            ask.UNVERIFIED,
        ),
        lines(
            Text("Tokens verified",
                 "Per second, for edges: drafted tokens that were verified, those that were accepted, and tokens "
                 "decided (accepted ones and the target's own).",
                 look.TOKENS_PER_SECOND, low=0),
            *ask.VERIFIED,
            colors={"accepted": GOOD, "drafted": WARN, "decided": PLAIN},
        ),
    )  # fmt: skip


def _traffic() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Connections and sequences",
                 "Per rate interval: connections and sequences (requests) that edges opened, and those that were "
                 "refused.",
                 look.COUNT, 12, low=0),
            *ask.VERIFY_EVENTS,
            colors={"refused": BAD},
        ),
        lines(Text("Bytes to and from edges",
                   "Bytes of messages per second, sent (transmit) and received.", look.BYTES_PER_SECOND, 12, low=0),
              ask.VERIFY_BYTES),
    )  # fmt: skip
