"""What is shipped, and that it can be pushed."""

from __future__ import annotations

from draftd.cli.grafana.content import read_content
from tests.unit.cli.grafana.conftest import Push, Site


def test_grafana_push_of_all_shipped_content_makes_a_second_push_a_no_op(site: Site, draftd: Push) -> None:
    dashboards, group = read_content({})
    environ = {"GRAFANA_URL": site.url, "GRAFANA_TOKEN": site.grafana.token, "DRAFTD_WEBHOOK_SECRET": "secret"}
    ran = draftd("push", "--route", **environ)
    assert ran.code == 0, ran.err
    assert set(site.grafana.dashboards) == {model["uid"] for model in dashboards}
    assert set(site.grafana.rules) == {rule["uid"] for rule in group["rules"]}
    assert "draftd-prometheus" not in site.grafana.frozen()
    assert "draftd-tempo" not in site.grafana.frozen()
    assert "nothing to do" in draftd("push", "--route", **environ).out


def test_grafana_push_docs_url_option_sets_runbook_links_of_alert_rules(site: Site, draftd: Push) -> None:
    environ = {"GRAFANA_URL": site.url, "GRAFANA_TOKEN": site.grafana.token, "DRAFTD_DOCS_URL": "http://wiki.local/d/"}
    assert draftd("push", **environ).code == 0
    links = {rule["annotations"]["runbook_url"].partition("#")[0] for rule in site.grafana.rules.values()}
    assert links == {"http://wiki.local/d/runbooks.md"}
    assert "docs_url: got 'nowhere'" in draftd("push", "--docs-url", "nowhere", **environ).err
