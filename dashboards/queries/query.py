"""What a query is, whom it asks about, and how counts and shares are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.external import External
from dashboards.ratios import INSTANCE, label, matching
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric

RATE = "$__rate_interval"
RANGE = "$__range"  # all that the dashboard shows


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

# Selectors, by what the metrics are told apart by.
MACHINE = _chosen(INSTANCE, "instance")
# While a daemon loads its model it does not know the name. The collector goes on offering that for some minutes.
LOADED = f'{MODEL}!="unknown"'
ENGINE = matching(LOADED, _chosen(MODEL, "model"), MACHINE)
REQUESTS = matching(_chosen(MODEL, "model"), _chosen(DRAFT, "draft"), _chosen(WORKLOAD, "workload"), MACHINE)


def shown(one: str) -> str:
    """A label in a legend."""
    return "{{" + one + "}}"


def gauge(metric: Metric | External, selector: str = "") -> str:
    return f"{metric.prometheus}{{{selector}}}" if selector else metric.prometheus


def of_draftd(metric: Metric) -> str:
    """A gauge under a name that others use too, as `system.memory.usage`: only from machines that run draftd."""
    return f"{gauge(metric, MACHINE)} and on ({INSTANCE}) {gauge(catalog.MEMORY_FLOOR, MACHINE)}"


def grouped(expression: str, by: Sequence[str] = (), function: str = "sum") -> str:
    return f"{function} by ({', '.join(by)}) ({expression})" if by else f"{function}({expression})"


def counted(metric: Metric | External, selector: str, window: str, by: Sequence[str] = ()) -> str:
    """How much a counter grew. A series younger than the window counts from nought: `increase` would miss its first
    value, which with little traffic is the only one (a lone refusal would never be seen)."""
    series = gauge(metric, selector)
    young = f"({series} unless present_over_time({series}[{window}] offset {window}))"
    return grouped(f"{young} or increase({series}[{window}])", by)


def per_minute(metric: Metric | External, selector: str, by: Sequence[str] = ()) -> str:
    """The same as a rate in a line: nothing that happened once is lost."""
    return f"{counted(metric, selector, RATE, by)} * 60000 / $__rate_interval_ms"


def over(numerator: str, denominator: str) -> str:
    """A ratio without NaN: no value where the denominator is nought."""
    return f"{numerator} / ({denominator} > 0)"


def or_nought(expression: str) -> str:
    """Nought where there is no series."""
    return f"({expression} or vector(0))"


_DAEMON = gauge(catalog.MEMORY_FLOOR, MACHINE)  # which every daemon exports


def none_yet(expression: str, window: str, known: str = _DAEMON) -> str:
    """Nought where there is no series, but one of `known` in the window: what never happened has none. No value where
    nothing is known: that nothing failed would be a guess."""
    return f"({expression} or 0 * max(last_over_time({known}[{window}])))"
