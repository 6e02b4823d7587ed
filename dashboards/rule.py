"""What an alert rule is, before it is written for Prometheus or for Grafana."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from draftd import DOCS_URL
from draftd.core import FallbackLevel
from draftd.strategies import RemoteLevel


class Severity(enum.StrEnum):
    """INFO is for the morning, WARNING for today, CRITICAL for now."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Figure(enum.StrEnum):
    """How a value is written in a description, as the filter that both template languages know."""

    PERCENT = "humanizePercentage"
    NUMBER = 'printf "%.2f"'
    BYTES = "humanize1024"
    COUNT = 'printf "%.0f"'
    DURATION = "humanizeDuration"


class OnError(enum.StrEnum):
    """What an alert does while the data source cannot be asked, in Grafana's words."""

    KEEP = "KeepLast"  # a broken query is no reason to change a daemon's level, in either direction
    FIRE = "Alerting"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Fires for each series of `value` that stays above (or below) `threshold` for `hold`.

    `value` has no series where there is nothing to judge: no traffic, too few samples, no such sensor. No series never
    fires and, after `keep_firing`, resolves. `{figure}` in `description` is where the value goes.
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
    level: FallbackLevel | RemoteLevel | None = None  # what it asks for, of the ladder or of the remote
    keep_firing: str = ""
    on_error: OnError = OnError.KEEP

    @property
    def expr(self) -> str:
        """The condition as PromQL."""
        return f"({self.value})\n{self.fires} {self.threshold:.15g}"

    @property
    def uid(self) -> str:
        """`draftd-` and the rest of the name in kebab case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name).lower()

    @property
    def labels(self) -> dict[str, str]:
        """What the alert carries besides the labels of its series."""
        # The daemon's LEVEL_LABEL (draftd/fallback/alerts/payload.py), which is not imported here.
        level = {} if self.level is None else {"fallback_level": self.level.label}
        return {"severity": self.severity.value} | level

    def annotations(self, value: str) -> dict[str, str]:
        """Texts; `value` is how the template language at hand names the value."""
        figure = f"{{{{ {value} | {self.figure} }}}}"
        return {
            "summary": self.summary,
            "description": self.description.replace("{figure}", figure),
            "runbook_url": f"{DOCS_URL}/runbooks.md#{self.name.lower()}",
            "dashboard_uid": self.dashboard,
        }


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A series that Prometheus computes once for all who read it."""

    name: str
    expr: str
