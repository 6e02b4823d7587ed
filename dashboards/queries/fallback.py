"""Queries of the fallback: current level, signals, transitions, probes, canaries, notifications and annotations."""

from __future__ import annotations

from dashboards.queries.query import (
    ENGINE,
    MACHINE,
    MODE,
    RANGE,
    RATE,
    WORKLOAD,
    Query,
    counted,
    gauge,
    grouped,
    none_yet,
    shown,
)
from dashboards.ratios import INSTANCE, label
from draftd.core import FallbackLevel
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog

SIGNAL, RESULT, LEVEL = label(a.SIGNAL), label(a.RESULT), label(a.PLAN_LEVEL)
STATE_FILE = label(a.STATE_FILE)
FROM, TO = label(a.TRANSITION_FROM), label(a.TRANSITION_TO)

LEVELS_DOWN_NOW = Query(
    grouped(gauge(catalog.FALLBACK_POSITION, ENGINE), function="max"), "levels below full", instant=True
)
HELD_NOW = Query(grouped(gauge(catalog.FALLBACK_HOLD, ENGINE), function="max"), "held", instant=True)
LEASES_NOW = Query(grouped(gauge(catalog.ALERT_LEASES, ENGINE)), "alerts", instant=True)
STEPS_NOW = Query(none_yet(counted(catalog.FALLBACK_TRANSITIONS, ENGINE, RANGE), RANGE), "steps", instant=True)
DIVERGENCES_NOW = Query(none_yet(counted(catalog.CANARY_DIVERGENCES, ENGINE, RANGE), RANGE), "texts", instant=True)

LEVELS_DOWN = Query(grouped(gauge(catalog.FALLBACK_POSITION, ENGINE), (INSTANCE,), "max"), shown(INSTANCE))
HOLDS = Query(grouped(gauge(catalog.FALLBACK_HOLD, ENGINE), (INSTANCE,), "max"), f"hold · {shown(INSTANCE)}")
DEMANDS = Query(
    grouped(f"{gauge(catalog.FALLBACK_DEMAND, ENGINE)} < {FallbackLevel.FULL.value}", (SIGNAL, INSTANCE), "min"),
    f"{shown(SIGNAL)} · {shown(INSTANCE)}",
)
TRANSITIONS = Query(counted(catalog.FALLBACK_TRANSITIONS, ENGINE, RATE, (SIGNAL,)), shown(SIGNAL))
TRANSITIONS_BY_WAY = Query(
    counted(catalog.FALLBACK_TRANSITIONS, ENGINE, RANGE, (FROM, TO)), f"{shown(FROM)} → {shown(TO)}", instant=True
)
DRIFT = Query(
    grouped(gauge(catalog.DRIFT_SUM, ENGINE), (WORKLOAD, INSTANCE), "max"), f"{shown(WORKLOAD)} · {shown(INSTANCE)}"
)
LEASES = Query(grouped(gauge(catalog.ALERT_LEASES, ENGINE), (INSTANCE,)), shown(INSTANCE))

PROBES = Query(counted(catalog.PROBES, ENGINE, RATE, (LEVEL, RESULT)), f"{shown(LEVEL)}, {shown(RESULT)}")
PROBE_ACCEPTANCE = Query(
    grouped(gauge(catalog.PROBE_ACCEPTANCE, ENGINE), (INSTANCE,), "min"), f"acceptance · {shown(INSTANCE)}"
)
PROBE_SPEEDUP = Query(grouped(gauge(catalog.PROBE_SPEEDUP, ENGINE), (INSTANCE,), "min"), shown(INSTANCE))
CANARY_SCORE = Query(grouped(gauge(catalog.CANARY_SCORE, ENGINE), (MODE, INSTANCE), "min"),
                     f"{shown(MODE)} · {shown(INSTANCE)}")  # fmt: skip
CANARIES = Query(counted(catalog.CANARIES, ENGINE, RATE, (RESULT,)), shown(RESULT))
DIVERGENCES = Query(none_yet(counted(catalog.CANARY_DIVERGENCES, ENGINE, RATE), RATE), "texts that differ")

NOTIFICATIONS = Query(counted(catalog.ALERT_NOTIFICATIONS, ENGINE, RATE, (RESULT,)), shown(RESULT))
POLLS = Query(counted(catalog.ALERT_POLLS, ENGINE, RATE, (RESULT,)), shown(RESULT))
ANNOTATIONS = Query(counted(catalog.ANNOTATIONS, ENGINE, RATE, (RESULT,)), f"annotations {shown(RESULT)}")
SAVE_ERRORS = Query(counted(catalog.STATE_SAVE_ERRORS, MACHINE, RATE, (STATE_FILE,)), f"not saved: {shown(STATE_FILE)}")
