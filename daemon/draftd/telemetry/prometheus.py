"""All metrics as Prometheus's text, from the same instruments, for those who have no collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry.sdk.metrics.export import MetricReader

from draftd.telemetry import catalog


def scraped() -> tuple[MetricReader, Callable[[], bytes]]:
    """A reader of metrics, and what writes all that it reads, under the names that the collector gives them."""
    # A second to import, which a daemon without HTTP does without.
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()  # its own: the global one counts this process besides
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    return reader, lambda: generate_latest(_Renamed(registry))  # it only calls `collect`


class _Renamed:
    """The registry, but for gauges of unit 1, which the SDK's exporter gives no suffix and the collector `_ratio`."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        names = (metric.prometheus for metric in catalog.METRICS)
        self._names = {name.removesuffix("_ratio"): name for name in names if name.endswith("_ratio")}

    def collect(self) -> Iterator[Any]:
        for family in self._registry.collect():
            if (name := self._names.get(family.name)) is not None:
                family.name = name
                family.samples = [sample._replace(name=name) for sample in family.samples]
            yield family
