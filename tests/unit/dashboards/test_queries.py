"""Queries name what the catalog declares, and nothing of the catalog is forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import pytest

from dashboards.alerts import alert_rules, recording_rules
from dashboards.board import written
from dashboards.boards import boards
from dashboards.evidence import TARGET_INFO
from dashboards.external import EXTERNALS
from dashboards.queries import events
from dashboards.queries.query import FRESH, counted, over, per_minute
from dashboards.render.reading import Dashboard, parsed
from dashboards.series import exporting
from dashboards.settings import Alerting
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric
from tests.unit.dashboards.promql import Use, closing, uses

EVERY_SERIES = {"job", "instance"}
# Metrics that are on no dashboard, each with the reason.
DELIBERATELY_NOT: Mapping[Metric, str] = {
    catalog.STARTED: "tells which instance of a daemon was the last, for DraftdAbsent",
    catalog.CERTIFICATE_EXPIRY: "changes once a year: an alert and `draftd doctor` tell",
    catalog.INDEPENDENT: "measured once after each start: `draftd status` tells",
    catalog.FLIPS: "measured once after each start: `draftd status` tells",
}


@pytest.fixture(scope="module")
def dashboards() -> list[Dashboard]:
    return [parsed(written(board)) for board in boards(Alerting())]


def expressions(dashboards: Iterable[Dashboard]) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of each expression."""
    for dashboard in dashboards:
        for panel in dashboard.panels:
            for target in panel.targets:
                yield f"{dashboard.uid}/{panel.title}", target.expression
        for mark in dashboard.marks:
            yield f"{dashboard.uid}/{mark.name}", mark.expression


def declared() -> dict[str, set[str]]:
    """Returns the labels that each declared metric's series may have, by its name in Prometheus."""
    labels_by_name = {one.prometheus: EVERY_SERIES | set(one.labels) for one in (*EXTERNALS, TARGET_INFO)}
    for metric in (*catalog.METRICS, *catalog.SDK_METRICS):
        labels = EVERY_SERIES | {attribute.name.replace(".", "_") for attribute in metric.attributes}
        labels_by_name[metric.prometheus] = labels
        if metric.buckets:
            labels_by_name |= {f"{metric.prometheus}_count": labels, f"{metric.prometheus}_sum": labels}
            labels_by_name[f"{metric.prometheus}_bucket"] = labels | {"le"}
    return labels_by_name


def undeclared(expression: str) -> list[str]:
    """Returns the names and labels in an expression that nothing declares."""
    labels_by_name = declared()
    return [
        f"{use.name} {sorted(use.labels - labels_by_name.get(use.name, set()))}"
        for use in uses(expression)
        if use.name not in labels_by_name or use.labels - labels_by_name[use.name]
    ]


def test_dashboard_queries_use_only_declared_metrics_and_labels(dashboards: list[Dashboard]) -> None:
    assert {where: bad for where, expression in expressions(dashboards) if (bad := undeclared(expression))} == {}


def test_dashboard_legends_and_variables_use_only_labels_of_their_metrics(dashboards: list[Dashboard]) -> None:
    labels_by_name = declared()
    for dashboard in dashboards:
        for panel in dashboard.panels:
            for target in panel.targets:
                there = set().union(*(labels_by_name[use.name] for use in uses(target.expression)))
                assert set(target.legend_labels) <= there, f"{dashboard.uid}/{panel.title}"
    for _, query in events.VARIABLES.values():
        metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert not undeclared(metric)
        assert label in labels_by_name[next(uses(metric)).name]


def test_alert_and_recording_rules_use_only_declared_metrics_and_labels() -> None:
    rules = [(rule.name, rule.expr) for rule in (*alert_rules(Alerting()), *recording_rules(Alerting()))]  # type: ignore[attr-defined]
    assert {name: bad for name, expression in rules if (bad := undeclared(expression))} == {}


def test_every_catalog_metric_is_on_dashboard_or_listed_as_omitted(dashboards: list[Dashboard]) -> None:
    named = {re.sub("_(bucket|count|sum)$", "", use.name) for _, text in expressions(dashboards) for use in uses(text)}
    missing = {metric for metric in (*catalog.METRICS, *catalog.SDK_METRICS) if metric.prometheus not in named}
    assert {metric.name for metric in missing} == {metric.name for metric in DELIBERATELY_NOT}
    assert {one.name for one in EXTERNALS} <= named


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(rate(draftd_tokenz_total[5m]))", ["draftd_tokenz_total []"]),
        ('sum(rate(draftd_tokens_total{draftd_mod="x"}[5m]))', ["draftd_tokens_total ['draftd_mod']"]),
        ("sum by (hw_id) (rate(draftd_tokens_total[5m]))", ["draftd_tokens_total ['hw_id']"]),
        ("sum by (le) (rate(draftd_tokens_total[5m]))", ["draftd_tokens_total ['le']"]),
        ("up and on (instance) (draftd_memory_flor_bytes > 0)", ["draftd_memory_flor_bytes ['instance']"]),
        ('label_replace(sum by (instance) (up), "stage", "x", "", "")', []),
        ('count_values by (instance) ("to", draftd_flag_enabled{gen_ai_request_model=~"$model"}) or vector(0)', []),
    ],
)
def test_query_check_reports_undeclared_metric_and_label_names(expression: str, wrong: list[str]) -> None:
    assert undeclared(expression) == wrong


def test_query_parser_returns_each_metric_with_its_labels() -> None:
    metrics = list(
        uses('max(sum by (a) (increase(x{b="c{d}"}[5m:10s] offset 1h)) / on (a) group_left () (y > bool 0))')
    )
    assert metrics == [Use("x", frozenset({"a", "b"})), Use("y", frozenset({"a"}))]


def test_query_builders_guard_ratio_denominators_and_include_daemons_younger_than_window() -> None:
    assert over("a", "b") == "a / (b > 0)"
    metric = Metric("x", catalog.InstrumentKind.GAUGE, "", "")
    assert per_minute(metric, "").endswith(" * 60000 / $__rate_interval_ms")
    assert "draftd_uptime_seconds < $__rate_interval_ms * 0.001 or" in counted(metric, "", "$__rate_interval")
    assert "otelcol_process_uptime < 90 or" in counted(EXTERNALS[0], "", "1m30s")


def test_dashboard_and_alert_gauge_queries_ignore_daemons_that_stopped_exporting(dashboards: list[Dashboard]) -> None:
    """The collector still offers the last values of a dead daemon."""
    kinds = (catalog.InstrumentKind.GAUGE, catalog.InstrumentKind.UP_DOWN_COUNTER)
    gauges = {one.prometheus for one in catalog.METRICS if one.kind in kinds} - {
        catalog.UPTIME.prometheus,
        catalog.STARTED.prometheus,
    }
    panels = [(where, text) for where, text in expressions(dashboards) if "changes(" not in text]
    for where, text in [*panels, *((rule.name, rule.value) for rule in alert_rules(Alerting()))]:
        shown = re.sub(r"last_over_time\([^()]*\)", "", text)  # asks whether the series ever existed
        if gauges & {use.name for use in uses(shown)}:
            assert exporting(FRESH) in text or exporting(Alerting().fresh) in text, where


def test_dashboard_query_denominators_are_guarded_against_zero(dashboards: list[Dashboard]) -> None:
    for where, expression in expressions(dashboards):
        for division in re.finditer(r" / ", re.sub(r'"[^"]*"', "", expression)):
            behind = re.sub(r'"[^"]*"', "", expression)[division.end() :]
            if behind.startswith("$__rate_interval_ms"):
                continue
            assert behind.startswith("("), where
            inside = behind[1 : closing(behind, 1)]
            assert inside.endswith("> 0"), f"{where}: {inside}"
