"""The alert rules as they are written for Prometheus and for Grafana, and their runbooks."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.alerts import alert_rules, recording_rules
from dashboards.rule import AlertRule
from dashboards.rules_grafana import grafana_rules
from dashboards.rules_prometheus import prometheus_rules
from dashboards.settings import Alerting, duration
from draftd import DOCS_URL
from draftd.core import FallbackLevel
from draftd.strategies import RemoteLevel

ROOT = Path(__file__).parents[3]
RULES = alert_rules(Alerting())
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
WANTED = {
    "DraftdAcceptanceBelowFloor": "short_block",
    "DraftdAcceptanceDrift": "short_block",
    "DraftdSlowerThanBreakEven": "autoregressive",
    "DraftdSwapRising": "light_draft",
    "DraftdMemoryPressureCritical": "autoregressive",
    "DraftdThermalHeavy": "short_block",
    "DraftdVerifierErrors": "autoregressive",
    "DraftdTimeToFirstTokenRegression": None,
    "DraftdAbsent": None,
    "DraftdStopped": None,
    "DraftdTelemetryDropped": None,
    "DraftdRemoteErrors": "local",
    "DraftdRemoteSlow": "streaming",
    "DraftdRemoteBelowStreaming": "streaming",
    "DraftdPeersWait": None,
    "DraftdPeersRefused": None,
    "DraftdGroupLost": None,
    "DraftdGroupNotServing": None,
    "DraftdRankBehind": None,
    "DraftdRequestErrors": None,
    "DraftdRequestsRefused": None,
    "DraftdDeadlinesExceeded": None,
    "DraftdStateNotSaved": None,
    "DraftdCertificateExpires": None,
    "DraftdCertificateExpired": None,
    "DraftdAlertsRefused": None,
    "DraftdDrafterErrors": "light_draft",
    "DraftdCanariesFail": None,
    "DraftdRemoteDown": None,
}
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@functools.cache
def for_prometheus(settings: Alerting) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(prometheus_rules(settings))["groups"]
    return list(group["rules"])


@functools.cache
def for_grafana(settings: Alerting) -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(grafana_rules(settings))["groups"]
    return {rule["title"]: rule for rule in group["rules"]}


def test_alert_rules_carry_expected_fallback_level_labels() -> None:
    assert {rule.name: rule.labels.get("fallback_level") for rule in RULES} == WANTED
    names = {level.label for level in (*FallbackLevel, *RemoteLevel)} - {"full", "speculative"}
    assert {level for level in WANTED.values() if level} <= names


def test_alert_rule_uids_are_unique_and_derived_from_names() -> None:
    assert {rule.name: rule.uid for rule in RULES}["DraftdAcceptanceBelowFloor"] == "draftd-acceptance-below-floor"
    assert len({rule.uid for rule in RULES}) == len(RULES)


@each_rule
def test_prometheus_and_grafana_rules_have_the_same_expression(rule: AlertRule) -> None:
    """Grafana computes a baseline that Prometheus reads as a recorded series, which Grafana's source may lack."""
    theirs = for_grafana(Alerting())[rule.name]
    value, number, comparison = (node["model"] for node in theirs["data"])
    ours = next(found for found in for_prometheus(Alerting()) if found.get("alert") == rule.name)
    expr = ours["expr"]
    for recorded in recording_rules(Alerting()):
        expr = expr.replace(recorded.name, recorded.expr)
    ((condition,),) = [comparison["conditions"]]
    sign = {"lt": "<", "gt": ">"}[condition["evaluator"]["type"]]
    assert expr == f"({value['expr']})\n{sign} {condition['evaluator']['params'][0]:.15g}"
    assert (number["expression"], comparison["expression"], theirs["condition"]) == ("A", "B", "C")
    assert [node["refId"] for node in theirs["data"]] == ["A", "B", "C"]
    assert (theirs["for"], theirs.get("keepFiringFor")) == (ours["for"], ours.get("keep_firing_for"))
    assert theirs["labels"] == ours["labels"]
    assert theirs["uid"] == rule.uid


@each_rule
def test_grafana_rules_treat_no_data_as_ok_and_only_draftd_absent_fires_on_query_error(rule: AlertRule) -> None:
    theirs = for_grafana(Alerting())[rule.name]
    assert theirs["noDataState"] == "OK"
    assert theirs["execErrState"] == ("Alerting" if rule.name == "DraftdAbsent" else "KeepLast")


def test_grafana_rules_contain_no_dollar_sign() -> None:
    assert "$" not in grafana_rules(Alerting())


def test_window_seconds_setting_scales_every_duration_of_alert_rules() -> None:
    def shortened(text: str) -> str:
        seconds = {"d": 86400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}

        def sixtieth(found: re.Match[str]) -> str:
            parts = re.findall(r"(\d+)(ms|[dhms])", found[0])
            return duration(sum(int(count) * seconds[unit] for count, unit in parts) / 60)

        times = re.sub(r"(?<=[\[ ])(?:\d+(?:ms|[dhms]))+(?=[\]) \n,.;:])", sixtieth, text)
        return (
            times.replace("/ 300)", "/ 5)")
            .replace("_uptime_seconds < 300 ", "_uptime_seconds < 5 ")
            .replace("_uptime < 300 ", "_uptime < 5 ")
        )

    text = prometheus_rules(Alerting()).replace("for: 0s", "for: at once")
    assert shortened(text) == prometheus_rules(Alerting(window_seconds=5)).replace("for: 0s", "for: at once")


def test_alert_baseline_offset_exceeds_two_windows() -> None:
    settings = Alerting()
    assert settings.baseline_offset_windows > 2  # the window, and as long again until it fires


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(300, "5m"), (5, "5s"), (0.5, "500ms"), (21600, "6h"), (90, "1m30s"), (86400.25, "1d250ms")],
)
def test_prometheus_duration_is_formatted_exactly(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_prometheus_duration_of_zero_seconds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seconds: got 0; allowed: at least 0\.001"):
        duration(0)


def sections() -> dict[str, str]:
    """Returns the title and text of each section of the runbooks."""
    parts = re.split(r"^## (.*)\n", RUNBOOKS, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_runbooks_have_one_section_for_each_alert_rule_and_name_no_unknown_alert() -> None:
    assert list(sections()) == ["How to read them", *(rule.name for rule in RULES)]
    assert set(re.findall(r"\bDraftd[A-Z]\w+", RUNBOOKS)) == set(WANTED)


@each_rule
def test_runbook_heading_states_severity_level_and_dashboard_panel_of_alert_rule(rule: AlertRule) -> None:
    text = sections()[rule.name]
    level = rule.labels.get("fallback_level")
    asks = f"asks for `{level}`" if level else "for people"
    head = text.strip().splitlines()[0]
    heading = re.fullmatch(r"(\w+) · (.*) · dashboard ([\w ]+)(?:, \*(.+)\*)?", head)
    assert heading is not None, head
    assert (heading[1], heading[2]) == (rule.severity.value, asks)
    generated = ROOT / "daemon/draftd/grafana/dashboards" / f"{rule.dashboard.removeprefix('draftd-')}.json"
    board = json.loads(generated.read_text())
    assert (board["uid"], heading[3]) == (rule.dashboard, board["title"].removeprefix("draftd / "))
    panels = {panel["title"] for panel in board["panels"]}
    panels |= {inner["title"] for panel in board["panels"] for inner in panel.get("panels", [])}
    assert heading[4] is None or heading[4] in panels
    for part in ("Means.", "See it.", "Do.", "By itself.", "Resolves"):
        assert f"**{part}**" in text


def test_every_alert_rule_has_scenario_in_stack_tests() -> None:
    scenes = "".join(file.read_text() for file in (ROOT / "tests" / "stack" / "alarms").glob("*.py"))
    assert set(re.findall(r'"(Draftd[A-Z]\w+)"', scenes)) == set(WANTED)


@each_rule
def test_alert_rule_runbook_url_points_to_existing_section(rule: AlertRule) -> None:
    link, _, anchor = rule.annotations(".Value")["runbook_url"].partition("#")
    assert link == f"{DOCS_URL}/runbooks.md"
    assert DOCS_URL.startswith("https://")
    assert anchor in {title.lower().replace(" ", "-") for title in sections()}


def test_runbook_text_states_threshold_values_of_alert_settings() -> None:
    settings = Alerting()
    text = " ".join(RUNBOOKS.split())
    for said in (
        f"fewer than {settings.min_requests} speculative requests or {settings.min_drafts} drafting steps",
        f"at least {settings.min_requests * settings.baseline_factor} requests and "
        f"{settings.min_drafts * settings.baseline_factor} drafting steps",
        f"less than {settings.acceptance_floor * 100:g} % of the drafted tokens",
        f"below {settings.drift_ratio * 100:g} % of its own baseline",
        f"more than {settings.swap_bytes // 2**20} MiB back from swap",
        f"above {settings.ttft_floor_seconds:g} s",
        f"The {settings.ttft_quantile * 100:g}th percentile",
        f"More than {settings.error_share * 100:g} % of the requests that the daemon was to answer ended in an error",
        f"More than {settings.refused_share * 100:g} % of the requests were refused",
        f"More than {settings.late_share * 100:g} % of the requests reached their client's deadline",
        f"expires within {settings.certificate_seconds / 86_400:g} days",
        {300.0: "A window is five minutes"}[settings.window_seconds],
        {("6h", "15m"): "the six hours that ended 15 minutes ago"}[settings.baseline, settings.baseline_offset],
    ):
        assert said in text
