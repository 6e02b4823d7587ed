"""What the catalog is made of: descriptions of metrics, spans and log events."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from draftd.telemetry.attributes import Attribute


class Kind(enum.StrEnum):
    """Kinds of instrument. The observable ones are read when metrics are collected."""

    COUNTER = "counter"
    OBSERVABLE_COUNTER = "observable counter"
    GAUGE = "observable gauge"
    UP_DOWN_COUNTER = "observable up-down counter"  # a gauge whose series may be added up
    HISTOGRAM = "histogram"


# How the collector spells units in Prometheus: https://github.com/prometheus/otlptranslator
_SUFFIXES = {"s": "_seconds", "By": "_bytes", "Cel": "_celsius", "W": "_watts", "rpm": "_rpm"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `buckets` are a histogram's upper bounds, in its unit."""

    name: str
    kind: Kind
    unit: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, as the OpenTelemetry collector writes it."""
        name = self.name.replace(".", "_")
        suffix = _SUFFIXES.get(self.unit, "")
        if self.unit == "1" and self.kind is Kind.GAUGE:
            suffix = "_ratio"
        total = "_total" if self.kind in (Kind.COUNTER, Kind.OBSERVABLE_COUNTER) else ""
        return name + suffix + total


@dataclass(frozen=True, slots=True)
class Span:
    """One kind of span. `name` shows attributes in braces."""

    name: str
    kind: str
    brief: str
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One log event."""

    name: str
    brief: str
    attributes: tuple[Attribute, ...] = ()
