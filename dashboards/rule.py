"""Alert rules before they are written for Prometheus or for Grafana."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from draftd import DOCS_URL
from draftd.core import FallbackLevel
from draftd.strategies import RemoteLevel


class Severity(enum.StrEnum):
    """Urgency of an alert: INFO must be handled the next morning, WARNING the same day, CRITICAL at once."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Figure(enum.StrEnum):
    """The filter that formats a value in a description, in a form that both template languages know."""

    PERCENT = "humanizePercentage"
    NUMBER = 'printf "%.2f"'
    BYTES = "humanize1024"
    COUNT = 'printf "%.0f"'
    DURATION = "humanizeDuration"


class OnError(enum.StrEnum):
    """The state of an alert while the data source cannot be queried, in Grafana's words."""

    KEEP = "KeepLast"  # a broken query is no reason to change a daemon's level, in either direction
    FIRE = "Alerting"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Fires for each series of `value` that stays above (or below) `threshold` for `hold`.

    `value` has no series if there is nothing to judge: no traffic, too few samples, no such sensor. Without a series
    the alert does not fire, and resolves after `keep_firing`. The value replaces `{figure}` in `description`.
    """

    name: str
    value: str
    fires: str  # "<" or ">"
    threshold: float
    hold: str
    severity: Severity
    figure: Figure
    summary: str
    description: str
    dashboard: str
    level: FallbackLevel | RemoteLevel | None = None  # level that it asks for, of the ladder or of the remote
    keep_firing: str = ""
    on_error: OnError = OnError.KEEP

    @property
    def expr(self) -> str:
        """The alert's condition as PromQL."""
        return f"({self.value})\n{self.fires} {self.threshold:.15g}"

    @property
    def uid(self) -> str:
        """The name in kebab case, which begins with `draftd-`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name).lower()

    @property
    def labels(self) -> dict[str, str]:
        """Labels that the alert adds to those of its series."""
        # The daemon's LEVEL_LABEL (draftd/fallback/alerts/payload.py), which is not imported here.
        level = {} if self.level is None else {"fallback_level": self.level.label}
        return {"severity": self.severity.value} | level

    def annotations(self, value: str) -> dict[str, str]:
        """Returns the alert's texts. `value` is the name of the value in the template language."""
        figure = f"{{{{ {value} | {self.figure} }}}}"
        return {
            "summary": self.summary,
            "description": self.description.replace("{figure}", figure),
            "runbook_url": f"{DOCS_URL}/runbooks.md#{self.name.lower()}",
            "dashboard_uid": self.dashboard,
        }


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A series that Prometheus computes once for all its readers."""

    name: str
    expr: str
