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
        "Acceptance, break-even, depth and cost of speculative decoding. Accepted / drafted falls as more tokens are "
        "drafted, although the draft is as good as before. Acceptance at position 0 and acceptance of reached tokens "
        "do not.",
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
            tile("Speed-up",
                 "Speed of the steps that drafted, divided by the speed of autoregressive steps at the same batch "
                 f"size, both measured on this machine, over the time shown. Below {pays:g}× drafts cost more time "
                 "than they save.",
                 look.TIMES, no_value=none, decimals=2),
            ask.SPEEDUP_NOW,
            steps=((None, BAD), (pays, GOOD)),
        ),
        single(
            tile("Acceptance and break-even",
                 "First: share of the drafted tokens that the target accepted, over the time shown. Second: "
                 "break-even, the acceptance at which drafting is just as fast as not drafting. Drafting pays while "
                 "the first is higher.", look.SHARE, no_value=none, decimals=0),
            ask.ACCEPTANCE_NOW,
            ask.BREAK_EVEN_NOW,
        ),
        single(
            tile("Accepted at position 0",
                 "Share of the first tokens of all drafts that the target accepted, over the time shown. It does not "
                 f"depend on how many tokens are drafted. Red: below {floor:.0%}.",
                 look.SHARE, no_value=none, decimals=0),
            ask.FIRST_NOW,
            steps=((None, BAD), (floor, GOOD)),
        ),
        single(
            tile("Mean accepted length",
                 "Mean number of tokens from a step that drafts, over the time shown: the accepted ones and one of "
                 "the target's own. At 1 no draft is accepted. Tokens beyond the end of a text count too.",
                 "suffix: tokens", no_value=none, decimals=2),
            ask.MEAN_LENGTH_NOW,
        ),
        single(
            tile("Mean depth",
                 "Mean number of tokens drafted in a step that drafts, over the time shown.",
                 "suffix: tokens", no_value=none, decimals=2),
            ask.MEAN_DEPTH_NOW,
        ),
        single(
            tile("Failures",
                 "Over the time shown: requests for which drafting failed, and requests in a decode step that "
                 "failed. They continued without drafts, or ended in an error.", look.COUNT, decimals=0),
            *ask.FAILURES,
            steps=look.NONE_IS_WELL,
        ),
    )  # fmt: skip


def _acceptance(alerting: Alerting) -> tuple[Panel, ...]:
    return (
        traces(
            lines(
                Text("Speed-up by workload",
                     "Speed of the steps that drafted, divided by the speed of autoregressive steps at the same "
                     "batch size, both measured on this machine, by kind of text. Below the dashed line drafts cost "
                     "more time than they save.", look.TIMES, decimals=2),
                ask.SPEEDUP_BY_WORKLOAD,
                steps=((None, BAD), (alerting.speedup_floor, GOOD)),
            ),
            tempo.DID_NOT_PAY,
            "Requests whose drafts did not pay",
        ),
        lines(
            Text("Acceptance, three ways",
                 "Accepted / drafted: share of all drafted tokens. At position 0: share of the first tokens of all "
                 "drafts. Reached: accepted / (accepted + rollbacks), which leaves out tokens after a rejected one. "
                 "Dashed: break-even of accepted / drafted. Drafting pays above it; if it is above 100 %, no "
                 "acceptance would pay.",
                 look.SHARE, low=0, high=look.MOST_BREAK_EVEN),
            ask.ACCEPTANCE,
            ask.FIRST,
            ask.PER_TOKEN,
            ask.BREAK_EVEN,
            colors={"accepted / drafted": GOOD, "position 0": PLAIN, "reached": "purple", "break-even": BAD},
            dashed=("break-even",),
        ),
        lines(
            Text("Acceptance by workload",
                 "Share of the drafted tokens that the target accepted, by kind of text. If only the mix of texts "
                 "changes, total acceptance changes, but these lines do not.", look.SHARE, low=0, high=1),
            ask.ACCEPTANCE_BY_WORKLOAD,
        ),
    )  # fmt: skip


def _positions() -> tuple[Panel, ...]:
    return (
        bars(
            Text("Acceptance at each position",
                 "Share of the tokens drafted at each position of a draft that the target accepted, over the time "
                 "shown. Position 0 is the first token. A position counts only drafts that are long enough to have "
                 "it.", look.SHARE, low=0, high=1),
            ask.PER_POSITION_NOW,
        ),
        lines(
            Text("Acceptance by position",
                 "Share of the tokens drafted at each position of a draft that the target accepted. Position 0 is "
                 "the first token; later ones are accepted less often.",
                 look.SHARE, low=0, high=1),
            ask.PER_POSITION,
        ),
        bars(
            Text("Position 0 by workload",
                 "Share of the first tokens of all drafts that the target accepted, over the time shown, by kind of "
                 "text.", look.SHARE, low=0, high=1),
            ask.FIRST_BY_WORKLOAD,
        ),
    )  # fmt: skip


def _drift(alerting: Alerting) -> tuple[Panel, ...]:
    floor, ratio = alerting.acceptance_floor, alerting.drift_ratio
    return (
        lines(
            Text("Acceptance and its floor",
                 f"Accepted / (accepted + rollbacks) over {alerting.window}: the accepted share of the drafted tokens "
                 "that the target reached. Dashed: the baseline, from requests at level full. "
                 f"DraftdAcceptanceBelowFloor fires if a line stays below {floor:.0%} for two windows with enough "
                 "samples. Prompt lookup is left out: its drafts cost nothing.",
                 look.SHARE, low=0, high=1),
            ask.judged(alerting),
            ask.baseline(alerting),
            steps=((None, BAD), (floor, GOOD)),
            dashed=("^baseline",),
        ),
        lines(
            Text("Drift",
                 f"Acceptance of reached tokens over {alerting.window}, divided by its baseline, the same over the "
                 f"{alerting.baseline} that ended {alerting.baseline_offset} ago. 100 %: unchanged. "
                 f"DraftdAcceptanceDrift fires if a line stays below {ratio:.0%} for two windows with enough samples.",
                 look.SHARE, low=0),
            ask.against_baseline(alerting),
            steps=((None, BAD), (ratio, GOOD)),
        ),
        lines(
            Text("Samples",
                 f"Steps that drafted in the last {alerting.window}. With fewer than {alerting.min_drafts}, the "
                 "alerts on acceptance and speed-up do not fire.", look.COUNT, low=0),
            ask.samples(alerting),
            steps=((None, WARN), (alerting.min_drafts, GOOD)),
        ),
    )  # fmt: skip


def _depth() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Depth chosen",
                 "Share of the decode steps of speculative requests, by number of tokens drafted. None: steps in "
                 "which drafting would not pay, and the last step of each prompt, which gives the first token.",
                 look.SHARE, low=0, high=1),
            *ask.DEPTH_SHARES,
            stacked=True,
            colors={"^none$": "text", **_DEPTHS},
        ),
        lines(
            Text("Steps parked",
                 "Share of the decode steps of speculative requests, by kind of text, that drafted nothing because "
                 "it does not pay. Near 100 % drafting hardly ever pays; a few steps still draft, to find out when "
                 "it pays again.", look.SHARE, low=0, high=1),
            ask.PARKED_SHARE,
        ),
        lines(
            Text("Steps capped",
                 "Share of the decode steps of speculative requests, by kind of text, in which more drafted tokens "
                 "would have paid, but engine.max_draft_tokens, the request or the fallback level did not allow "
                 "more.", look.SHARE, low=0,
                 high=1),
            ask.CAPPED_SHARE,
        ),
    )  # fmt: skip


def _rollbacks() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Steps rolled back",
                 "Share of the steps that drafted, by kind of text, in which the target rejected a token. Longer "
                 "drafts are rejected more often.",
                 look.SHARE, low=0, high=1, width=12),
            ask.ROLLBACK_SHARE,
        ),
        lines(
            Text("Drafted tokens",
                 "Drafted tokens per second: accepted by the target, or rolled back (a rejected token and all after "
                 "it).",
                 look.TOKENS_PER_SECOND, low=0, width=12),
            *ask.DRAFTED_OUTCOME,
            stacked=True,
            colors={"accepted": GOOD, "rolled back": WARN},
        ),
    )  # fmt: skip


def _cost() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Forwards per token",
                 "Forward passes per output token. Target: 1 without speculation; lower is better. Draft: forward "
                 "passes of the draft model or draft head, which speculation adds.",
                 look.COUNT, low=0, decimals=2),
            *ask.FORWARDS_PER_TOKEN,
            colors={"target, speculative": PLAIN, "target, autoregressive": WARN, "draft": "purple"},
        ),
        lines(
            Text("Time in a step",
                 "Mean time per step. Draft: drafting, in steps that draft. Target: the target's forward pass, in "
                 "speculative and autoregressive requests.", look.SECONDS, low=0),
            ask.DRAFT_TIME,
            ask.VERIFY_TIME,
            colors={"draft": "purple", "speculative": PLAIN, "autoregressive": WARN},
        ),
        lines(
            Text("Time of drafting and verifying",
                 "Drafting and the target's forward passes, as shares of their total time. A step's time counts once "
                 "for each request in it.", look.SECONDS, low=0),
            *ask.TIME_SHARES,
            stacked=True,
            percent=True,
            colors={"drafting": "purple", "verifying": PLAIN},
        ),
    )  # fmt: skip


def _fallback() -> tuple[Panel, ...]:
    return (
        states(
            Text("Level and flag",
                 "For each daemon: the fallback level in force, and whether the feature flag lets requests speculate "
                 "by default.", look.LEVEL),
            (ask.LEVELS, look.LEVELS),
            (ask.FLAGS, look.FLAG),
        ),
        traces(
            lines(
                Text("Tokens by level",
                     "Output tokens per second, by the fallback level that was in force when their request was "
                     "planned.",
                     look.TOKENS_PER_SECOND, low=0),
                ask.TOKENS_BY_LEVEL,
                stacked=True,
                colors={"full": GOOD, "short_block": "yellow", "light_draft": WARN, "autoregressive": BAD},
            ),
            tempo.STEPPED_DOWN,
            "Requests planned below full",
        ),
        lines(
            Text("Mean accepted length by workload",
                 "Mean number of tokens from a step that drafts, by kind of text: the accepted ones and one of the "
                 "target's own. At 1 no draft is accepted.",
                 "suffix: tokens", low=1, decimals=2),
            ask.MEAN_LENGTH,
        ),
    )  # fmt: skip
