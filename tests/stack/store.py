"""A Prometheus store like those of users: with gaps from a minute to a day, and daemons that stop and die.

promtool writes it from series that the catalog's metrics define, so that a day takes seconds. All daemons have all
metrics, and every counter grows by one per second while its daemon is busy: no share of two counters exceeds one.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dashboards import external
from dashboards.evidence import TARGET_INFO
from dashboards.ratios import INSTANCE, label
from draftd.group import GroupState
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry import catalog_ranks as ranks
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry import catalog_sdk as sdk
from draftd.telemetry.attributes import Attribute, InstrumentKind, Metric
from tests.stack.components import promtool_binary

SCRAPE_SECONDS = 30.0
# How long the collector offers what a daemon sent last: metric_expiration in otel-collector/config.yaml.
_EXPIRES = 300.0
# Where the store has data, in seconds: between them it was away for a minute, ten minutes, an hour and a day.
PARTS = ((0.0, 1200.0), (1260.0, 1800.0), (2400.0, 2940.0), (6540.0, 7080.0), (93480.0, 94020.0))
BUSY_UNTIL = 1200.0  # the idle daemons
DIED = 6660.0
SECONDS = PARTS[-1][1]


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon in the store. `scraped`: Prometheus itself scrapes it, without the collector. It is busy until
    `busy_until`, and runs until `until`."""

    name: str
    scraped: bool = False
    busy_until: float = SECONDS
    until: float = SECONDS


DAEMONS = (
    Daemon("busy"),
    Daemon("scraped", scraped=True),
    Daemon("idle", busy_until=BUSY_UNTIL),
    Daemon("idle-scraped", scraped=True, busy_until=BUSY_UNTIL),
    Daemon("killed", until=DIED, busy_until=DIED),
    Daemon("stopped", scraped=True, until=DIED, busy_until=DIED),
)
# A daemon that is scraped has no exporter.
_OF_EXPORTERS = (sdk.DATA_POINTS_EXPORTED, sdk.SPANS_EXPORTED, sdk.LOGS_EXPORTED)
# What counts requests before all of their labels are known.
_EARLY = (catalog.REQUESTS, catalog.REQUEST_DURATION, catalog.HTTP_DURATION)
_UPTIME = (catalog.UPTIME.prometheus, external.COLLECTOR_UPTIME.name)
_STARTED = 1000.0  # seconds before the store begins
_OTHER_VALUES: Mapping[Metric, float] = {
    catalog.FALLBACK_LEVEL: 3,
    catalog.FALLBACK_DEMAND: 3,
    catalog.FALLBACK_POSITION: 0,
    catalog.FALLBACK_HOLD: 0,
    catalog.THERMAL_LEVEL: 0,
    catalog.MEMORY_PRESSURE: 0,
    remote.LEVEL: 2,
    catalog.CERTIFICATE_EXPIRY: 4e9,  # in the next century
    catalog.UNPRICED_DRAFTS: 0.25,  # of a draft a second: a counter, but not of all drafts
}
# The first is that of a request that went well, the second of one that did not.
_VALUES: Mapping[Attribute, tuple[str, str]] = {
    a.MODEL: ("nano", "nano"),
    a.DRAFT_MODEL: ("nano/draft", "prompt_lookup"),
    a.MODE: ("speculative", "autoregressive"),
    a.OUTCOME: ("stop", "error"),
    a.CURRENCY: ("$", "$"),
    a.HTTP_ROUTE: ("/v1/chat/completions", "/v1/messages"),
    a.SERVER_PORT: ("50051", "50051"),
}
_COLLECTOR_GAUGES = (external.QUEUE_SIZE, external.QUEUE_CAPACITY, external.COLLECTOR_MEMORY, external.COLLECTOR_UPTIME)
# Each of the two has a series for every value of these.
_EACH: Mapping[Attribute, tuple[str, ...]] = {
    a.TOKEN_TYPE: ("input", "output"),
    a.POSITION: ("0", "1"),
    a.RANK: ("0", "1"),
    a.GROUP_STATE: tuple(GroupState),
}


@dataclass(frozen=True, slots=True)
class Series:
    """A series. Counters grow by `value` per second while the daemon is busy, gauges are constant, an uptime always
    grows."""

    name: str
    labels: str
    counts: bool
    value: float = 1.0


def write(tsdb: Path, began: float) -> None:
    """Writes the blocks of a store whose first sample is at `began`."""
    text = tsdb.with_suffix(".om")
    with text.open("w") as out:
        out.writelines(_samples(began))
        out.write("# EOF\n")
    arguments = ("create-blocks-from", "openmetrics", "--quiet", "--max-block-duration=240h", str(text), str(tsdb))
    subprocess.run([promtool_binary(), "tsdb", *arguments], check=True, capture_output=True)


def _samples(began: float) -> Iterator[str]:
    every = [
        (daemon.until, daemon.until + (0.0 if daemon.scraped else _EXPIRES), daemon.busy_until, _of_daemon(daemon))
        for daemon in DAEMONS
    ]
    for until, offered, busy_until, series in [*every, (SECONDS, SECONDS, BUSY_UNTIL, _around())]:
        for one in series:
            for at in _times(offered):
                value = one.value
                if one.counts:
                    value *= min(at, busy_until)
                elif one.name in _UPTIME:
                    value = _STARTED + min(at, until)
                yield f"{one.name}{{{one.labels}}} {value:.10g} {began + at:.0f}\n"


def _times(until: float) -> Iterator[float]:
    for first, last in PARTS:
        yield from (at for at in _steps(first, last) if at <= until)


def _steps(first: float, last: float) -> Iterator[float]:
    return (first + number * SCRAPE_SECONDS for number in range(int((last - first) / SCRAPE_SECONDS) + 1))


def _of_daemon(daemon: Daemon) -> list[Series]:
    common = {"job": "draftd", INSTANCE: daemon.name}
    made = [_series(TARGET_INFO, {**common, "host_name": "studio", "server_port": "50551"})]
    for metric in (*catalog.METRICS, *catalog.SDK_METRICS):
        if daemon.scraped and metric in _OF_EXPORTERS:
            continue
        for labels in _label_sets(metric):
            made += _of_metric(metric, {**common, **labels})
    return made


def _of_metric(metric: Metric, labels: Mapping[str, str]) -> list[Series]:
    name = metric.prometheus
    if metric.kind is InstrumentKind.HISTOGRAM:  # all that is observed falls into the bucket in the middle
        half = metric.buckets[len(metric.buckets) // 2]
        counts = [(str(bound), float(bound >= half)) for bound in metric.buckets] + [("+Inf", 1.0)]
        buckets = [_series(f"{name}_bucket", {**labels, "le": le}, counts=True, value=value) for le, value in counts]
        return [*buckets, *(_series(f"{name}_{part}", labels, counts=True) for part in ("count", "sum"))]
    if metric is ranks.STATE:
        return [_series(name, labels, value=float(labels[label(a.GROUP_STATE)] == GroupState.SERVING))]
    counts = metric.kind in (InstrumentKind.COUNTER, InstrumentKind.OBSERVABLE_COUNTER)
    return [_series(name, labels, counts=counts, value=_OTHER_VALUES.get(metric, 1.0))]


def _label_sets(metric: Metric) -> Iterator[dict[str, str]]:
    """Yields the labels of successful requests, of failed ones, and of ones refused before all labels were known."""
    each = [[(one, value) for value in _EACH[one]] for one in metric.attributes if one in _EACH]
    rest = [one for one in metric.attributes if one not in _EACH]
    made = [
        [(one, _value(one, place)) for one in rest if place or one is not a.ERROR_TYPE]
        for place in range(2 if rest else 1)
    ]
    if metric in _EARLY:
        some = [one for one in rest if one.condition or one is a.HTTP_ROUTE]
        early = [(one, _value(one, 1)) for one in rest if one not in some or one is a.ERROR_TYPE]
        made.append([(one, "refused" if one is a.OUTCOME else value) for one, value in early])
    told = {
        tuple((label(one), value) for one, value in (*labels, *more))
        for labels in made
        for more in itertools.product(*each)
    }
    return map(dict, sorted(told))


def _value(attribute: Attribute, place: int) -> str:
    found = _VALUES.get(attribute) or attribute.values or attribute.examples or re.findall("`([^`]+)`", attribute.brief)
    return str(found[min(place, len(found) - 1)]) if found else "1"


def _around() -> list[Series]:
    """Returns the series of the collector, and Prometheus's about its targets."""
    collector = {"job": "otel-collector", INSTANCE: "collector:8888"}
    own = [("job", "otel-collector"), (INSTANCE, "collector:8888")]
    targets = [collector, {"job": "draftd", INSTANCE: "collector:9464"}]
    made = []
    for one in external.EXTERNALS:
        labels = {name: f"some {name}" for name in one.labels} | dict(own)
        counts = one not in _COLLECTOR_GAUGES
        if one.source == external.PROMETHEUS:
            made += [_series(one, {**labels, **target}) for target in targets]
        elif one is external.SPAN_CALLS:
            made.append(
                _series(one, {**labels, "job": "draftd", INSTANCE: "busy", "span_name": "chat nano"}, counts=True)
            )
        elif one is external.TRACES_KEPT or one is external.TRACES_DECIDED:
            made += [_series(one, {**labels, "decision": said}, counts=True) for said in ("sampled", "not_sampled")]
        else:
            made.append(_series(one, labels, counts=counts))
    return made


def _series(named: object, labels: Mapping[str, str], *, counts: bool = False, value: float = 1.0) -> Series:
    name = getattr(named, "prometheus", named)
    return Series(str(name), ",".join(f'{key}="{text}"' for key, text in labels.items()), counts, value)
