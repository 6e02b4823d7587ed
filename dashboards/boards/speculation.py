"""Dashboard of speculation: acceptance, cost, depth, and drift from the baseline."""

from __future__ import annotations

from dashboards.board import Board, Row, traces
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, PLAIN, WARN, Panel, Text, bars, lines, single, states, tile
from dashboards.queries import speculation as ask
from dashboards.queries import traces as tempo
from dashboards.settings import Alerting

_BLUES = ("super-light-blue", "light-blue", "blue", "semi-dark-blue", "light-purple", "purple", "semi-dark-purple")
# Greater depths are darker. No depth is bad, so none is red.
_DEPTHS = {f"^{depth}$": color for depth, color in zip(range(1, ask.DEEPEST + 1), _BLUES, strict=True)} | {
    "more$": "dark-purple"
}


def board(alerting: Alerting) -> Board:
    return Board(
        "speculation",
        "Speculation",
        "Acceptance, break-even, depth and cost of speculative decoding. Where two figures of acceptance differ: "
        "accepted over drafted falls as blocks grow, at constant quality; at position 0, and of a token that was "
        "reached, it does not.",
        (
            Row("Over the time shown", _figures(alerting)),
            Row("Acceptance", _acceptance(alerting)),
            Row("By position", _positions()),
            Row(f"Against the baseline (alerts' windows: {alerting.window} now, {alerting.baseline} before)",
                _drift(alerting)),
            Row("Depth", _depth()),
            Row("Rollbacks", _rollbacks()),
            Row("What it costs", _cost()),
            Row("Fallback", _fallback()),
        ),
    )  # fmt: skip


def _figures(alerting: Alerting) -> tuple[Panel, ...]:
    pays, floor = alerting.speedup_floor, alerting.acceptance_floor
    none = "no drafts"
    return (
        single(
            tile("Speed-up", "Speed of the drafted steps against autoregressive ones of the same batch, measured.",
                 look.TIMES, no_value=none, decimals=2),
            ask.SPEEDUP_NOW,
            steps=((None, BAD), (pays, GOOD)),
        ),
        single(
            tile("Accepted of drafted", "Share of the drafted tokens that were accepted, and the share from which "
                 "drafting pays.", look.SHARE, no_value=none, decimals=0),
            ask.ACCEPTANCE_NOW,
            ask.BREAK_EVEN_NOW,
        ),
        single(
            tile("Accepted at position 0", "Share of the first drafted tokens that were accepted. Does not depend on "
                 "the depth.", look.SHARE, no_value=none, decimals=0),
            ask.FIRST_NOW,
            steps=((None, BAD), (floor, GOOD)),
        ),
        single(
            tile("Mean accepted length", "Tokens that a drafted step gives: the accepted ones and the target's own, "
                 "including tokens beyond the end of a text.", "suffix: tokens", no_value=none, decimals=2),
            ask.MEAN_LENGTH_NOW,
        ),
        single(
            tile("Mean depth", "Tokens drafted in a step that drafted.", "suffix: tokens", no_value=none, decimals=2),
            ask.MEAN_DEPTH_NOW,
        ),
        single(
            tile("Failures", "Requests for which drafting failed, and requests that were in a decode step that "
                 "failed. They went on autoregressively, or ended in an error.", look.COUNT, decimals=0),
            *ask.FAILURES,
            steps=look.NONE_IS_WELL,
        ),
    )  # fmt: skip


def _acceptance(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        traces(
            lines(
                Text("Speed-up by workload", "Measured speed of drafted steps over autoregressive ones of the "
                     "same batch. Below the line they do not pay.", look.TIMES, decimals=2),
                ask.SPEEDUP_BY_WORKLOAD,
                steps=((None, BAD), (alerting.speedup_floor, GOOD)),
            ),
            tempo.DID_NOT_PAY,
            "Requests whose drafts did not pay",
        ),
        lines(
            Text("Acceptance, three ways", "Accepted / drafted; the same at position 0; and of reached tokens, "
                 "accepted / (accepted + rollbacks). Dashed: break-even of the first; above 100 % no acceptance would "
                 "pay.",
                 look.SHARE, low=0, high=look.MOST_BREAK_EVEN),
            ask.ACCEPTANCE,
            ask.FIRST,
            ask.PER_TOKEN,
            ask.BREAK_EVEN,
            colors={"accepted / drafted": GOOD, "position 0": PLAIN, "reached": "purple", "break-even": BAD},
            dashed=("break-even",),
        ),
        lines(
            Text("Acceptance by workload", "Accepted over drafted, by kind of text. A change of the mix of texts "
                 "looks like drift.", look.SHARE, low=0, high=1),
            ask.ACCEPTANCE_BY_WORKLOAD,
        ),
    )  # fmt: skip


def _positions() -> tuple[Panel, ...]:
    return (
        bars(
            Text("Acceptance at each position", "Over the time shown: the accepted share of the tokens drafted at this "
                 "position. Each position counts only blocks that are long enough.", look.SHARE, low=0, high=1),
            ask.PER_POSITION_NOW,
        ),
        lines(
            Text("Acceptance by position", "The accepted share of the tokens drafted at each position, over time.",
                 look.SHARE, low=0, high=1),
            ask.PER_POSITION,
        ),
        bars(
            Text("Position 0 by workload", "Over the time shown: the accepted share of first drafted tokens, by kind "
                 "of text.", look.SHARE, low=0, high=1),
            ask.FIRST_BY_WORKLOAD,
        ),
    )  # fmt: skip


def _drift(alerting: Alerting) -> tuple[Panel, ...]:
    floor, ratio = alerting.acceptance_floor, alerting.drift_ratio
    return (
        lines(
            Text("Acceptance and its floor", f"Of a token that was reached, over {alerting.window}. Below "
                 f"{floor:.0%} for two windows DraftdAcceptanceBelowFloor fires, given enough samples. Dashed: the "
                 "baseline, at level full. Prompt lookup is left out: its drafts cost nothing.",
                 look.SHARE, low=0, high=1),
            ask.judged(alerting),
            ask.baseline(alerting),
            steps=((None, BAD), (floor, GOOD)),
            dashed=("^baseline",),
        ),
        lines(
            Text("Drift", f"Acceptance over {alerting.window} as a share of that over the {alerting.baseline} that "
                 f"ended {alerting.baseline_offset} ago. Below {ratio:.0%} for two windows DraftdAcceptanceDrift "
                 "fires, given enough samples.", look.SHARE, low=0),
            ask.against_baseline(alerting),
            steps=((None, BAD), (ratio, GOOD)),
        ),
        lines(
            Text("Samples", f"Steps that drafted, in {alerting.window}. With fewer than {alerting.min_drafts} the "
                 "alerts give no verdict.", look.COUNT, low=0),
            ask.samples(alerting),
            steps=((None, WARN), (alerting.min_drafts, GOOD)),
        ),
    )  # fmt: skip


def _depth() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Depth chosen", "Share of the steps of speculative requests, by number of drafted tokens. None: the "
                 "prompt's last step, and steps in which drafting did not pay.", look.SHARE, low=0, high=1),
            *ask.DEPTH_SHARES,
            stacked=True,
            colors={"^none$": "text", **_DEPTHS},
        ),
        lines(
            Text("Steps parked", "Share of the steps of speculative requests, by kind of text, that drafted nothing "
                 "because it did not pay. Near one, drafting hardly ever pays here; a few steps still draft, to "
                 "see whether it pays again.", look.SHARE, low=0, high=1),
            ask.PARKED_SHARE,
        ),
        lines(
            Text("Steps capped", "Share of the steps of speculative requests in which more drafted tokens would have "
                 "paid than engine.max_draft_tokens, the request or the fallback level allowed.", look.SHARE, low=0,
                 high=1),
            ask.CAPPED_SHARE,
        ),
    )  # fmt: skip


def _rollbacks() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Steps rolled back", "Share of the drafted steps in which the target rejected a token.",
                 look.SHARE, low=0, high=1, width=12),
            ask.ROLLBACK_SHARE,
        ),
        lines(
            Text("Drafted tokens", "Drafted tokens, accepted or rolled back.",
                 look.TOKENS_PER_SECOND, low=0, width=12),
            *ask.DRAFTED_OUTCOME,
            stacked=True,
            colors={"accepted": GOOD, "rolled back": WARN},
        ),
    )  # fmt: skip


def _cost() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Forwards per token", "Forward passes per emitted token. The target's is 1 without "
                 "speculation and falls with acceptance; the draft's is what speculation costs.",
                 look.COUNT, low=0, decimals=2),
            *ask.FORWARDS_PER_TOKEN,
            colors={"target, speculative": PLAIN, "target, autoregressive": WARN, "draft": "purple"},
        ),
        lines(
            Text("Time in a step", "Mean time of drafting in a drafted step, and of the target's forward pass in "
                 "a step of either mode.", look.SECONDS, low=0),
            ask.DRAFT_TIME,
            ask.VERIFY_TIME,
            colors={"draft": "purple", "speculative": PLAIN, "autoregressive": WARN},
        ),
        lines(
            Text("Where the time goes", "Seconds per second spent drafting and in the target's forward, summed over "
                 "the requests in each step.", look.SECONDS, low=0),
            *ask.TIME_SHARES,
            stacked=True,
            percent=True,
            colors={"drafting": "purple", "verifying": PLAIN},
        ),
    )  # fmt: skip


def _fallback() -> tuple[Panel, ...]:
    return (
        states(
            Text("Level and flag", "The level of the fallback ladder in force, and whether the feature flag lets "
                 "requests speculate.", look.LEVEL),
            (ask.LEVELS, look.LEVELS),
            (ask.FLAGS, look.FLAG),
        ),
        traces(
            lines(
                Text("Tokens by level", "Tokens emitted, by the level in force when their request was planned.",
                     look.TOKENS_PER_SECOND, low=0),
                ask.TOKENS_BY_LEVEL,
                stacked=True,
                colors={"full": GOOD, "short_block": "yellow", "light_draft": WARN, "autoregressive": BAD},
            ),
            tempo.STEPPED_DOWN,
            "Requests planned below full",
        ),
        lines(
            Text("Mean accepted length by workload", "Tokens that a drafted step gives, by kind of text.",
                 "suffix: tokens", low=1, decimals=2),
            ask.MEAN_LENGTH,
        ),
    )  # fmt: skip
