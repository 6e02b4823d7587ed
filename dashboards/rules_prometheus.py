"""Writes the alerts as a rules file for Prometheus 2.42 or later."""

from __future__ import annotations

from typing import Any

from dashboards.alerts import alert_rules, recording_rules
from dashboards.rule import AlertRule
from dashboards.settings import Alerting
from dashboards.written import written

_HEADER = """\
# Role: draftd's alerts for Prometheus. docs/runbooks.md says what each means and what to do.
# Written by `python -m dashboards.generate` from dashboards/alerts.py; the thresholds are in dashboards/settings.py.
# tests/rules/ shows when each fires, does not fire, has too few samples to tell, and resolves.

"""


def prometheus_rules(settings: Alerting) -> str:
    """Returns the file's text. The baselines come first, because the alerts of the same evaluation read them."""
    recorded = [{"record": rule.name, "expr": rule.expr} for rule in recording_rules(settings)]
    alerts = [_alert(rule) for rule in alert_rules(settings, recorded=True)]
    group = {"name": "draftd", "interval": settings.interval, "rules": [*recorded, *alerts]}
    return written(_HEADER, {"groups": [group]})


def _alert(rule: AlertRule) -> dict[str, Any]:
    keep = {"keep_firing_for": rule.keep_firing} if rule.keep_firing else {}
    return {
        "alert": rule.name,
        "expr": rule.expr,
        "for": rule.hold,
        **keep,
        "labels": rule.labels,
        "annotations": rule.annotations(".Value"),
    }
