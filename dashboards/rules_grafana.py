"""Writes the alerts as Grafana provisions them from a file (apiVersion 1): the same expressions, as Grafana-managed
rules.

Each rule has three nodes: A queries Prometheus, B reduces the result to one number, C compares it. No series (too few
samples, no such sensor, autoregressive traffic) is NoData and counts as normal. Texts use `.Labels` instead of
`$labels`, because Grafana takes a `$` in a provisioning file for an environment variable.
"""

from __future__ import annotations

import math
from typing import Any

from dashboards.alerts import alert_rules
from dashboards.rule import AlertRule
from dashboards.settings import Alerting, duration
from dashboards.written import written

FOLDER = "draftd"
DATASOURCE = "draftd-prometheus"

_EXPRESSION = {"type": "__expr__", "uid": "__expr__"}
_COMPARISONS = {"<": "lt", ">": "gt"}
_SCHEDULER_SECONDS = 10  # Grafana evaluates rules at multiples of this
_HEADER = """\
# Role: draftd's alerts for Grafana. docs/runbooks.md says what each means and what to do.
# Written by `python -m dashboards.generate` from dashboards/alerts.py; the thresholds are in dashboards/settings.py.

"""


def grafana_rules(settings: Alerting) -> str:
    """Returns the file's text."""
    seconds = _SCHEDULER_SECONDS * math.ceil(settings.window_seconds / 10 / _SCHEDULER_SECONDS)
    group = {
        "orgId": 1,
        "name": "draftd",
        "folder": FOLDER,
        "interval": duration(seconds),
        "rules": [_rule(rule) for rule in alert_rules(settings)],
    }
    return written(_HEADER, {"apiVersion": 1, "groups": [group]})


def _rule(rule: AlertRule) -> dict[str, Any]:
    keep = {"keepFiringFor": rule.keep_firing} if rule.keep_firing else {}
    return {
        "uid": rule.uid,
        "title": rule.name,
        "condition": "C",
        "data": [
            _node("A", DATASOURCE, {"expr": rule.value, "instant": True, "range": False, "editorMode": "code"}),
            _node("B", "__expr__", {"type": "reduce", "expression": "A", "reducer": "last", "datasource": _EXPRESSION}),
            _node("C", "__expr__", _threshold(rule)),
        ],
        "for": rule.hold,
        **keep,
        "noDataState": "OK",
        "execErrState": rule.on_error.value,
        "labels": rule.labels,
        "annotations": rule.annotations(".Values.B.Value"),
        "isPaused": False,
    }


def _node(ref: str, datasource: str, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "refId": ref,
        "relativeTimeRange": {"from": 600, "to": 0},  # has no effect: the query is instant and has its own ranges
        "datasourceUid": datasource,
        "model": {"refId": ref, "intervalMs": 1000, "maxDataPoints": 43200, **model},
    }


def _threshold(rule: AlertRule) -> dict[str, Any]:
    evaluator = {"type": _COMPARISONS[rule.fires], "params": [rule.threshold]}
    return {
        "type": "threshold",
        "expression": "B",
        "conditions": [{"evaluator": evaluator}],
        "datasource": _EXPRESSION,
    }
