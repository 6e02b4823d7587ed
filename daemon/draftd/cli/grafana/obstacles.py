"""Why a push may not be made: things that stand where ours would, and are not ours. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from draftd.cli.grafana.found import Found
from draftd.cli.grafana.names import (
    CONTACT_POINT,
    FOLDER_TITLE,
    FOLDER_UID,
    LABEL,
    LABEL_VALUE,
    TAG,
    our_dashboard,
    our_rule,
)
from draftd.cli.grafana.wanted import Wanted

_FROM_FILE = "comes from a provisioning file on Grafana's side, and is to be changed there"


def obstacles(wanted: Wanted, found: Found, written_groups: Collection[str]) -> Iterator[str]:
    """One sentence each: what is in the way, and how to clear it. A foreign rule only matters to a group written."""
    if found.folder is None and found.same_title and (wanted.dashboards or wanted.groups):
        yield (f"folder {FOLDER_TITLE}: another one has this title (uid {', '.join(found.same_title)}); rename it")
    yield from _dashboards(wanted, found)
    yield from _rules(wanted, found, written_groups)
    yield from _contact_point(wanted, found)
    yield from _policies(wanted, found)


def _dashboards(wanted: Wanted, found: Found) -> Iterator[str]:
    for uid, model in wanted.dashboards.items():
        there = found.dashboards.get(uid)
        if there is not None and there.provisioned:
            yield f"dashboard {uid}: it {_FROM_FILE}"
        elif there is not None and not our_dashboard(there.model):
            yield (
                f"dashboard {uid}: one is there without the tag {TAG}, so it was not made by this command; "
                "delete it, or give it the tag if it may be overwritten"
            )
        for other in found.neighbours:
            if other.get("title") == model.get("title") and other.get("uid") != uid and not our_dashboard(other):
                yield (
                    f"dashboard {uid}: another one in the folder is called {model.get('title')!r} "
                    f"(uid {other.get('uid')}); rename it or move it elsewhere"
                )


def _rules(wanted: Wanted, found: Found, written_groups: Collection[str]) -> Iterator[str]:
    by_uid = {str(rule.get("uid")): rule for rule in found.rules}
    for group in wanted.groups:
        titles = {rule["title"]: rule["uid"] for rule in group.rules}
        for rule in group.rules:
            there = by_uid.get(str(rule["uid"]))
            if there is None:
                continue
            if there.get("provenance") not in (None, "", "api"):
                yield f"rule {rule['uid']}: it {_FROM_FILE}"
            elif not our_rule(there):
                yield (
                    f"rule {rule['uid']}: one is there without the label {LABEL}={LABEL_VALUE}, so it was not made by "
                    "this command; delete it, or give it the label if it may be overwritten"
                )
        for other in found.rules:
            if other.get("folderUID") != FOLDER_UID or our_rule(other):
                continue
            if other.get("ruleGroup") == group.name and group.name in written_groups:
                yield (
                    f"rule group {group.name}: it also holds {other.get('title')!r} (uid {other.get('uid')}), which "
                    "was not made by this command and would be rewritten with the group; move it to a group of its own"
                )
            elif other.get("title") in titles and other.get("uid") != titles[other["title"]]:
                yield (
                    f"rule {titles[other['title']]}: another one in the folder is called {other.get('title')!r} "
                    f"(uid {other.get('uid')}); rename it or move it elsewhere"
                )


def _contact_point(wanted: Wanted, found: Found) -> Iterator[str]:
    if wanted.webhook.secret is None:
        if wanted.route and not any(point.get("uid") == CONTACT_POINT for point in found.contact_points):
            yield f"policy route: it needs the contact point {CONTACT_POINT}; set DRAFTD_WEBHOOK_SECRET"
        return
    points = {str(point.get("uid")): point for point in found.contact_points}
    there = points.get(CONTACT_POINT)
    if there is not None and there.get("provenance") not in (None, "", "api"):
        yield f"contact point {CONTACT_POINT}: it {_FROM_FILE}"
    elif there is not None and there.get("type") != "webhook":
        yield f"contact point {CONTACT_POINT}: one of type {there.get('type')!r} has this uid; delete it"
    elif there is None:
        for uid, point in points.items():
            if point.get("name") == CONTACT_POINT:
                yield f"contact point {CONTACT_POINT}: another one has this name (uid {uid}); rename it"


def _policies(wanted: Wanted, found: Found) -> Iterator[str]:
    tree = found.policies
    if wanted.route is not None and tree is not None and tree.get("provenance") not in (None, "", "api"):
        yield f"policy route: the tree of notification policies {_FROM_FILE}; without --route it is left alone"
