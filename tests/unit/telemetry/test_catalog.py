"""The catalog names things as the conventions and Prometheus want them."""

from __future__ import annotations

import re

import pytest

from draftd.telemetry import catalog
from draftd.telemetry.catalog import InstrumentKind, Metric


def test_metric_names_follow_the_naming_rules_and_are_unique() -> None:
    for metric in catalog.METRICS:
        check_name(metric)
    names = {m.name for m in catalog.METRICS}
    assert not {n for n in names if any(other.startswith(n + ".") for other in names)}, "a metric is no namespace"
    assert len(names) == len({m.prometheus for m in catalog.METRICS}) == len(catalog.METRICS) > 80


def check_name(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", metric.name)
    assert not metric.name.endswith(("total", "seconds", "bytes", "count")), "units and totals are Prometheus's to add"
    assert metric.unit in ("s", "By", "1", "Cel", "rpm", "W") or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    assert metric.name.startswith(
        (
            "draftd.",
            "gen_ai.server.",
            "rpc.server.",
            "http.server.",
            "system.memory.",
            "system.paging.",
            "process.memory.",
            "hw.",
        )
    )
    assert bool(metric.buckets) == (metric.kind is InstrumentKind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_no_metric_has_an_id_caller_or_seed_attribute() -> None:
    attributes = {attribute.name for metric in catalog.METRICS for attribute in metric.attributes}
    few = {"hw.id"}  # a machine has few sensors
    assert not {name for name in attributes - few if name.endswith((".id", "caller", "seed"))}


@pytest.mark.parametrize(
    ("metric", "prometheus"),
    [
        (catalog.ACCEPTED_TOKENS, "draftd_spec_decode_accepted_tokens_total"),
        (catalog.TIME_TO_FIRST_TOKEN, "gen_ai_server_time_to_first_token_seconds"),
        (catalog.KV_CACHE, "draftd_engine_kv_cache_bytes"),
        (catalog.ACTIVE_REQUESTS, "draftd_engine_active_requests"),
        (catalog.HW_TEMPERATURE, "hw_temperature_celsius"),
        (catalog.HW_POWER, "hw_power_watts"),
        (catalog.HW_FAN_SPEED, "hw_fan_speed_rpm"),
        (catalog.SYSTEM_MEMORY_USAGE, "system_memory_usage_bytes"),
        (catalog.SYSTEM_MEMORY_UTILIZATION, "system_memory_utilization_ratio"),
        (catalog.MEMORY_CRITICAL, "draftd_memory_critical_duration_seconds_total"),
        (Metric("draftd.some.share", InstrumentKind.GAUGE, "1", ""), "draftd_some_share_ratio"),
        (Metric("draftd.some.share", InstrumentKind.COUNTER, "1", ""), "draftd_some_share_total"),
    ],
)
def test_catalog_metrics_have_the_expected_prometheus_names(metric: Metric, prometheus: str) -> None:
    assert metric.prometheus == prometheus


def test_latency_histogram_buckets_match_the_genai_conventions() -> None:
    assert catalog.REQUEST_DURATION.buckets == tuple(round(0.01 * 2**n, 2) for n in range(14))
    assert catalog.TIME_TO_FIRST_TOKEN.buckets[0] == 0.001
    assert catalog.TIME_TO_FIRST_TOKEN.buckets[-1] == 10
    assert catalog.TIME_PER_OUTPUT_TOKEN.buckets[-1] == 2.5
