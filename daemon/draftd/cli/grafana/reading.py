"""One look at a Grafana: asks for everything that a plan is made from, and changes nothing."""

from __future__ import annotations

from draftd.cli.grafana.client import GrafanaClient
from draftd.cli.grafana.found import Found, FoundDashboard
from draftd.cli.grafana.names import FOLDER_TITLE, FOLDER_UID, TAG, Json, our_dashboard
from draftd.cli.grafana.wanted import Wanted


def look(client: GrafanaClient, wanted: Wanted) -> Found:
    folder = client.folder(FOLDER_UID)
    same_title = () if folder else tuple(f["uid"] for f in client.root_folders() if f.get("title") == FOLDER_TITLE)
    neighbours = client.search(folderUIDs=FOLDER_UID) if folder else []
    marked = [hit["uid"] for hit in client.search(tag=TAG) if our_dashboard(hit)]
    dashboards = {}
    for uid in dict.fromkeys([*wanted.dashboards, *marked]):
        there = client.dashboard(uid)
        if there is not None and (uid in wanted.dashboards or our_dashboard(there["dashboard"])):
            dashboards[uid] = _dashboard(there)
    intervals = {}
    for group in wanted.groups:
        found = client.rule_group(FOLDER_UID, group.name) if folder else None
        if found is not None:
            intervals[group.name] = int(found.get("interval") or 0)
    return Found(
        folder=folder,
        same_title=same_title,
        dashboards=dashboards,
        neighbours=tuple(neighbours),
        rules=tuple(client.rules()),
        intervals=intervals,
        contact_points=tuple(client.contact_points()),
        policies=None if wanted.route is None else client.policies(),
    )


def _dashboard(there: Json) -> FoundDashboard:
    meta = there.get("meta") or {}
    return FoundDashboard(there["dashboard"], str(meta.get("folderUid") or ""), bool(meta.get("provisioned")))
