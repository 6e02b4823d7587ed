"""Queries, their selectors, and helpers that write counts and shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards import external
from dashboards.external import External
from dashboards.ratios import INSTANCE, label, matching
from dashboards.series import UPTIME, exporting, grown, live
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric

RATE = "$__rate_interval"
RANGE = "$__range"  # all that the dashboard shows
FRESH = "150s"  # two exports at OpenTelemetry's default period of a minute, and some delay
EXPORTING = exporting(FRESH)


@dataclass(frozen=True, slots=True)
class Query:
    """One target of a panel. `legend` names labels in double braces; the series must have them.

    `instant` asks for the value now instead of a line. `exemplar` asks for the traces behind a histogram as well.
    """

    expression: str
    legend: str
    instant: bool = False
    exemplar: bool = False
    heatmap: bool = False


def _chosen(name: str, variable: str) -> str:
    return f'{name}=~"${variable}"'


MODEL, DRAFT, WORKLOAD, MODE = label(a.MODEL), label(a.DRAFT_MODEL), label(a.WORKLOAD), label(a.MODE)

# Selectors, by the labels of the metrics.
MACHINE = _chosen(INSTANCE, "instance")
# While a daemon loads its model it does not know the name. The collector goes on offering that for some minutes.
LOADED = f'{MODEL}!="unknown"'
ENGINE = matching(LOADED, _chosen(MODEL, "model"), MACHINE)
REQUESTS = matching(_chosen(MODEL, "model"), _chosen(DRAFT, "draft"), _chosen(WORKLOAD, "workload"), MACHINE)


def shown(one: str) -> str:
    """A label in a legend."""
    return "{{" + one + "}}"


def series(metric: Metric | External, selector: str = "") -> str:
    return f"{metric.prometheus}{{{selector}}}" if selector else metric.prometheus


def gauge(metric: Metric, selector: str = "") -> str:
    """A gauge of the daemons that export now. It leaves out other programs that have one of the same name, as
    `system.memory.usage`, and daemons that are gone."""
    return live(series(metric, selector), FRESH)


def grouped(expression: str, by: Sequence[str] = (), function: str = "sum") -> str:
    return f"{function} by ({', '.join(by)}) ({expression})" if by else f"{function}({expression})"


def counted(metric: Metric | External, selector: str, window: str, by: Sequence[str] = ()) -> str:
    """How much a counter grew, its first value included: with little traffic it is the only one."""
    uptime = external.COLLECTOR_UPTIME.name if isinstance(metric, External) else UPTIME
    return grouped(grown(series(metric, selector), window, uptime), by)


def per_minute(metric: Metric | External, selector: str, by: Sequence[str] = ()) -> str:
    """Returns that growth as a rate, so single events are not lost."""
    return f"{counted(metric, selector, RATE, by)} * 60000 / $__rate_interval_ms"


def over(numerator: str, denominator: str) -> str:
    """A ratio without NaN: no value if the denominator is zero."""
    return f"{numerator} / ({denominator} > 0)"


def or_nought(expression: str) -> str:
    """Zero if there is no series."""
    return f"({expression} or vector(0))"


_DAEMON = series(catalog.UPTIME, MACHINE)  # which every daemon exports


def none_yet(expression: str, window: str, known: str = _DAEMON) -> str:
    """Nought where there is no series, but one of `known` in the window: what never happened has none. No value where
    nothing is known: that nothing failed would be a guess."""
    return f"({expression} or 0 * max(last_over_time({known}[{window}])))"
