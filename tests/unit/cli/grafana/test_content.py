"""What is shipped, and that it can be pushed."""

from __future__ import annotations

import pytest

from draftd.cli.grafana.content import read_content
from draftd.errors import ConfigError
from tests.conftest import missing
from tests.unit.cli.grafana.conftest import RULES, Push, Site


@pytest.fixture
def shipped() -> None:
    try:
        read_content()
    except ConfigError:
        missing("the dashboards of the package: python -m dashboards.generate")


def test_dollars_that_a_file_writes_twice_are_sent_once(site: Site) -> None:
    def escape(content: dict[str, list[dict[str, list[dict[str, object]]]]]) -> None:
        content["groups"][0]["rules"][0]["labels"] = {"price": "5$$"}

    site.change(RULES, escape)
    assert read_content(site.folder).groups[0].rules[0]["labels"]["price"] == "5$"


@pytest.mark.usefixtures("shipped")
def test_what_is_shipped_is_pushed_and_then_found_as_it_is(site: Site, draftd: Push) -> None:
    content = read_content()
    environ = {"GRAFANA_URL": site.url, "GRAFANA_TOKEN": site.grafana.token, "DRAFTD_WEBHOOK_SECRET": "secret"}
    ran = draftd("push", "--route", **environ)
    assert ran.code == 0, ran.err
    assert set(site.grafana.dashboards) == set(content.dashboards)
    assert set(site.grafana.rules) == set(content.rules)
    assert "draftd-prometheus" not in site.grafana.frozen()
    assert "draftd-tempo" not in site.grafana.frozen()
    ran = draftd("push", "--route", "--dry-run", "--exit-code", **environ)
    assert ran.code == 0, ran.out
