"""Panels' queries, their selectors, and helpers for counts and shares."""

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
RANGE = "$__range"  # the whole time that the dashboard shows
FRESH = "150s"  # two exports at OpenTelemetry's default period of a minute, plus some delay
EXPORTING = exporting(FRESH)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. `legend` names labels in double braces, which the series must have.

    `instant` asks for the value now instead of a line. `exemplar` also asks for the traces behind a histogram.
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
# A daemon does not know its model's name while it loads. The collector keeps such series for some minutes.
LOADED = f'{MODEL}!="unknown"'
ENGINE = matching(LOADED, _chosen(MODEL, "model"), MACHINE)
REQUESTS = matching(_chosen(MODEL, "model"), _chosen(DRAFT, "draft"), _chosen(WORKLOAD, "workload"), MACHINE)


def shown(one: str) -> str:
    """Returns a label's placeholder for a legend."""
    return "{{" + one + "}}"


def series(metric: Metric | External, selector: str = "") -> str:
    return f"{metric.prometheus}{{{selector}}}" if selector else metric.prometheus


def gauge(metric: Metric, selector: str = "") -> str:
    """Returns a gauge of the daemons that export now. It leaves out daemons that are gone, and other programs' gauges
    of the same name, such as `system.memory.usage`."""
    return live(series(metric, selector), FRESH)


def grouped(expression: str, by: Sequence[str] = (), function: str = "sum") -> str:
    return f"{function} by ({', '.join(by)}) ({expression})" if by else f"{function}({expression})"


def counted(metric: Metric | External, selector: str, window: str, by: Sequence[str] = ()) -> str:
    """Returns how much a counter grew in the window, its first value included: with little traffic that is the only
    one."""
    uptime = external.COLLECTOR_UPTIME.name if isinstance(metric, External) else UPTIME
    return grouped(grown(series(metric, selector), window, uptime), by)


def per_minute(metric: Metric | External, selector: str, by: Sequence[str] = ()) -> str:
    """Returns a counter's growth per minute, with its first value included so that single events are not lost."""
    return f"{counted(metric, selector, RATE, by)} * 60000 / $__rate_interval_ms"


def over(numerator: str, denominator: str) -> str:
    """Returns a ratio that has no value, instead of NaN, if the denominator is zero."""
    return f"{numerator} / ({denominator} > 0)"


def or_nought(expression: str) -> str:
    """Returns the expression, or zero if it has no series."""
    return f"({expression} or vector(0))"


_DAEMON = series(catalog.UPTIME, MACHINE)  # a series that every daemon exports


def none_yet(expression: str, window: str, known: str = _DAEMON) -> str:
    """Returns the expression, or zero if it has no series but `known` had one in the window: a counter of events that
    never happened has no series. Without `known` there is no value, because zero would be a guess."""
    return f"({expression} or 0 * max(last_over_time({known}[{window}])))"
