"""The registry has all of the catalog, and the live check finds each fault. Beside the tests of metrics and of the four
places that count, which run it on what is emitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from draftd.telemetry import catalog, catalog_spans
from scripts import registry
from tests import live_check
from tests.live_check import findings, violations
from tests.otlp import OtlpReceiver

PROCESS = {"process.pid": 7, "process.creation.time": "2026-01-02T03:04:05.678Z"}
REQUEST = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "draftd",
    "gen_ai.request.model": "nano",
    "gen_ai.response.model": "nano",
    "server.address": "127.0.0.1",
    "server.port": 50551,
}
LEASES = {"gen_ai.request.model": "nano"}


def test_semantic_registry_defines_exactly_the_catalog_of_telemetry() -> None:
    theirs = registry.imports()["imports"]
    for kind, described in (("metric", (*catalog.METRICS, *catalog.SDK_METRICS)), ("event", catalog_spans.EVENTS)):
        assert {thing.name for thing in described} == {
            *(name for found, name in live_check.ours() if found == kind),
            *theirs[f"{kind}s"],
        }
    used = {
        one.name
        for thing in (*catalog.METRICS, *catalog_spans.SPANS, *catalog_spans.EVENTS)
        for one in thing.attributes  # type: ignore[attr-defined]
    }
    used |= {one.name for one in catalog.RESOURCE}
    assert {name for kind, name in live_check.ours() if kind == "attribute"} == {
        name for name in used if name.startswith("draftd.")
    }


def test_registry_check_reports_undescribed_and_undefined_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(registry.problems()) == []
    bad = registry.attributes()
    bad["groups"][0]["attributes"][1:] = [{"id": "draftd.bad", "type": "string", "brief": "."}]
    monkeypatch.setattr(registry, "attributes", lambda: bad)
    problems = list(registry.problems())
    assert "draftd.bad: has no description" in problems
    assert "draftd.bad: is a text with neither `values` nor `examples`" in problems
    assert "metric.draftd.requests: refers to draftd.outcome, which is not defined" in problems


@pytest.mark.parametrize(
    ("name", "unit", "instrument", "attributes", "resource", "found"),
    [
        ("draftd.alert.leases", "{alert}", "gauge", LEASES, {}, []),
        ("draftd.unheard_of", "1", "gauge", {}, {}, ["missing_metric"]),
        ("gen_ai.server.unheard_of", "1", "gauge", {}, {}, ["missing_metric"]),
        ("draftd.alert.leases", "1", "gauge", LEASES, {}, ["unit_mismatch"]),
        ("system.memory.limit", "Mi", "updowncounter", {}, {}, ["unit_mismatch"]),
        ("draftd.alert.leases", "{alert}", "counter", LEASES, {}, ["unexpected_instrument"]),
        ("system.memory.limit", "By", "counter", {}, {}, ["unexpected_instrument"]),
        ("draftd.alert.leases", "{alert}", "gauge", {}, {}, ["required_attribute_not_present"]),
        ("hw.power", "W", "gauge", {"hw.id": "cpu"}, {}, ["required_attribute_not_present"]),
        ("process.memory.usage", "By", "updowncounter", {}, PROCESS, []),
        ("process.memory.usage", "By", "updowncounter", {}, {}, ["entity_required_attribute_not_present"] * 2),
        ("process.memory.usage", "By", "updowncounter", {}, {**PROCESS, "process.pid": "7"}, ["type_mismatch"]),
        ("draftd.alert.leases", "{alert}", "gauge", {**LEASES, "draftd.mode": 3}, {}, ["type_mismatch"]),
        ("draftd.alert.leases", "{alert}", "gauge", {**LEASES, "draftd.nothing": 3}, {}, ["missing_attribute"]),
        ("draftd.alert.leases", "{alert}", "gauge", {**LEASES, "server.nothing": 3}, {}, ["missing_attribute"]),
        (
            "draftd.alert.leases",
            "{alert}",
            "gauge",
            {**LEASES, "draftd.mode.Sub": 3},
            {},
            ["illegal_namespace", "invalid_format", "missing_attribute"],
        ),
    ],
)  # fmt: skip
def test_telemetry_live_check_finds_each_kind_of_violation(
    name: str, unit: str, instrument: str, attributes: Mapping[str, Any], resource: Mapping[str, Any], found: list[str]
) -> None:
    assert [one.id for one in violations(received(name, unit, instrument, attributes, resource))] == found


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        (REQUEST, {("undefined_enum_variant", "gen_ai.provider.name")}),
        (
            {key: value for key, value in REQUEST.items() if key not in ("gen_ai.response.model", "server.address")},
            {
                ("undefined_enum_variant", "gen_ai.provider.name"),
                ("recommended_attribute_not_present", "gen_ai.response.model"),
                ("recommended_attribute_not_present", "server.address"),
            },
        ),
        (
            {**REQUEST, "draftd.mode": "telepathic", "alone": "x"},
            {
                ("undefined_enum_variant", "gen_ai.provider.name"),
                ("undefined_enum_variant", "draftd.mode"),
                ("missing_namespace", "alone"),
                ("missing_attribute", "alone"),
            },
        ),
    ],
    ids=["whole", "recommended", "values"],
)
def test_telemetry_live_check_reports_enum_and_recommended_attribute_findings(
    attributes: Mapping[str, Any], found: set[tuple[str, str]]
) -> None:
    receiver = received("gen_ai.server.request.duration", "s", "histogram", attributes, {})
    assert {(one.id, one.name) for one in findings(receiver) if one.id != "not_stable"} == found


def test_telemetry_live_check_finds_unknown_and_incomplete_events() -> None:
    receiver, request = OtlpReceiver(), ExportLogsServiceRequest()
    logs = request.resource_logs.add().scope_logs.add().log_records
    logs.add(event_name="draftd.nothing")
    logs.add(event_name="feature_flag.evaluation")
    receiver.take("logs", request, {})
    assert [(one.id, one.of) for one in violations(receiver)] == [
        ("missing_event", "draftd.nothing"),
        ("required_attribute_not_present", "feature_flag.evaluation"),
    ]


def received(
    name: str, unit: str, instrument: str, attributes: Mapping[str, Any], resource: Mapping[str, Any]
) -> OtlpReceiver:
    """Returns a receiver that received one point of one metric."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.extend(pairs(resource))
    metric = group.scope_metrics.add().metrics.add(name=name, unit=unit)
    kind = "sum" if instrument.endswith("counter") else instrument
    getattr(metric, kind).data_points.add().attributes.extend(pairs(attributes))
    if kind == "sum":
        metric.sum.is_monotonic = instrument == "counter"
    receiver = OtlpReceiver()
    receiver.take("metrics", request, {})
    return receiver


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [
        KeyValue(key=key, value=AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value))
        for key, value in attributes.items()
    ]
