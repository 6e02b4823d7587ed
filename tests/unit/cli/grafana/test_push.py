"""Pushing to a Grafana: its content afterwards, a second push that does nothing, and drift that is seen and mended."""

from __future__ import annotations

import json
from urllib.parse import quote

from tests.unit.cli.grafana.conftest import RULES, SECRET, TEMPO_QUERY, Push, Site


def test_first_grafana_push_creates_folder_dashboards_rules_and_contact_point(site: Site, push: Push) -> None:
    ran = push()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "5 created"
    assert site.grafana.writes == [
        "POST /api/folders",
        "POST /api/dashboards/db",
        "POST /api/dashboards/db",
        "POST /api/v1/provisioning/contact-points",
        "PUT /api/v1/provisioning/folder/draftd/rule-groups/draftd",
    ]
    assert site.grafana.folders["draftd"]["title"] == "draftd"
    assert set(site.grafana.dashboards) == {"draftd-overview", "draftd-machine"}
    assert set(site.grafana.rules) == {"draftd-absent", "draftd-slower"}
    assert site.grafana.policies == {"receiver": "grafana-default-email", "group_by": ["grafana_folder"]}


def test_pushed_dashboards_carry_managed_by_tag_and_use_the_chosen_data_sources(site: Site, push: Push) -> None:
    push()
    model = site.model
    assert model["tags"] == ["draftd", "managed-by:draftd"]
    assert site.grafana.dashboards["draftd-overview"]["meta"]["folderUid"] == "draftd"
    requests, events = model["panels"]
    assert requests["targets"][0]["datasource"]["uid"] == "prom-1"
    assert requests["datasource"]["uid"] == "${datasource}"
    query = TEMPO_QUERY.replace("draftd-tempo", "tempo-1")
    assert requests["links"][0]["url"] == f"/explore?left={quote(query)}&alt={query}"
    assert model["templating"]["list"][0]["current"]["value"] == "prom-1"
    assert events["datasource"]["uid"] == "draftd-loki"  # there is none to choose


def test_pushed_alert_rules_carry_managed_by_label_and_api_provenance(site: Site, push: Push) -> None:
    push()
    stored = site.grafana.rules["draftd-slower"]
    assert stored["labels"] == {"severity": "warning", "fallback_level": "short_block", "managed_by": "draftd"}
    assert stored["provenance"] == "api"
    assert [query["datasourceUid"] for query in stored["data"]] == ["prom-1", "__expr__"]
    assert (stored["for"], stored["keep_firing_for"]) == ("5m", "1m")
    assert stored["annotations"] == {"summary": "{{ $labels.instance }} is gone"}
    assert site.grafana.intervals == {"draftd/draftd": 60}


def test_pushed_contact_point_signs_webhooks_with_hmac_secret_and_timestamp_header(site: Site, push: Push) -> None:
    push("--webhook-url", "http://mini.local:50552/v1/alerts")
    settings = site.grafana.contact_points["draftd-daemon"]["settings"]
    assert settings["url"] == "http://mini.local:50552/v1/alerts"
    assert settings["hmacConfig"]["timestampHeader"] == "X-Grafana-Alerting-Timestamp"
    assert site.grafana.secrets == {"draftd-daemon": SECRET}


def test_second_grafana_push_writes_nothing_and_reports_nothing_to_do(site: Site, push: Push) -> None:
    push("--route")
    before = site.grafana.frozen()
    ran = push("--route")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "nothing to do: 6 as shipped"
    assert site.grafana.writes == []
    assert site.grafana.frozen() == before


def test_grafana_push_prints_hand_edits_as_a_line_diff_and_reverts_them(site: Site, push: Push) -> None:
    push()
    pushed = json.loads(site.grafana.frozen())
    site.model["panels"][0]["fieldConfig"]["defaults"]["unit"] = "none"
    site.model["version"] += 1
    site.grafana.rules["draftd-absent"]["for"] = "10m"
    site.grafana.rules["draftd-slower"]["data"][0]["model"]["expr"] = "vector(0)"
    site.grafana.intervals["draftd/draftd"] = 120
    site.grafana.contact_points["draftd-daemon"]["settings"]["url"] = "http://elsewhere/"

    shown = push("--dry-run").out.splitlines()
    for line in (
        '-panels["Requests"].fieldConfig.defaults.unit = "none"',
        '+panels["Requests"].fieldConfig.defaults.unit = "reqps"',
        '-rules.draftd-absent.for = "10m"',
        '+rules.draftd-absent.for = "5m"',
        '-rules.draftd-slower.data["A"].model.expr = "vector(0)"',
        '+rules.draftd-slower.data["A"].model.expr = "slower_total > 1"',
        "-interval = 120",
        "+interval = 60",
        '-settings.url = "http://elsewhere/"',
        '+settings.url = "http://127.0.0.1:50552/v1/alerts"',
    ):
        assert line in shown
    assert len([line for line in shown if line.startswith(("+", "-")) and line[:3] not in ("+++", "---")]) == 10
    assert shown[-1] == "3 to be updated, 2 as shipped; nothing was changed"

    assert push().code == 0
    mended = json.loads(site.grafana.frozen())
    for uid in pushed["dashboards"]:
        mended["dashboards"][uid]["dashboard"]["version"] = pushed["dashboards"][uid]["dashboard"]["version"]
        mended["dashboards"][uid]["meta"]["version"] = pushed["dashboards"][uid]["meta"]["version"]
    for uid in pushed["rules"]:
        mended["rules"][uid]["updated"] = pushed["rules"][uid]["updated"]
    assert mended == pushed
    assert push().out.endswith("nothing to do: 5 as shipped\n")


def test_grafana_push_reverts_hand_added_panels_and_hand_deleted_rules(site: Site, push: Push) -> None:
    push()
    site.model["panels"] = [*site.model["panels"][:1], {"id": 9, "title": "Mine", "type": "text"}]
    del site.grafana.rules["draftd-absent"]
    shown = push("--dry-run").out
    assert '-panels["Mine"].title = "Mine"' in shown
    assert '+panels["Events"].title = "Events"' in shown
    assert '+rules.draftd-absent.title = "DraftdAbsent"' in shown
    push()
    assert [panel["title"] for panel in site.model["panels"]] == ["Requests", "Events"]
    assert "draftd-absent" in site.grafana.rules


def test_grafana_push_moves_hand_moved_dashboard_and_rule_back(site: Site, push: Push) -> None:
    push()
    site.grafana.folders["other"] = {"id": 1, "uid": "other", "title": "Other"}
    site.grafana.dashboards["draftd-overview"]["meta"]["folderUid"] = "other"
    site.grafana.rules["draftd-absent"]["ruleGroup"] = "elsewhere"
    site.grafana.intervals["draftd/elsewhere"] = 60
    shown = push("--dry-run").out
    assert '-folder = "other"' in shown
    assert '-rules.draftd-absent.moved to = "draftd/elsewhere"' in shown
    push()
    assert site.grafana.dashboards["draftd-overview"]["meta"]["folderUid"] == "draftd"
    assert site.grafana.rules["draftd-absent"]["ruleGroup"] == "draftd"


def test_grafana_push_ignores_default_fields_filled_in_by_grafana(site: Site, push: Push) -> None:
    push()
    site.model.update(schemaVersion=43, editable=False, description="", annotations={"list": []}, gnetId=None)
    site.grafana.rules["draftd-absent"].update(
        guid="x", updated="2027-01-01T00:00:00Z", missingSeriesEvalsToResolve=None
    )
    site.grafana.rules["draftd-absent"]["data"][0]["model"]["hide"] = False
    push()
    assert site.grafana.writes == []


def test_grafana_push_dry_run_writes_nothing(site: Site, push: Push) -> None:
    empty = site.grafana.frozen()
    ran = push("--dry-run", "--route")
    assert ran.code == 0
    assert ran.out.endswith("6 to be created; nothing was changed\n")
    assert "dashboard      draftd-overview                   to be created" in ran.out
    assert site.grafana.writes == []
    assert site.grafana.frozen() == empty


def test_grafana_push_without_webhook_secret_leaves_the_contact_point_alone(site: Site, push: Push) -> None:
    ran = push(DRAFTD_WEBHOOK_SECRET=None)
    assert "the contact point is left out: DRAFTD_WEBHOOK_SECRET is not set" in ran.out
    assert "draftd-daemon" not in site.grafana.contact_points
    push()
    site.grafana.contact_points["draftd-daemon"]["settings"]["url"] = "http://elsewhere/"
    ran = push(DRAFTD_WEBHOOK_SECRET=None)
    assert "the contact point is left as it is" in ran.out
    assert site.grafana.writes == []


def test_grafana_push_replaces_webhook_secret_only_with_renew_secret_option(site: Site, push: Push) -> None:
    push()
    push(DRAFTD_WEBHOOK_SECRET="another")
    assert site.grafana.secrets["draftd-daemon"] == SECRET
    ran = push("--renew-secret", DRAFTD_WEBHOOK_SECRET="another")
    assert ran.out.splitlines()[-1] == "1 updated, 4 as shipped"
    assert site.grafana.secrets["draftd-daemon"] == "another"


def test_grafana_push_reports_missing_or_ambiguous_optional_data_sources(site: Site, push: Push) -> None:
    site.grafana.add_datasource("loki", "loki-1", "Logs")
    site.grafana.add_datasource("loki", "loki-2", "Other logs")
    site.grafana.datasources = [source for source in site.grafana.datasources if source["type"] != "tempo"]
    out = push().out
    assert "there is no tempo source" in out
    assert "--loki picks one of loki-1 (Logs), loki-2 (Other logs)" in out
    push("--loki", "loki-2")
    assert site.model["panels"][1]["datasource"]["uid"] == "loki-2"


def test_grafana_push_deletes_an_alert_rule_that_is_no_longer_shipped(site: Site, push: Push) -> None:
    push()
    site.change(RULES, lambda content: content["groups"][0]["rules"].pop(0))
    assert '-rules.draftd-absent.title = "DraftdAbsent"' in push("--dry-run").out
    assert push().out.splitlines()[-1] == "1 updated, 4 as shipped"
    assert set(site.grafana.rules) == {"draftd-slower"}
