"""Carries a plan out, one change after the other. What is written whole is read again first: others write too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftd.cli.grafana import normal
from draftd.cli.grafana.client import GrafanaClient
from draftd.cli.grafana.errors import GrafanaError
from draftd.cli.grafana.names import FOLDER_UID
from draftd.cli.grafana.plan import Action, Change, Kind

_MESSAGE = "draftd dashboards push"  # in the dashboard's history


def carry_out(client: GrafanaClient, changes: Sequence[Change], done: Callable[[Change], None]) -> None:
    """`done` hears of each change that was made. An error says how many were; the next push makes the rest."""
    for made, change in enumerate(changes):
        try:
            _make(client, change)
        except GrafanaError as error:
            if made:
                raise GrafanaError(f"{error.message}; {made} of {len(changes)} changes were made", error.code) from None
            raise
        done(change)


def _make(client: GrafanaClient, change: Change) -> None:
    match change.kind, change.action:
        case Kind.FOLDER, _:
            client.create_folder(change.body["uid"], change.body["title"])
        case Kind.DASHBOARD, Action.REMOVE:
            client.delete_dashboard(change.name)
        case Kind.DASHBOARD, _:
            client.put_dashboard(change.body, FOLDER_UID, _MESSAGE)
        case Kind.RULE, _:
            client.delete_rule(change.name)
        case Kind.RULES, _:
            _put_group(client, change)
        case Kind.CONTACT_POINT, Action.CREATE:
            client.create_contact_point(change.body, locked=change.locked)
        case Kind.CONTACT_POINT, _:
            client.update_contact_point(change.body, locked=change.locked)
        case Kind.ROUTE, _:
            if client.policies() != change.seen:
                raise GrafanaError("the notification policies were changed meanwhile: run this again")
            client.put_policies(change.body, locked=change.locked)


def _put_group(client: GrafanaClient, change: Change) -> None:
    """A group's PUT has no version to check, and deletes the rules that it does not name."""
    there = client.rule_group(FOLDER_UID, change.name) or {}
    now = normal.group(change.name, int(there.get("interval") or 0), there.get("rules") or [])
    if now != change.seen:
        raise GrafanaError(f"rule group {change.name} was changed meanwhile: run this again")
    client.put_rule_group(change.body, locked=change.locked)
