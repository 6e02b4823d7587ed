"""Names of what the fallback tells: levels, signals, alerts, probes, canaries. Part of the catalog."""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry.kinds import Kind, Metric

FALLBACK_LEVEL = Metric(
    "draftd.fallback.level",
    Kind.GAUGE,
    "{level}",
    "Fallback level in force: 3 full, 2 short block, 1 light draft, 0 autoregressive",
    (a.MODEL,),
)
FALLBACK_RUNG = Metric(
    "draftd.fallback.rung", Kind.GAUGE, "{rung}", "Rungs below the top of the ladder; 0 is full", (a.MODEL,)
)
FALLBACK_HOLD = Metric(
    "draftd.fallback.hold", Kind.GAUGE, "{hold}", "1 while an operator holds the level, else 0", (a.MODEL,)
)
FALLBACK_DEMAND = Metric(
    "draftd.fallback.demand",
    Kind.GAUGE,
    "{level}",
    "Fallback level that a signal asks for, as in draftd.fallback.level; 3 once it asks for none any more",
    (a.MODEL, a.SIGNAL),
)
FALLBACK_TRANSITIONS = Metric(
    "draftd.fallback.transitions",
    Kind.COUNTER,
    "{transition}",
    "Steps down and up the ladder",
    (a.MODEL, a.TRANSITION_FROM, a.TRANSITION_TO, a.SIGNAL),
)
FALLBACK_SAVE_ERRORS = Metric(
    "draftd.fallback.save.errors", Kind.COUNTER, "{error}", "The ladder's state could not be saved", (a.MODEL,)
)
DRIFT_SUM = Metric(
    "draftd.drift.sum",
    Kind.GAUGE,
    "1",
    "CUSUM of acceptance below its baseline, over the limit at which it is drift: 1 and more is drift",
    (a.MODEL, a.WORKLOAD),
)
ALERT_NOTIFICATIONS = Metric(
    "draftd.alert.notifications",
    Kind.COUNTER,
    "{notification}",
    "Notifications at the webhook, by what became of them",
    (a.MODEL, a.RESULT),
)
ALERT_LEASES = Metric(
    "draftd.alert.leases", Kind.GAUGE, "{alert}", "Alerts that ask for a level at present", (a.MODEL,)
)
ALERT_POLLS = Metric(
    "draftd.alert.polls", Kind.COUNTER, "{poll}", "Times that the source of alerts was asked", (a.MODEL, a.RESULT)
)
PROBES = Metric(
    "draftd.probe.runs",
    Kind.COUNTER,
    "{probe}",
    "Probes of the rung above, by verdict",
    (a.MODEL, a.PLAN_LEVEL, a.RESULT),
)
PROBE_ACCEPTANCE = Metric(
    "draftd.probe.acceptance",
    Kind.GAUGE,
    "1",
    "Acceptance of the drafted tokens that the last probe reached: accepted / (accepted + rollbacks)",
    (a.MODEL,),
)
PROBE_SPEEDUP = Metric(
    "draftd.probe.speedup", Kind.GAUGE, "1", "Speed-up over autoregressive decoding in the last probe", (a.MODEL,)
)
CANARIES = Metric(
    "draftd.canary.runs", Kind.COUNTER, "{run}", "Runs of the quality canaries, by verdict", (a.MODEL, a.RESULT)
)
CANARY_SCORE = Metric(
    "draftd.canary.score",
    Kind.GAUGE,
    "1",
    "Share of the quality canaries that passed their checks in the last run",
    (a.MODEL, a.MODE),
)
CANARY_DIVERGENCES = Metric(
    "draftd.canary.divergences",
    Kind.COUNTER,
    "{divergence}",
    "Greedy canaries whose speculative text was not the autoregressive one",
    (a.MODEL,),
)
ANNOTATIONS = Metric(
    "draftd.annotation.sends", Kind.COUNTER, "{annotation}", "Annotations sent to Grafana", (a.MODEL, a.RESULT)
)

METRICS: tuple[Metric, ...] = (
    FALLBACK_LEVEL,
    FALLBACK_RUNG,
    FALLBACK_HOLD,
    FALLBACK_DEMAND,
    FALLBACK_TRANSITIONS,
    FALLBACK_SAVE_ERRORS,
    DRIFT_SUM,
    ALERT_NOTIFICATIONS,
    ALERT_LEASES,
    ALERT_POLLS,
    PROBES,
    PROBE_ACCEPTANCE,
    PROBE_SPEEDUP,
    CANARIES,
    CANARY_SCORE,
    CANARY_DIVERGENCES,
    ANNOTATIONS,
)
