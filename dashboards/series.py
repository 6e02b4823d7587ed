"""How much a counter grew, and which gauges are of a daemon that still exports: PromQL that panels and alerts share.

A daemon's uptime is in each of its exports and grows from one to the next. So it says whether the daemon was heard at a
time, whether it is heard now, and since when it runs.
"""

from __future__ import annotations

import re

from dashboards.ratios import INSTANCE
from draftd.telemetry import catalog

UPTIME = catalog.UPTIME.prometheus

_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_VARIABLES = {"$__rate_interval": "$__rate_interval_ms * 0.001", "$__range": "$__range_s"}  # Grafana's


def grown(series: str, window: str, uptime: str = UPTIME) -> str:
    """How much a counter grew within the window, its first value included, which increase() does not see.

    All of a counter is new where its daemon began within the window, or was heard as the window began without this
    counter. After a gap neither holds, so that nothing old counts as new. What happened during a gap counts in windows
    that began before the gap, and in no others. `uptime`: of the program that the counter is of.
    """
    increase = f"increase({series}[{window}])"
    # As it was a window ago: a process of that name that is gone counted it, and the collector goes on offering it.
    old = f"{series} == {series} offset {window}"
    began = f"{series} unless {increase} >= {series} unless {old} and on ({INSTANCE}) {uptime} < {seconds(window)}"
    first = f"{series} unless {series} offset {window} and on ({INSTANCE}) {uptime} offset {window}"
    return f"({began} or {first} or {increase})"


def grown_through_gaps(series: str, window: str, memory: str, uptime: str = UPTIME) -> str:
    """As `grown`, but what happened during a gap counts when the counter is back: what it has more than when it was
    last seen, within `memory`. For what people must know late as well; it is no reason for a level."""
    missed = f"{series} - last_over_time({series}[{memory}] offset {window}) > 0"
    return f"({missed} or {grown(series, window, uptime)})"


def exporting(fresh: str) -> str:
    """The daemons that exported within `fresh`, by their uptime. The collector goes on offering the last values of a
    daemon that is gone: its uptime no longer grows."""
    return f"({UPTIME} unless {UPTIME} == {UPTIME} offset {fresh})"


def live(gauge: str, fresh: str) -> str:
    """A gauge of daemons that exported within `fresh`."""
    return f"({gauge} and on ({INSTANCE}) {exporting(fresh)})"


def seconds(window: str) -> str:
    """A window's length in seconds: a number, or what Grafana makes one of."""
    if window in _VARIABLES:
        return _VARIABLES[window]
    parts = re.findall(r"(\d+)(ms|[dhms])", window)
    return f"{sum(float(count) * _SECONDS[unit] for count, unit in parts):.15g}"
