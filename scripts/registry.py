"""Builds docs/registry/: the telemetry catalog in the format of OpenTelemetry Weaver. `python -m scripts.pages` writes
it.

Definitions of OpenTelemetry's own registry are imported or referred to, and never repeated.
https://github.com/open-telemetry/weaver/blob/main/schemas/semconv-syntax.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from draftd import __version__
from draftd.telemetry import catalog, catalog_spans
from draftd.telemetry.attributes import Attribute, Event, InstrumentKind, Metric, Span

CONVENTIONS = "1.41.1"
CHECKED_WITH = "0.25.1"  # the version of Weaver whose checks were run last
OURS = "draftd."
FOLDER = Path("docs/registry")
INSTRUMENTS = {
    InstrumentKind.COUNTER: "counter",
    InstrumentKind.OBSERVABLE_COUNTER: "counter",
    InstrumentKind.GAUGE: "gauge",
    InstrumentKind.UP_DOWN_COUNTER: "updowncounter",
    InstrumentKind.HISTOGRAM: "histogram",
}
# Entities of the resource. The metrics of the process and of the machine require the first two.
_ENTITIES = ("process", "host", "service", "service.instance", "telemetry.sdk")
_HEAD = "# Written by `make docs` from daemon/draftd/telemetry/catalog.py.\n"
_STABILITY = "development"

Group = dict[str, Any]


def manifest() -> Group:
    """Returns the registry's manifest: its name, and the version of OpenTelemetry's registry that it extends."""
    return {
        "name": "draftd",
        "description": "What draftd emits beyond the OpenTelemetry conventions, and which of those it follows",
        "schema_url": f"https://draftd.example/schemas/{__version__}",  # identifies the registry; it is no web address
        "dependencies": [
            {
                "schema_url": f"https://opentelemetry.io/schemas/{CONVENTIONS}",
                "registry_path": f"https://github.com/open-telemetry/semantic-conventions@v{CONVENTIONS}[model]",
            }
        ],
    }


def imports() -> Group:
    """Returns the metrics, events and entities of OpenTelemetry's registry that draftd emits unchanged."""
    metrics = (metric.name for metric in (*catalog.METRICS, *catalog.SDK_METRICS))
    return {
        "imports": {
            "metrics": sorted(_theirs(metrics)),
            "events": sorted(_theirs(event.name for event in catalog_spans.EVENTS)),
            "entities": list(_ENTITIES),
        }
    }


def attributes() -> Group:
    """Returns the group of all attributes that draftd defines itself."""
    found = {one.name: one for one in _used() if one.name.startswith(OURS)}
    group = _group("registry.draftd", "attribute_group", "Attributes of draftd's own")
    return {"groups": [{**group, "attributes": [_attribute(one) for _, one in sorted(found.items())]}]}


def metrics() -> Group:
    """Returns the groups of all metrics that draftd defines itself."""
    return {"groups": [_metric(one) for one in catalog.METRICS if one.name.startswith(OURS)]}


def spans() -> Group:
    """Returns the groups of all spans that have attributes: the format cannot describe others."""
    return {
        "groups": [
            _group(f"span.{OURS}{name}.{span.kind.lower()}", "span", span.brief)
            | {
                "span_kind": span.kind.lower(),
                "note": f"The span's name is `{span.name}`.",
                "attributes": [{"ref": one.name} for one in span.attributes],
            }
            for name, span in _named_spans()
        ]
    }


def events() -> Group:
    """Returns the groups of all log events that draftd defines itself."""
    return {
        "groups": [
            _group(f"event.{event.name}", "event", event.brief)
            | {"name": event.name, "attributes": [_reference(one) for one in event.attributes]}
            for event in catalog_spans.EVENTS
            if event.name.startswith(OURS)
        ]
    }


def problems() -> Iterator[str]:
    """Yields a line for each thing that Weaver's `registry check` would refuse or warn about."""
    groups = [group for make in (attributes, metrics, spans, events, entities) for group in make()["groups"]]
    own = {one["id"]: one for one in groups[0]["attributes"]}
    for name, types in _types().items():
        if len(types) > 1:
            yield f"{name}: has several types, {' and '.join(sorted(types))}"
    for thing in (*groups, *own.values()):
        if not thing["brief"].strip("."):
            yield f"{thing['id']}: has no description"
    for id, one in own.items():
        if one["type"] in ("string", "string[]") and "examples" not in one:
            yield f"{id}: is a text with neither `values` nor `examples`"
    for group in groups[1:]:
        missing = {one["ref"] for one in group["attributes"] if one["ref"].startswith(OURS)} - set(own)
        yield from (f"{group['id']}: refers to {name}, which is not defined" for name in sorted(missing))
        if group["type"] == "metric" and not group["unit"]:
            yield f"{group['id']}: has no unit"


def _group(id: str, type: str, brief: str) -> Group:
    return {"id": id, "type": type, "stability": _STABILITY, "brief": f"{brief}."}


def _metric(metric: Metric) -> Group:
    found = _group(f"metric.{metric.name}", "metric", metric.brief) | {
        "metric_name": metric.name,
        "instrument": INSTRUMENTS[metric.kind],
        "unit": metric.unit,
    }
    if metric.buckets:
        found["note"] = f"Bounds of its buckets: {' '.join(f'{bound:g}' for bound in metric.buckets)}."
    return found | {"attributes": [_reference(one) for one in metric.attributes]}


def _reference(attribute: Attribute) -> Group:
    level = {"conditionally_required": attribute.condition} if attribute.condition else "required"
    return {"ref": attribute.name, "requirement_level": level}


def _attribute(attribute: Attribute) -> Group:
    members = [
        {"id": re.sub(r"\W", "_", one), "value": str(one), "stability": _STABILITY, "brief": f"`{one}`"}
        for one in attribute.values
    ]
    found: Group = {"id": attribute.name, "type": {"members": members} if members else attribute.type}
    found |= {"stability": _STABILITY, "brief": f"{attribute.brief}."}
    examples = list(attribute.examples) or re.findall("`([^`]+)`", attribute.brief)
    if examples and not members and attribute.type.startswith("string"):
        found["examples"] = [examples] if attribute.type.endswith("[]") else examples
    return found


def entities() -> Group:
    """Returns the entity that draftd adds to the resource: the group of ranks."""
    group = _group("entity.draftd.group", "entity", "The ranks that one target runs on")
    listed = [{"ref": one.name, "role": "identifying"} for one in catalog.RESOURCE]
    return {"groups": [group | {"name": "draftd.group", "attributes": listed}]}


def _named_spans() -> Iterator[tuple[str, Span]]:
    """Yields (name, span). The name is that of the span's constant in the catalog, in lower case and without `_SPAN`. A
    span's own name cannot serve, because it may be a template such as `{rpc.method}`."""
    for name, value in vars(catalog_spans).items():
        if isinstance(value, Span) and value.attributes:
            yield name.removesuffix("_SPAN").lower(), value


def _used() -> Iterator[Attribute]:
    described: tuple[Metric | Span | Event, ...] = (*catalog.METRICS, *catalog_spans.SPANS, *catalog_spans.EVENTS)
    yield from catalog.RESOURCE
    yield from (attribute for thing in described for attribute in thing.attributes)


def _types() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for attribute in _used():
        found.setdefault(attribute.name, set()).add(attribute.type)
    return found


def _theirs(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if not name.startswith(OURS))


def _written(make: Callable[[], Group]) -> Callable[[], str]:
    return lambda: _HEAD + yaml.safe_dump(make(), sort_keys=False, allow_unicode=True, width=120)


PAGES: Mapping[Path, Callable[[], str]] = {
    FOLDER / f"{name}.yaml": _written(make)
    for name, make in {
        "manifest": manifest,
        "opentelemetry": imports,
        "attributes": attributes,
        "metrics": metrics,
        "spans": spans,
        "events": events,
        "entities": entities,
    }.items()
}
