"""PromQL that panels and alerts share: how much a counter grew, and the gauges of daemons that still export.

A daemon's uptime is in each of its exports and grows from one to the next. It shows whether the daemon exported at a
time, whether it exports now, and since when it runs.
"""

from __future__ import annotations

import re

from dashboards.ratios import INSTANCE
from draftd.telemetry import catalog

UPTIME = catalog.UPTIME.prometheus

_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_VARIABLES = {"$__rate_interval": "$__rate_interval_ms * 0.001", "$__range": "$__range_s"}  # Grafana's


def grown(series: str, window: str, uptime: str = UPTIME) -> str:
    """Returns how much a counter grew within the window, its first value included, which increase() leaves out.

    All of a counter is new if its program began within the window, or exported as the window began without this
    counter. After a gap neither holds, so that nothing old counts as new. Growth during a gap counts only in windows
    that began before it. `uptime` is that of the program which exports the counter.
    """
    increase = f"increase({series}[{window}])"
    # Unchanged for a window: a process that is gone counted it, and the collector keeps its last value.
    old = f"{series} == {series} offset {window}"
    began = f"{series} unless {increase} >= {series} unless {old} and on ({INSTANCE}) {uptime} < {seconds(window)}"
    first = f"{series} unless {series} offset {window} and on ({INSTANCE}) {uptime} offset {window}"
    return f"({began} or {first} or {increase})"


def grown_through_gaps(series: str, window: str, memory: str, uptime: str = UPTIME) -> str:
    """Returns what `grown` does, but also counts growth during a gap when the counter is back: its excess over the last
    value within `memory`. It suits alerts for people, who must also learn late; it is no reason for a level."""
    missed = f"{series} - last_over_time({series}[{memory}] offset {window}) > 0"
    return f"({missed} or {grown(series, window, uptime)})"


def exporting(fresh: str) -> str:
    """Selects the daemons that exported within `fresh`, by their uptime. The collector keeps the last values of a
    daemon that is gone, but its uptime no longer grows."""
    return f"({UPTIME} unless {UPTIME} == {UPTIME} offset {fresh})"


def live(gauge: str, fresh: str) -> str:
    """Returns a gauge of the daemons that exported within `fresh`."""
    return f"({gauge} and on ({INSTANCE}) {exporting(fresh)})"


def seconds(window: str) -> str:
    """Returns a window's length in seconds: a number, or the expression that Grafana replaces by one."""
    if window in _VARIABLES:
        return _VARIABLES[window]
    parts = re.findall(r"(\d+)(ms|[dhms])", window)
    return f"{sum(float(count) * _SECONDS[unit] for count, unit in parts):.15g}"
