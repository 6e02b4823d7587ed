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
        "Is draftd serving, does speculation pay, is the machine healthy? Tiles with a share or a ratio cover all the "
        "time shown, so a quiet daemon has figures too.",
        (
            Row("In five seconds", (*_service(alerting), *_health(alerting))),
            Row("Does speculation pay", _speculation(alerting)),
            Row("What clients get", _traffic(alerting)),
            Row("Load and machine", _load()),
        ),
    )


def _service(alerting: Alerting) -> tuple[Panel, ...]:
    pays = alerting.speedup_floor
    serving_text = tile(
        "Serving",
        "Daemons that take requests. Not counted: daemons that load or drain, that lack their group of ranks, or that "
        "had no memory for any recent request. NONE: no daemon does, or their telemetry does not arrive (see "
        "Telemetry health).",
        "suffix: serving",
        decimals=0,
    )
    speedup = tile(
        "Speed-up by speculation",
        "Speed of the drafted steps against autoregressive steps of the same batch, both measured on this machine, "
        f"over the time shown. Below {pays:g}× they cost more than they save.",
        look.TIMES,
        no_value="no drafts",
        decimals=2,
    )
    acceptance = tile(
        "Acceptance and break-even",
        "Share of the drafted tokens that were accepted, and the share above which drafting pays, both "
        "measured over the time shown. The first should be higher.",
        look.SHARE,
        no_value="no drafts",
        decimals=0,
    )
    level = tile(
        "Fallback level",
        "The lowest level in force on any daemon chosen above. At full, all of speculation is allowed.",
        look.LEVEL,
        no_value="not known",
    )
    flag = tile(
        "Speculation's flag",
        "Whether the feature flag's default lets requests speculate; off if it is off on any daemon chosen above.",
        look.LEVEL,
        no_value="not known",
    )
    tokens = tile(
        "Tokens per second",
        "Tokens emitted by all daemons now.",
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
        "The 95th percentile of the time from a request's arrival to its first token, over the time shown. Waits "
        f"below {alerting.ttft_floor_seconds:g} s go unnoticed.",
        look.SECONDS,
        no_value="no requests",
    )
    errors = tile(
        "Errors",
        "Share of the requests over the time shown that failed or ran out of time.",
        look.SHARE,
        no_value="no requests",
        decimals=1,
    )
    refused = tile(
        "Refused",
        "Share of the requests over the time shown that were refused: a full queue, a bad input, draining.",
        look.SHARE,
        no_value="no requests",
        decimals=1,
    )
    headroom = tile(
        "Memory headroom",
        "Available memory minus the configured floor, on the machine with the least. Red: below the floor.",
        look.BYTES,
        decimals=1,
    )
    pressure = tile(
        "Memory pressure", "The operating system's own verdict, on the machine where it is worst.", look.LEVEL
    )
    thermal = tile(
        "Thermal level",
        "The thermal level that macOS reports, where it is worst. From heavy on, the machine is throttled. macOS only.",
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
        "Speed of the drafted steps against autoregressive ones of the same batch. Below the line they do not pay. "
        "Gaps: nothing was drafted.",
        look.TIMES,
        decimals=2,
    )
    acceptance = Text(
        "Acceptance against break-even",
        "Accepted over drafted tokens, and the share above which the same steps would have paid. If that is above "
        "100 %, no acceptance would.",
        look.SHARE,
        low=0,
        high=look.MOST_BREAK_EVEN,
    )
    level = Text(
        "Fallback level and flag",
        "The level of the fallback ladder in force, and whether the feature flag lets requests speculate.",
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
        "Tokens emitted, by the request's decoding mode.",
        look.TOKENS_PER_SECOND,
        low=0,
    )
    outcomes = Text("Requests by outcome", "Requests that ended, by outcome, refused ones included.", look.PER_MINUTE)
    first = Text(
        "Time to first token",
        "From a request's arrival to its first token, successes only. The points are traces.",
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
        "Requests in prefill or decoding, requests in the queue, and the queue's capacity.",
        look.COUNT,
        low=0,
    )
    headroom = Text("Headroom over the floor", "Available memory minus the configured floor.", look.BYTES)
    state = Text(
        "Pressure and heat",
        "The operating system's verdict on memory, and the thermal level if macOS reports it.",
        look.LEVEL,
    )
    return (
        lines(queue, serving.ACTIVE, serving.QUEUED, serving.CAPACITY, dashed=("capacity",)),
        lines(headroom, machine.HEADROOM[0], steps=((None, BAD), (0, GOOD))),
        states(state, (machine.PRESSURE, look.PRESSURE), (machine.THERMAL, look.THERMAL)),
    )
