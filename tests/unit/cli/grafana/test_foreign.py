"""Content made by others stays as it is; if it is in the way, the push is refused and nothing is sent."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.grafana import Grafana
from tests.unit.cli.grafana.conftest import Push, Site


def _dashboard(grafana: Grafana, uid: str, title: str, folder: str = "", **meta: bool) -> None:
    model = {"id": 1, "uid": uid, "title": title, "version": 4, "tags": ["mine"], "panels": [{"title": "mine"}]}
    grafana.dashboards[uid] = {"dashboard": model, "meta": {"folderUid": folder, **meta}}


def _rule(grafana: Grafana, uid: str, title: str, folder: str, group: str, **more: object) -> None:
    stored = {
        "uid": uid,
        "title": title,
        "folderUID": folder,
        "ruleGroup": group,
        "labels": {},
        "data": [],
        "for": "5m",
    }
    grafana.rules[uid] = {**stored, **more}
    grafana.intervals[f"{folder}/{group}"] = 60


def _contact_point(grafana: Grafana, uid: str, name: str, **more: str) -> None:
    point = {"uid": uid, "name": name, "type": "webhook", "settings": {"url": "http://mine/"}}
    grafana.contact_points[uid] = {**point, **more}


def _populate(grafana: Grafana) -> None:
    """Fills Grafana with others' content, some with names like ours, that is not in the way."""
    grafana.folders["draftd"] = {"id": 1, "uid": "draftd", "title": "My own name for it", "parentUid": "team"}
    grafana.folders["team"] = {"id": 2, "uid": "team", "title": "Team"}
    _dashboard(grafana, "abc", "draftd overview", "team")
    _dashboard(grafana, "copy", "A copy of mine", "draftd")
    grafana.dashboards["copy"]["dashboard"]["tags"] = ["managed-by:draftd"]
    _rule(grafana, "mine", "DraftdAbsent", "team", "draftd")
    _rule(grafana, "beside", "Another rule", "draftd", "my own group")
    _rule(grafana, "copied", "A duplicate", "draftd", "my own group", labels={"managed_by": "draftd"})
    _contact_point(grafana, "slack", "team slack")
    grafana.policies = {
        "receiver": "grafana-default-email",
        "group_by": ["grafana_folder", "alertname"],
        "group_wait": "45s",
        "routes": [
            {
                "receiver": "team slack",
                "object_matchers": [["severity", "=", "critical"], ["managed_by", "=", "draftd"]],
                "mute_time_intervals": ["nights"],
                "routes": [
                    {"receiver": "team slack", "object_matchers": [["team", "=~", "a|b"]], "repeat_interval": "4h"}
                ],
            }
        ],
    }


def _of_others(grafana: Grafana) -> object:
    """Returns the others' content as it is now."""
    return copy.deepcopy(
        (
            {uid: grafana.folders[uid] for uid in ("draftd", "team")},
            {uid: grafana.dashboards[uid] for uid in ("abc", "copy")},
            {uid: grafana.rules[uid] for uid in ("mine", "beside", "copied")},
            {name: grafana.intervals[name] for name in ("team/draftd", "draftd/my own group")},
            {uid: grafana.contact_points[uid] for uid in ("slack", "grafana-default-email")},
        )
    )


def test_grafana_push_leaves_dashboards_rules_and_policies_of_others_unchanged(site: Site, push: Push) -> None:
    _populate(site.grafana)
    before, policies = _of_others(site.grafana), copy.deepcopy(site.grafana.policies)
    assert push().code == 0
    site.model["title"] = "drifted"
    assert push().code == 0
    assert _of_others(site.grafana) == before
    assert site.grafana.policies == policies


def test_grafana_push_inserts_its_policy_route_first_and_leaves_other_routes_unchanged(site: Site, push: Push) -> None:
    _populate(site.grafana)
    before = copy.deepcopy(site.grafana.policies)
    assert push("--route").code == 0
    ours, *others = site.grafana.policies["routes"]
    assert others == before["routes"]
    assert {k: v for k, v in site.grafana.policies.items() if k != "routes"} == {
        k: v for k, v in before.items() if k != "routes"
    }
    assert ours["continue"] is True
    assert ["managed_by", "=", "draftd"] in ours["object_matchers"]
    assert [child.get("receiver") for child in ours["routes"]] == ["draftd-daemon", None]

    push()
    assert site.grafana.writes == []


def test_grafana_push_restores_its_edited_policy_route_at_the_same_position(site: Site, push: Push) -> None:
    push("--route")
    site.grafana.policies["routes"].insert(0, {"receiver": "draftd-daemon", "object_matchers": [["a", "=", "b"]]})
    site.grafana.policies["routes"][1]["routes"][0]["group_wait"] = "5m"
    shown = push("--route", "--dry-run").out
    assert '-routes[0].routes[0].group_wait = "5m"' in shown
    assert '+routes[0].routes[0].group_wait = "10s"' in shown
    push("--route")
    assert site.grafana.policies["routes"][0]["object_matchers"] == [["a", "=", "b"]]
    assert site.grafana.policies["routes"][1]["routes"][0]["group_wait"] == "10s"


@pytest.mark.parametrize("provenance", ["", "api"])
def test_grafana_push_preserves_provenance_of_the_notification_policy_tree(
    site: Site, push: Push, provenance: str
) -> None:
    if provenance:
        site.grafana.policies["provenance"] = provenance
    push("--route")
    assert site.grafana.policies.get("provenance", "") == provenance


def test_foreign_alert_rule_in_shipped_group_blocks_grafana_push_only_on_group_changes(site: Site, push: Push) -> None:
    push()
    _rule(site.grafana, "theirs", "Theirs", "draftd", "draftd")
    assert push().out.endswith("nothing to do: 5 as shipped\n")
    site.grafana.rules["draftd-absent"]["for"] = "10m"
    before = site.grafana.frozen()
    ran = push()
    assert ran.code == 1
    assert "rule group draftd: it also holds 'Theirs' (uid theirs)" in ran.err
    assert site.grafana.frozen() == before


OBSTACLES: list[tuple[str, Callable[[Grafana], None], tuple[str, ...]]] = [
    (
        "dashboard draftd-overview: one is there without the tag managed-by:draftd",
        lambda g: _dashboard(g, "draftd-overview", "Mine"),
        (),
    ),
    (
        "dashboard draftd-overview: it comes from a provisioning file",
        lambda g: _dashboard(g, "draftd-overview", "draftd overview", provisioned=True),
        (),
    ),
    (
        "rule draftd-absent: one is there without the label managed_by=draftd",
        lambda g: _rule(g, "draftd-absent", "Mine", "team", "g"),
        (),
    ),
    (
        "rule draftd-absent: it comes from a provisioning file",
        lambda g: _rule(g, "draftd-absent", "Mine", "draftd", "draftd", provenance="file"),
        (),
    ),
    (
        "contact point draftd-daemon: another one has this name (uid mine); rename it",
        lambda g: _contact_point(g, "mine", "draftd-daemon"),
        (),
    ),
    (
        "contact point draftd-daemon: one of type 'slack' has this uid; delete it",
        lambda g: _contact_point(g, "draftd-daemon", "mine", type="slack"),
        (),
    ),
    (
        "contact point draftd-daemon: it comes from a provisioning file",
        lambda g: _contact_point(g, "draftd-daemon", "draftd-daemon", provenance="file"),
        (),
    ),
    (
        "policy route: the tree of notification policies: it comes from a provisioning file",
        lambda g: g.policies.update(provenance="file"),
        ("--route",),
    ),
]


@pytest.mark.parametrize(
    ("told", "obstacle", "arguments"), OBSTACLES, ids=[case[0].split(";")[0] for case in OBSTACLES]
)
def test_grafana_push_names_conflicting_foreign_content_and_writes_nothing(
    site: Site, push: Push, told: str, obstacle: Callable[[Grafana], None], arguments: tuple[str, ...]
) -> None:
    obstacle(site.grafana)
    before = site.grafana.frozen()
    ran = push(*arguments)
    assert ran.code == 1
    assert told in ran.err
    assert ran.err.endswith("draftd: nothing was changed\n")
    assert site.grafana.writes == []
    assert site.grafana.frozen() == before


def test_grafana_push_refuses_a_policy_route_without_its_contact_point(site: Site, push: Push) -> None:
    ran = push("--route", DRAFTD_WEBHOOK_SECRET=None)
    assert ran.code == 1
    assert "policy route: it needs the contact point draftd-daemon; set DRAFTD_WEBHOOK_SECRET" in ran.err
    assert site.grafana.writes == []
