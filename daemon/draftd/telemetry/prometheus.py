"""All metrics in Prometheus's text format, from the same instruments, for daemons without a collector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource

from draftd.telemetry import catalog


def scraped_reader(resource: Resource) -> tuple[MetricReader, Callable[[], bytes]]:
    """Returns a metric reader, and a function that returns all its metrics in Prometheus's text format. Names and
    labels are those that the OpenTelemetry collector gives."""
    # Imported here: it takes a second, which a daemon without HTTP saves.
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()  # its own: the global one also counts this process
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    return reader, lambda: generate_latest(_AsCollected(registry, resource))  # it only calls `collect`


class _AsCollected:
    """The registry as the collector would show it: names of gauges of unit 1 end in `_ratio`, and every series has
    `job` and `instance` from the resource, by which alerts name this daemon."""

    def __init__(self, registry: Any, resource: Resource) -> None:
        self._registry = registry
        names = (metric.prometheus for metric in catalog.METRICS)
        self._names = {name.removesuffix("_ratio"): name for name in names if name.endswith("_ratio")}
        space, name, instance = (str(resource.attributes.get(f"service.{key}", "")) for key in _SERVICE)
        self._own = {"job": f"{space}/{name}" if space else name, "instance": instance}
        self._left_out = {f"service_{key.replace('.', '_')}" for key in _SERVICE}

    def collect(self) -> Iterator[Any]:
        for family in map(copy.copy, self._registry.collect()):  # one of them is a shared object
            renamed = self._names.get(family.name)
            family.name = renamed or family.name
            family.samples = [self._sample(sample, renamed) for sample in family.samples]
            yield family

    def _sample(self, sample: Any, name: str | None) -> Any:
        labels = {label: value for label, value in sample.labels.items() if label not in self._left_out}
        return sample._replace(name=name or sample.name, labels=labels | self._own)


_SERVICE = ("namespace", "name", "instance.id")
