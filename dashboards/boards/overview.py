"""Overview dashboard, to be read in five seconds: does draftd serve, does speculation pay, is the machine healthy?"""

from __future__ import annotations

from dashboards.board import Board, Row, traces
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, WARN, Panel, Text, Word, lines, single, states, tile
from dashboards.queries import machine, serving, speculation
from dashboards.queries import traces as tempo
from dashboards.settings import Alerting

_FEW = 0.05  # share of the requests above which errors are no longer chance


def board(alerting: Alerting) -> Board:
    return Board(
        "overview",
        "Overview",
        "Is draftd serving, does speculation pay, is the machine healthy? Tiles with a share, a ratio or a percentile "
        "cover all the time shown, so they have a value even if no request runs now.",
        (
            Row("At a glance", (*_service(alerting), *_health(alerting))),
            Row("Does speculation pay", _speculation(alerting)),
            Row("What clients get", _traffic(alerting)),
            Row("Load and machine", _load()),
        ),
    )


def _service(alerting: Alerting) -> tuple[Panel, ...]:
    pays = alerting.speedup_floor
    serving_text = tile(
        "Serving",
        "Daemons that accept requests now. Not counted: a daemon that loads or drains, whose ranks do not serve, or "
        "that refused all recent requests because it was full, short of memory or broken. NONE: no daemon accepts "
        "requests, or telemetry does not arrive (see the dashboard Telemetry health).",
        "suffix: serving",
        decimals=0,
    )
    speedup = tile(
        "Speed-up by speculation",
        "Speed of the steps that drafted, divided by the speed of autoregressive steps at the same batch size, both "
        f"measured on this machine, over the time shown. Below {pays:g}× drafts cost more time than they save.",
        look.TIMES,
        no_value="no drafts",
        decimals=2,
    )
    acceptance = tile(
        "Acceptance and break-even",
        "First: share of the drafted tokens that the target accepted, over the time shown. Second: break-even, the "
        "acceptance at which drafting is just as fast as not drafting, at the measured costs. Drafting pays while "
        "the first is higher.",
        look.SHARE,
        no_value="no drafts",
        decimals=0,
    )
    level = tile(
        "Fallback level",
        "The lowest fallback level now in force on any chosen daemon. From full (no restriction) over short block "
        "(fewer drafted tokens) and light draft (a cheaper drafter) down to autoregressive (no drafts).",
        look.LEVEL,
        no_value="not known",
    )
    flag = tile(
        "Speculation flag",
        "Whether the feature flag lets requests speculate by default, now; off if it is off on any chosen daemon. "
        "Targeting rules of the flag may decide otherwise for single requests.",
        look.LEVEL,
        no_value="not known",
    )
    tokens = tile(
        "Tokens per second",
        "Output tokens per second of all chosen daemons now.",
        look.TOKENS_PER_SECOND,
        no_value="no requests",
        decimals=0,
    )
    return (
        single(serving_text, serving.SERVING, steps=((None, BAD), (1, GOOD)), words={0: Word("NONE", BAD)}),
        single(speedup, speculation.SPEEDUP_NOW, steps=((None, BAD), (pays, GOOD))),
        single(acceptance, speculation.ACCEPTANCE_NOW, speculation.BREAK_EVEN_NOW),
        single(level, speculation.LEVEL_NOW, words=look.LEVELS),
        single(flag, speculation.FLAG_NOW, words=look.FLAG),
        single(tokens, serving.TOKENS_NOW),
    )


def _health(alerting: Alerting) -> tuple[Panel, ...]:
    first = tile(
        "First token, p95",
        "95th percentile of the time from a request's arrival to its first token, over the time shown; successful "
        f"requests only. Users hardly notice waits below {alerting.ttft_floor_seconds:g} s.",
        look.SECONDS,
        no_value="no requests",
    )
    errors = tile(
        "Errors",
        "Share of all requests that failed or passed their deadline, over the time shown. Refused requests are not "
        "errors.",
        look.SHARE,
        no_value="no requests",
        decimals=1,
    )
    refused = tile(
        "Refused",
        "Share of all requests that were refused, over the time shown: queue full, no memory, invalid input, or "
        "daemon not serving.",
        look.SHARE,
        no_value="no requests",
        decimals=1,
    )
    headroom = tile(
        "Memory headroom",
        "Available memory minus the configured floor, now, on the machine with the least. Red: less memory than the "
        "floor is left.",
        look.BYTES,
        decimals=1,
    )
    pressure = tile(
        "Memory pressure",
        "Memory pressure now, on the machine where it is worst: the kernel's level on macOS, derived from stalls on "
        "Linux. At critical the system may end processes.",
        look.LEVEL,
    )
    thermal = tile(
        "Thermal level",
        "The thermal level that macOS reports now, on the machine where it is worst. From heavy on, the machine is "
        "slowed down. Linux reports none.",
        look.LEVEL,
        no_value="not reported",
    )
    some = ((None, GOOD), (0.001, WARN), (_FEW, BAD))
    return (
        single(first, serving.TTFT_NOW, steps=((None, GOOD), (alerting.ttft_floor_seconds, WARN))),
        single(errors, serving.ERROR_SHARE_NOW, steps=some),
        single(refused, serving.REFUSED_SHARE_NOW, steps=some),
        single(headroom, machine.HEADROOM_NOW, steps=((None, BAD), (0, GOOD))),
        single(pressure, machine.PRESSURE_NOW, words=look.PRESSURE),
        single(thermal, machine.THERMAL_NOW, words=look.THERMAL),
    )


def _speculation(alerting: Alerting) -> tuple[Panel, ...]:
    speedup = Text(
        "Speed-up, measured",
        "Speed of the steps that drafted, divided by the speed of autoregressive steps at the same batch size, both "
        "measured on this machine. Below the dashed line drafts cost more time than they save. Gaps: nothing was "
        "drafted.",
        look.TIMES,
        decimals=2,
    )
    acceptance = Text(
        "Acceptance against break-even",
        "Accepted tokens divided by drafted tokens. Dashed: break-even, the acceptance at which the same steps would "
        "have been just as fast without drafts. Drafting pays while acceptance is above it. Above 100 %, no "
        "acceptance would pay.",
        look.SHARE,
        low=0,
        high=look.MOST_BREAK_EVEN,
    )
    level = Text(
        "Fallback level and flag",
        "For each daemon: the fallback level in force, and whether the feature flag lets requests speculate by "
        "default.",
        look.LEVEL,
    )
    return (
        traces(
            lines(speedup, speculation.SPEEDUP, steps=((None, BAD), (alerting.speedup_floor, GOOD))),
            tempo.DID_NOT_PAY,
            "Requests whose drafts did not pay",
        ),
        lines(
            acceptance,
            speculation.ACCEPTANCE,
            speculation.BREAK_EVEN,
            colors={"accepted": GOOD, "break-even": BAD},
            dashed=("break-even",),
        ),
        states(level, (speculation.LEVELS, look.LEVELS), (speculation.FLAGS, look.FLAG)),
    )


def _traffic(alerting: Alerting) -> tuple[Panel, ...]:
    tokens = Text(
        "Tokens per second by mode",
        "Output tokens per second, by decoding mode of their request: speculative or autoregressive.",
        look.TOKENS_PER_SECOND,
        low=0,
    )
    outcomes = Text(
        "Requests by outcome",
        "Requests that ended, per minute, by outcome. stop and length are successes; refused requests are included.",
        look.PER_MINUTE,
    )
    first = Text(
        "Time to first token",
        "Time from a request's arrival to its first token, successful requests only: median, 95th and 99th "
        "percentile. Exemplars (the points) lead to traces.",
        look.SECONDS,
        low=0,
    )
    return (
        lines(tokens, serving.TOKENS_BY_MODE, stacked=True, colors=look.MODES),
        traces(
            lines(outcomes, serving.BY_OUTCOME, stacked=True, colors=look.OUTCOMES),
            tempo.FAILED,
            "Requests that failed",
        ),
        traces(lines(first, *serving.TTFT, colors=look.PERCENTILES), tempo.ENDED),
    )


def _load() -> tuple[Panel, ...]:
    queue = Text(
        "Requests in progress",
        "Active: requests in prefill or decoding. Queued: requests that wait. Dashed: how many may wait; beyond it, "
        "requests are refused.",
        look.COUNT,
        low=0,
    )
    headroom = Text(
        "Headroom over the floor",
        "Available memory minus the configured floor, for each machine. Below zero less memory than the floor is left.",
        look.BYTES,
    )
    state = Text(
        "Pressure and heat",
        "For each machine: memory pressure, and on macOS the thermal level. From heavy on, the machine is slowed down.",
        look.LEVEL,
    )
    return (
        lines(queue, serving.ACTIVE, serving.QUEUED, serving.CAPACITY, dashed=("capacity",)),
        lines(headroom, machine.HEADROOM[0], steps=((None, BAD), (0, GOOD))),
        states(state, (machine.PRESSURE, look.PRESSURE), (machine.THERMAL, look.THERMAL)),
    )
