"""Queries of speculation: acceptance, break-even, depth, forwards, time, and drift from the baseline."""

from __future__ import annotations

from dashboards import ratios
from dashboards.evidence import BY_PAIR, FULL
from dashboards.queries.query import (
    DRAFT,
    ENGINE,
    MODE,
    MODEL,
    RANGE,
    RATE,
    REQUESTS,
    WORKLOAD,
    Query,
    counted,
    gauge,
    grouped,
    none_yet,
    over,
    shown,
)
from dashboards.ratios import INSTANCE, label, matching, summed
from dashboards.settings import Alerting
from draftd.core import PROMPT_LOOKUP, DecodeMode
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric

POSITION, LEVEL = label(a.POSITION), label(a.PLAN_LEVEL)
DEEPEST = 7  # greater depths share a line: no known chip profits from blocks longer than eight
_BY_PAIR = f"{shown(WORKLOAD)} · {shown(DRAFT)}"

SPEEDUP_NOW = Query(ratios.speedup(REQUESTS, RANGE), "speed-up", instant=True)
SPEEDUP = Query(ratios.speedup(REQUESTS, RATE), "measured")
SPEEDUP_BY_WORKLOAD = Query(ratios.speedup(REQUESTS, RATE, (WORKLOAD,)), shown(WORKLOAD))

ACCEPTANCE_NOW = Query(ratios.acceptance(REQUESTS, RANGE), "accepted / drafted", instant=True)
BREAK_EVEN_NOW = Query(ratios.break_even_acceptance(REQUESTS, RANGE), "break-even", instant=True)
ACCEPTANCE = Query(ratios.acceptance(REQUESTS, RATE), "accepted / drafted")
BREAK_EVEN = Query(ratios.break_even_acceptance(REQUESTS, RATE), "break-even")
PER_TOKEN = Query(ratios.acceptance_per_token(REQUESTS, RATE), "of a token that was reached")
FIRST = Query(ratios.acceptance_at(0, REQUESTS, RATE), "at position 0")
FIRST_NOW = Query(ratios.acceptance_at(0, REQUESTS, RANGE), "position 0", instant=True)
MEAN_LENGTH_NOW = Query(ratios.mean_accepted_length(REQUESTS, RANGE), "tokens a step", instant=True)
MEAN_LENGTH = Query(ratios.mean_accepted_length(REQUESTS, RATE, (WORKLOAD,)), shown(WORKLOAD))

FIRST_BY_WORKLOAD = Query(ratios.acceptance_at(0, REQUESTS, RANGE, (WORKLOAD,)), shown(WORKLOAD), instant=True)
ACCEPTANCE_BY_WORKLOAD = Query(ratios.acceptance(REQUESTS, RATE, (WORKLOAD,)), shown(WORKLOAD))
PER_POSITION = Query(
    over(summed(catalog.ACCEPTED_PER_POS, REQUESTS, RATE, (POSITION,)),
         summed(catalog.DRAFTED_PER_POS, REQUESTS, RATE, (POSITION,))),
    f"position {shown(POSITION)}",
)  # fmt: skip
PER_POSITION_NOW = Query(
    over(summed(catalog.ACCEPTED_PER_POS, REQUESTS, RANGE, (POSITION,)),
         summed(catalog.DRAFTED_PER_POS, REQUESTS, RANGE, (POSITION,))),
    f"position {shown(POSITION)}",
    instant=True,
)  # fmt: skip

ROLLBACK_SHARE = Query(
    over(summed(catalog.ROLLBACKS, REQUESTS, RATE, (WORKLOAD,)), summed(catalog.DRAFTS, REQUESTS, RATE, (WORKLOAD,))),
    shown(WORKLOAD),
)
DRAFTED_OUTCOME = (
    Query(summed(catalog.ACCEPTED_TOKENS, REQUESTS, RATE), "accepted"),
    Query(summed(catalog.ROLLED_BACK_TOKENS, REQUESTS, RATE), "rolled back"),
)
FORWARDS_PER_TOKEN = (
    Query(ratios.forwards_per_token(catalog.TARGET_FORWARDS, REQUESTS, RATE, (MODE,)), f"target, {shown(MODE)}"),
    Query(ratios.forwards_per_token(catalog.DRAFT_FORWARDS, matching(REQUESTS, f'{MODE}="speculative"'), RATE, (MODE,)),
          f"draft, {shown(MODE)}"),
)  # fmt: skip

MEAN_DEPTH_NOW = Query(
    over(summed(catalog.DRAFT_TOKENS, REQUESTS, RANGE), summed(catalog.DRAFTS, REQUESTS, RANGE)),
    "drafted a step",
    instant=True,
)


_SPECULATIVE = matching(REQUESTS, f'{MODE}="{DecodeMode.SPECULATIVE.value}"')


def _reached(position: int) -> str:
    """Counts the steps that drafted at this position (from 0), that is, more than `position` tokens."""
    return summed(catalog.DRAFTED_PER_POS, matching(_SPECULATIVE, f'{POSITION}="{position}"'), RATE)


def _share_of_steps(steps: str) -> str:
    return over(steps, summed(catalog.TARGET_FORWARDS, _SPECULATIVE, RATE))


def _exactly(depth: int) -> str:
    """Counts the steps that drafted exactly `depth` tokens: those that drafted at the last position, minus those at the
    next."""
    last, next_one = _reached(depth - 1), _reached(depth)
    return f"({last} - ({next_one} or {last} * 0))"


_WITHOUT = (
    f"({summed(catalog.TARGET_FORWARDS, _SPECULATIVE, RATE)} - "
    f"({summed(catalog.DRAFTS, _SPECULATIVE, RATE)} or {summed(catalog.TARGET_FORWARDS, _SPECULATIVE, RATE)} * 0))"
)
DEPTH_SHARES = (
    Query(_share_of_steps(_WITHOUT), "none"),
    *(Query(_share_of_steps(_exactly(depth)), str(depth)) for depth in range(1, DEEPEST + 1)),
    Query(_share_of_steps(_reached(DEEPEST)), f"{DEEPEST + 1} or more"),
)


def _of_steps(steps: Metric) -> Query:
    """Returns the share of such steps among the steps of speculative requests, by category."""
    every = summed(catalog.TARGET_FORWARDS, _SPECULATIVE, RATE, (WORKLOAD,))
    return Query(over(summed(steps, _SPECULATIVE, RATE, (WORKLOAD,)), every), shown(WORKLOAD))


PARKED_SHARE, CAPPED_SHARE = _of_steps(catalog.PARKED_STEPS), _of_steps(catalog.CAPPED_STEPS)

DRAFT_TIME = Query(
    over(summed(catalog.DRAFT_TIME, REQUESTS, RATE), summed(catalog.DRAFTS, REQUESTS, RATE)), "draft, a drafted step"
)
VERIFY_TIME = Query(
    over(summed(catalog.VERIFY_TIME, REQUESTS, RATE, (MODE,)),
         summed(catalog.TARGET_FORWARDS, REQUESTS, RATE, (MODE,))),
    f"target, a step, {shown(MODE)}",
)  # fmt: skip
TIME_SHARES = (
    Query(summed(catalog.DRAFT_TIME, REQUESTS, RATE), "drafting"),
    Query(summed(catalog.VERIFY_TIME, REQUESTS, RATE), "verifying"),
)
TOKENS_BY_LEVEL = Query(
    summed(catalog.TOKENS, matching(REQUESTS, f'{label(a.TOKEN_TYPE)}="output"'), RATE, (LEVEL,)), shown(LEVEL)
)

LEVEL_NOW = Query(grouped(gauge(catalog.FALLBACK_LEVEL, ENGINE), function="min"), "lowest", instant=True)
LEVELS = Query(grouped(gauge(catalog.FALLBACK_LEVEL, ENGINE), (MODEL, INSTANCE), "min"), f"level · {shown(INSTANCE)}")
FLAG_NOW = Query(grouped(gauge(catalog.FLAG_ENABLED, ENGINE), function="min"), "lowest", instant=True)
FLAGS = Query(grouped(gauge(catalog.FLAG_ENABLED, ENGINE), (MODEL, INSTANCE), "min"), f"flag · {shown(INSTANCE)}")

FAILURES = (
    Query(none_yet(counted(catalog.DRAFTER_ERRORS, REQUESTS, RANGE), RANGE), "drafting failed", instant=True),
    Query(none_yet(counted(catalog.VERIFIER_ERRORS, REQUESTS, RANGE), RANGE), "a step failed", instant=True),
)


# Prompt lookup drafts at no cost and may miss most of the time: break-even judges it, not the floor.
_BY_MODEL = matching(REQUESTS, f'{DRAFT}!="{PROMPT_LOOKUP}"')
FEW = 0.1  # share of the alerts' minimum of samples; a line from fewer would be noise


def judged(alerting: Alerting) -> Query:
    """Returns acceptance as the alert on its floor computes it, over the alert's window."""
    return Query(_now(alerting, _BY_MODEL), _BY_PAIR)


def baseline(alerting: Alerting) -> Query:
    """Returns the acceptance baseline, from requests at level `full`."""
    return Query(_baseline(alerting, _BY_MODEL), f"baseline, {_BY_PAIR}")


def against_baseline(alerting: Alerting) -> Query:
    """Returns acceptance divided by its baseline, for every drafter."""
    return Query(over(f"({_now(alerting, REQUESTS)})", f"({_baseline(alerting, REQUESTS)})"), _BY_PAIR)


def samples(alerting: Alerting) -> Query:
    """Returns the number of steps that drafted, in the alerts' window."""
    return Query(_drafts(alerting, REQUESTS), _BY_PAIR)


def _now(alerting: Alerting, selector: str) -> str:
    value = ratios.acceptance_per_token(selector, alerting.window, BY_PAIR)
    return f"{value} and {_drafts(alerting, selector)} >= {alerting.min_drafts * FEW:g}"


def _baseline(alerting: Alerting, selector: str) -> str:
    full = matching(selector, FULL)
    return ratios.acceptance_per_token(full, alerting.baseline, BY_PAIR, offset=alerting.baseline_offset)


def _drafts(alerting: Alerting, selector: str) -> str:
    return summed(catalog.DRAFTS, selector, alerting.window, BY_PAIR, function="increase")
