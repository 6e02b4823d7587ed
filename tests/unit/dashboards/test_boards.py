"""The dashboards as Grafana reads them: places of panels, their texts, and their links."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import Any

import pytest

from dashboards.board import written
from dashboards.boards import boards
from dashboards.panels import COLUMNS, panel_id
from dashboards.settings import Alerting

KEYS = ["overview", "speculation", "remote", "ranks", "fallback", "latency", "machine", "telemetry"]
UIDS = [f"draftd-{key}" for key in KEYS]
SOURCES = {"${datasource}", "draftd-loki", "draftd-tempo"}


def made(alerting: Alerting | None = None) -> list[dict[str, Any]]:
    return [json.loads(written(board)) for board in boards(alerting or Alerting())]


@pytest.fixture(scope="module", params=range(len(UIDS)), ids=UIDS)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return made()[request.param]


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in dashboard["panels"] if one["type"] != "row"]


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))


def test_dashboard_uids_consist_of_draftd_prefix_and_board_name() -> None:
    assert [one["uid"] for one in made()] == UIDS


def test_dashboard_has_schema_version_42_and_no_id(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] == 42
    assert "id" not in dashboard


def test_dashboard_panels_do_not_overlap_or_exceed_grid_width(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        here = cells(panel)
        assert max(x for x, _ in here) < COLUMNS, panel["title"]
        assert not here & taken, panel["title"]
        taken |= here


def test_dashboard_grid_has_no_gaps_and_all_panels_have_titles(dashboard: dict[str, Any]) -> None:
    assert dashboard["panels"][0]["type"] == "row"
    covered = set().union(*(cells(panel) for panel in dashboard["panels"]))
    assert len(covered) == COLUMNS * (1 + max(y for _, y in covered))
    assert all(panel["title"] for panel in dashboard["panels"])


def test_dashboard_panels_have_unit_description_query_and_legend(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_dashboard_panel_ids_are_unique_and_derived_from_titles(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(set(ids)) == len(ids)
    assert ids == [panel_id(panel["title"]) for panel in panels(dashboard)]


def test_dashboard_declares_used_variables_as_multi_value_with_all_selected(dashboard: dict[str, Any]) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "model", "draft", "workload", "instance"]
    for name in ("model", "draft", "workload", "instance"):
        assert (variables[name]["multi"], variables[name]["includeAll"]) == (True, True)
        assert variables[name]["current"]["value"] == ["$__all"]
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard["panels"])))
    assert used <= set(variables)


def test_dashboard_panels_use_selected_data_source(
    dashboard: dict[str, Any],
) -> None:
    assert (
        set(re.findall(r'"uid": "(\$\{datasource\}|draftd-(?:prometheus|tempo|loki))"', json.dumps(dashboard)))
        <= SOURCES
    )
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels(dashboard))


def test_dashboard_links_to_other_dashboards_keep_time_range_and_variables(dashboard: dict[str, Any]) -> None:
    (link,) = dashboard["links"]
    assert link["tags"] == dashboard["tags"] == ["draftd"]
    assert (link["type"], link["keepTime"], link["includeVars"]) == ("dashboards", True, True)
    assert "placement" not in link, "it would be hidden in a menu"


def test_dashboard_annotations_mark_fallback_level_and_feature_flag_changes(dashboard: dict[str, Any]) -> None:
    marks = {one["name"]: one for one in dashboard["annotations"]["list"]}
    assert list(marks) == [
        "Fallback level",
        "Feature flag",
        "Changes and why",
        "Flag evaluation failed",
        "Marked by the daemon",
    ]
    assert [one["enable"] for one in marks.values()] == [True, True, False, False, True], "not every Grafana has Loki"
    assert marks["Marked by the daemon"]["datasource"]["uid"] == "-- Grafana --"
    assert marks["Marked by the daemon"]["target"] == {
        "limit": 100,
        "matchAny": False,
        "tags": ["draftd"],
        "type": "tags",
    }
    assert marks["Changes and why"]["titleFormat"] == "{{draftd_transition_subject}}: {{draftd_transition_to}}"
    assert 'draftd_transition_to!=""' in marks["Changes and why"]["target"]["expr"]
    assert "changes(draftd_fallback_level" in marks["Fallback level"]["target"]["expr"]
    assert "changes(draftd_flag_enabled" in marks["Feature flag"]["target"]["expr"]


def test_latency_panels_link_to_traces_of_displayed_time_range() -> None:
    latency = made()[KEYS.index("latency")]
    linked = {panel["title"]: panel["links"][0]["url"] for panel in panels(latency) if panel.get("links")}
    assert {"Whole request", "Time to first token", "Prefill", "Requests by outcome"} <= set(linked)
    for url in linked.values():
        assert "draftd-tempo" in url
        assert "${__from}" in url
        assert "${__to}" in url
        assert '"' not in url
    drawn = [t for panel in panels(latency) for t in panel["targets"] if t.get("exemplar")]
    assert len(drawn) >= 15


def test_dashboard_thresholds_follow_alert_settings() -> None:
    other = dataclasses.replace(
        Alerting(), acceptance_floor=0.123, drift_ratio=0.456, speedup_floor=1.2345, ttft_floor_seconds=0.789,
        min_drafts=4321, critical_share=0.654, window_seconds=77.0,
    )  # fmt: skip
    text = json.dumps(made(other))
    for value in (0.123, 0.456, 1.2345, 0.789, 4321, 0.654):
        assert f'"value": {value}' in text
        assert f'"value": {value}' not in json.dumps(made())
    assert "[1m17s]" in text


def test_dashboard_contains_no_local_paths_or_loopback_addresses(dashboard: dict[str, Any]) -> None:
    text = json.dumps(dashboard)
    assert not re.search(r"/(?:home|root|Users|work|tmp)/|127\.0\.0\.1|localhost", text)
