"""The rules of Weaver's live check, applied to what an OtlpReceiver received: against docs/registry and OpenTelemetry's
own registry.

    assert not violations(receiver)

Weaver itself is a Rust program that no package registry has: docs/telemetry.md says when it ran, and how to run it.
Names, units, instruments and enumerations of OpenTelemetry come from its Python package. Its requirement levels are in
a table below, and types are the catalog's. Its rules:
https://github.com/open-telemetry/weaver/tree/main/crates/weaver_live_check/src/advice
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from opentelemetry.sdk import metrics as sdk

from draftd.telemetry import catalog, catalog_spans
from tests.otlp import Attributes, OtlpReceiver, Value, attributes_of

REGISTRY = Path(__file__).parents[1] / "docs" / "registry"
OURS = "draftd."
# The SDK's own, which draftd passes on as they are. It spells a unit otherwise than the conventions.
THEIR_FAULTS = {("unit_mismatch", "otel.sdk.processor.log.queue.size")}

REQUIRED, CONDITIONAL, RECOMMENDED = "required", "conditionally_required", "recommended"
# What OpenTelemetry's conventions v1.41.1 want on a metric or an event.
_SERVER = {
    "gen_ai.operation.name": REQUIRED,
    "gen_ai.provider.name": REQUIRED,
    "gen_ai.request.model": CONDITIONAL,
    "gen_ai.response.model": RECOMMENDED,
    "server.address": RECOMMENDED,
    "server.port": CONDITIONAL,
}
WANTED: Mapping[str, Mapping[str, str]] = {
    "gen_ai.server.request.duration": _SERVER,
    "gen_ai.server.time_to_first_token": _SERVER,
    "gen_ai.server.time_per_output_token": _SERVER,
    "rpc.server.call.duration": {"rpc.system.name": REQUIRED, "rpc.method": CONDITIONAL},
    "http.server.request.duration": {
        "http.request.method": REQUIRED,
        "url.scheme": REQUIRED,
        "http.response.status_code": CONDITIONAL,
    },
    "hw.temperature": {"hw.id": REQUIRED},
    "hw.fan.speed": {"hw.id": REQUIRED},
    "hw.gpu.utilization": {"hw.id": REQUIRED},
    "hw.power": {"hw.id": REQUIRED, "hw.type": REQUIRED},
    "feature_flag.evaluation": {"feature_flag.key": REQUIRED, "feature_flag.result.variant": CONDITIONAL},
}
# Of the resource, where a metric is of that entity.
ENTITIES: Mapping[str, tuple[str, ...]] = {"process.memory.usage": ("process.pid", "process.creation.time")}

_NAME = re.compile(r"[a-z][a-z0-9]*([._][a-z0-9]+)*")
_LEVELS = {REQUIRED: "violation", CONDITIONAL: "information", RECOMMENDED: "improvement"}
_TYPES = {str: "string", bool: "boolean", int: "int", float: "double"}
_FIT = {"int": ("double",), "int[]": ("double[]",), "[]": ("string[]", "int[]", "double[]", "boolean[]")}


@dataclass(frozen=True, order=True)
class Finding:
    """One finding. `level` is violation, improvement or information; `of` is the signal."""

    level: str
    id: str
    name: str
    of: str
    message: str


@dataclass(frozen=True)
class Definition:
    """A registry's definition of one attribute, metric or event."""

    type: str = ""  # of an attribute; of a metric its instrument
    unit: str = ""
    values: frozenset[Value] = frozenset()
    wanted: Mapping[str, str] = field(default_factory=dict)
    stability: str = "development"
    deprecated: bool = False


def violations(receiver: OtlpReceiver) -> list[Finding]:
    """Returns the findings for which Weaver would exit with an error, without those that draftd does not cause."""
    return sorted(
        one for one in findings(receiver) if one.level == "violation" and (one.id, one.name) not in THEIR_FAULTS
    )


def findings(receiver: OtlpReceiver) -> set[Finding]:
    """Returns all findings, each once, however often it was received."""
    found: set[Finding] = set()
    for resource, _, span in receiver.items("traces"):
        found |= {*_attributes(resource, "resource"), *_attributes(attributes_of(span.attributes), span.name)}
    for resource, _, log in receiver.items("logs"):
        attributes = attributes_of(log.attributes)
        found |= {*_attributes(resource, "resource"), *_attributes(attributes, log.event_name)}
        found |= set(_defined("event", log.event_name, [attributes]))
    for resource, _, metric in receiver.items("metrics"):
        found |= {*_attributes(resource, "resource"), *_metric(metric, resource)}
    return found


def _metric(metric: Any, resource: Attributes) -> Iterator[Finding]:
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    points = [attributes_of(point.attributes) for point in data.data_points]
    for attributes in points:
        yield from _attributes(attributes, metric.name)
    yield from _defined("metric", metric.name, points)
    known = definition("metric", metric.name)
    if known is not None:
        instrument = ("counter" if data.is_monotonic else "updowncounter") if kind == "sum" else kind
        if instrument != known.type:
            yield Finding("violation", "unexpected_instrument", metric.name, metric.name, f"{instrument}: {known.type}")
        if metric.unit != known.unit:
            yield Finding("violation", "unit_mismatch", metric.name, metric.name, f"{metric.unit}: {known.unit}")
    for name in ENTITIES.get(metric.name, ()):
        if name not in resource:
            yield Finding(
                "violation", "entity_required_attribute_not_present", name, metric.name, "not on its resource"
            )


def _defined(kind: str, name: str, points: Iterable[Attributes]) -> Iterator[Finding]:
    """Checks a metric or an event, and whether each of its points has the required attributes."""
    known = definition(kind, name)
    if known is None:
        yield Finding("violation", f"missing_{kind}", name, name, "in no registry")
        return
    yield from _standing(known, name, name)
    for wanted, level in known.wanted.items():
        if any(wanted not in attributes for attributes in points):
            yield Finding(_LEVELS[level], f"{level}_attribute_not_present", wanted, name, "not on all of its points")


def _attributes(attributes: Attributes, of: str) -> Iterator[Finding]:
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            yield Finding("violation", "invalid_format", name, of, "not a name")
        if "." not in name:
            yield Finding("improvement", "missing_namespace", name, of, "has no namespace")
        parts = name.split(".")
        for end in range(1, len(parts)):
            if ("attribute", ".".join(parts[:end])) in ours():
                yield Finding("violation", "illegal_namespace", name, of, f"{'.'.join(parts[:end])} is an attribute")
        known = definition("attribute", name)
        if known is None:
            yield Finding("violation", "missing_attribute", name, of, "in no registry")
            continue
        yield from _standing(known, name, of)
        sent = type_of(value)
        if known.type not in (sent, *_FIT.get(sent, ())):
            yield Finding("violation", "type_mismatch", name, of, f"{sent}: {known.type}")
        elif known.values and value not in known.values:
            yield Finding("information", "undefined_enum_variant", name, of, repr(value))


def _standing(known: Definition, name: str, of: str) -> Iterator[Finding]:
    if known.deprecated:
        yield Finding("violation", "deprecated", name, of, "deprecated")
    if known.stability != "stable":
        yield Finding("improvement", "not_stable", name, of, known.stability)


def type_of(value: Value) -> str:
    """Returns a value's type in OpenTelemetry's words; an empty list is of any type."""
    if isinstance(value, list):
        return f"{_TYPES[type(value[0])] if value else ''}[]"
    return _TYPES[type(value)]


def definition(kind: str, name: str) -> Definition | None:
    """Returns the definition of an `attribute`, a `metric` or an `event`, or None if neither registry has it."""
    return ours().get((kind, name)) if name.startswith(OURS) else _theirs(kind, name)


@cache
def ours() -> Mapping[tuple[str, str], Definition]:
    """Returns the definitions in docs/registry, by kind and name."""
    found = {}
    for path in REGISTRY.glob("*.yaml"):
        for group in yaml.safe_load(path.read_text(encoding="utf-8")).get("groups", ()):
            standing = {"stability": group["stability"], "deprecated": "deprecated" in group}
            wanted = {one["ref"]: _level(one) for one in group.get("attributes", ()) if "requirement_level" in one}
            if group["type"] == "metric":
                found["metric", group["metric_name"]] = Definition(
                    group["instrument"], group["unit"], wanted=wanted, **standing
                )
            elif group["type"] == "event":
                found["event", group["name"]] = Definition(wanted=wanted, **standing)
            elif group["type"] == "attribute_group":
                found |= {("attribute", one["id"]): _attribute(one) for one in group["attributes"]}
    return found


def _level(reference: Mapping[str, Any]) -> str:
    level = reference["requirement_level"]
    return level if isinstance(level, str) else next(iter(level))


def _attribute(told: Mapping[str, Any]) -> Definition:
    standing = {"stability": told["stability"], "deprecated": "deprecated" in told}
    if isinstance(told["type"], str):
        return Definition(told["type"], **standing)
    values = frozenset(member["value"] for member in told["type"]["members"])
    return Definition(type_of(next(iter(values))), values=values, **standing)


@cache
def _theirs(kind: str, name: str) -> Definition | None:
    wanted = WANTED.get(name, {})
    if kind == "event":
        return Definition(wanted=wanted) if name in WANTED else None
    for module in _modules(kind, name):
        for constant, value in vars(module).items():
            if value == name and constant.isupper():
                if kind == "metric":
                    return _instrument(getattr(module, f"create_{constant.lower()}"), wanted)
                values = getattr(module, constant.title().replace("_", "") + "Values", ())
                return Definition(_catalogued().get(name, "string"), values=frozenset(one.value for one in values))
    return None


def _modules(kind: str, name: str) -> Iterator[ModuleType]:
    """Yields the modules of the package that may define the name."""
    words = name.split(".")[0]
    for place in (f"_incubating.{kind}s", f"{kind}s"):
        try:
            yield importlib.import_module(f"opentelemetry.semconv.{place}.{words}_{kind}s")
        except ModuleNotFoundError:
            continue


def _instrument(create: Any, wanted: Mapping[str, str]) -> Definition:
    meter = sdk.MeterProvider(shutdown_on_exit=False).get_meter("names")
    try:
        made = create(meter, None)  # an observable one
    except TypeError:
        made = create(meter)
    kind = type(made).__name__.removeprefix("_").removeprefix("Observable").lower()
    return Definition(kind, made.unit, wanted=wanted)


@cache
def _catalogued() -> Mapping[str, str]:
    """Returns the types of OpenTelemetry's attributes by name, from the catalog; those of the resource are strings
    except one."""
    described = (*catalog.METRICS, *catalog.SDK_METRICS, *catalog_spans.SPANS, *catalog_spans.EVENTS)
    return {"process.pid": "int"} | {one.name: one.type for thing in described for one in thing.attributes}  # type: ignore[attr-defined]
