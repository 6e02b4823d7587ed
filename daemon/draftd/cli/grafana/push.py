"""What is to be done so that a Grafana has what is shipped, and what is in the way.

Everything is read first and compared; one thing in the way stops all. Each change is then made by itself; what is
written whole (a rule group, the tree of policies) is read again before, because others write too.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from draftd.cli.grafana.client import Grafana, GrafanaError
from draftd.cli.grafana.compared import (
    CONTACT_POINT,
    Webhook,
    contact_point,
    lines,
    our_routes,
    plain_contact_point,
    plain_dashboard,
    plain_group,
    plain_route,
    with_our_route,
    without_our_route,
)
from draftd.cli.grafana.content import FOLDER, LABEL, LABEL_VALUE, TAG, Content, Json, our_dashboard, our_rule

_MESSAGE = "draftd dashboards push"  # in the dashboard's history
_ALERTING = "/v1/provisioning"
_READ_ALERTS, _WRITE_ALERTS = "alert.provisioning:read", "alert.provisioning:write"
_FROM_FILE = "comes from a provisioning file on Grafana's side, and is to be changed there"


class Action(enum.StrEnum):
    CREATE = "create"
    UPDATE = "update"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    """One write: what is there and what will be, as lines that can be compared, and how to make it."""

    kind: str
    action: Action
    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    make: Callable[[], object] = field(repr=False)

    @property
    def diff(self) -> list[str]:
        """Unified, from what the Grafana has to what it will have."""
        name = f"{self.kind}/{self.name}".replace(" ", "-")
        made = difflib.unified_diff(self.before, self.after, f"grafana/{name}", f"draftd/{name}", lineterm="", n=1)
        return list(made)


class Push:
    """One look at a Grafana, and what follows: `changes` in the order in which they can be made, `obsolete` is our own
    that is no longer shipped and not asked to go, `refusals` what is in the way. Kinds and names are for people."""

    def __init__(
        self, grafana: Grafana, content: Content, webhook: Webhook, *, route: bool | None = None, prune: bool = False
    ) -> None:
        """`route`: True wants ours in the notification policies, False wants it gone, None leaves them alone."""
        self.changes: list[Change] = []
        self.unchanged: list[tuple[str, str]] = []
        self.obsolete: list[tuple[str, str]] = []
        self.refusals: list[str] = []
        self.notes: list[str] = []
        self._grafana, self._content, self._webhook, self._prune = grafana, content, webhook, prune
        points = grafana.get_list("list the contact points", _READ_ALERTS, f"{_ALERTING}/contact-points")
        self._points = {str(point.get("uid")): point for point in points}
        there = self._folder()
        gone = self._dashboards(there)
        self._contact_point()
        gone += self._rule_groups(there)
        if route is not None:
            self._route(wanted=route)
        if prune:
            self.changes += gone
        else:
            self.obsolete = [(change.kind, change.name) for change in gone]

    def carry_out(self, done: Callable[[Change], None]) -> None:
        """`done` hears of each change that was made. An error says how many were; the next push makes the rest."""
        for made, change in enumerate(self.changes):
            try:
                change.make()
            except GrafanaError as error:
                if made:
                    message = f"{error.message}; {made} of {len(self.changes)} changes were made"
                    raise GrafanaError(message, error.code) from None
                raise
            done(change)

    def _compare(
        self, kind: str, name: str, before: Json | None, after: Json | None, make: Callable[[], object]
    ) -> bool:
        """Notes a change where there is one."""
        change = _change(kind, name, before, after, make)
        if change.before == change.after:
            self.unchanged.append((kind, name))
            return False
        self.changes.append(change)
        return True

    def _send(self, method: str, what: str, path: str, body: Any, *, locked: bool = True) -> Callable[[], object]:
        """A write to an alerting object, for later."""
        return lambda: self._grafana.send(method, what, _WRITE_ALERTS, f"{_ALERTING}/{path}", body, locked=locked)

    def _folder(self) -> bool:
        """Whether it is there. It is only ever created: its title and place are then its owner's business."""
        grafana = self._grafana
        there = grafana.find("read the folder", "folders:read", f"/folders/{FOLDER}") is not None
        if self._content.dashboards or self._content.groups:
            if not there:
                folders = grafana.get_pages("list the folders", "folders:read", "/folders")
                if same := [folder["uid"] for folder in folders if folder.get("title") == FOLDER]:
                    told = f"another one has this title (uid {', '.join(same)}); rename it"
                    self.refusals.append(f"folder {FOLDER}: {told}")
            made = {"uid": FOLDER, "title": FOLDER}

            def create() -> object:
                return grafana.send("POST", "create the folder", "folders:create", "/folders", made)

            self._compare("folder", FOLDER, made if there else None, made, create)
        return there

    def _dashboards(self, folder: bool) -> list[Change]:
        """Returns how to remove those that are no longer shipped."""
        grafana, shipped, read = self._grafana, self._content.dashboards, "dashboards:read"

        def search(**asked: str) -> list[Json]:
            return grafana.get_pages("search dashboards", read, "/search", type="dash-db", **asked)

        neighbours = search(folderUIDs=FOLDER) if folder else []
        marked = [hit["uid"] for hit in search(tag=TAG) if our_dashboard(hit)]
        gone = []
        for uid in dict.fromkeys([*shipped, *marked]):
            there = grafana.find(f"read dashboard {uid}", read, f"/dashboards/uid/{quote(uid, safe='')}")
            model, meta = (None, {}) if there is None else (there["dashboard"], there.get("meta") or {})
            before = None if model is None else plain_dashboard(model, str(meta.get("folderUid") or ""))
            if uid in shipped:
                self._refuse_dashboard(uid, model, bool(meta.get("provisioned")), neighbours)
                self._compare("dashboard", uid, before, plain_dashboard(shipped[uid]), self._save_dashboard(uid, model))
            elif model is not None and our_dashboard(model) and not meta.get("provisioned"):
                gone.append(_change("dashboard", uid, before, None, self._delete_dashboard(uid)))
        return gone

    def _refuse_dashboard(self, uid: str, model: Json | None, provisioned: bool, neighbours: Sequence[Json]) -> None:
        if provisioned:
            self.refusals.append(f"dashboard {uid}: it {_FROM_FILE}")
        elif model is not None and not our_dashboard(model):
            self.refusals.append(
                f"dashboard {uid}: one is there without the tag {TAG}, so it was not made by this command; "
                "delete it, or give it the tag if it may be overwritten"
            )
        title = self._content.dashboards[uid].get("title")
        for other in neighbours:
            if other.get("title") == title and other.get("uid") != uid and not our_dashboard(other):
                self.refusals.append(_namesake(f"dashboard {uid}", other))

    def _save_dashboard(self, uid: str, there: Json | None) -> Callable[[], object]:
        """Another version there than the one that was read is an error."""
        version = 0 if there is None else int(there.get("version") or 0)
        model = {"id": None, **self._content.dashboards[uid], "version": version}
        body = {"dashboard": model, "folderUid": FOLDER, "message": _MESSAGE, "overwrite": False}
        needs = "dashboards:create and dashboards:write"
        return lambda: self._grafana.send("POST", f"save dashboard {uid}", needs, "/dashboards/db", body)

    def _delete_dashboard(self, uid: str) -> Callable[[], object]:
        path = f"/dashboards/uid/{quote(uid, safe='')}"
        return lambda: self._grafana.find(f"delete dashboard {uid}", "dashboards:delete", path, "DELETE")

    def _contact_point(self) -> None:
        webhook, there = self._webhook, self._points.get(CONTACT_POINT)
        if webhook.secret is None:
            self.notes.append(
                f"the contact point is left {'as it is' if there else 'out'}: DRAFTD_WEBHOOK_SECRET is not set, and "
                "alerts go to the daemon signed or not at all"
            )
            return
        namesakes = [uid for uid, point in self._points.items() if point.get("name") == CONTACT_POINT]
        if there is not None and _from_file(there):
            self.refusals.append(f"contact point {CONTACT_POINT}: it {_FROM_FILE}")
        elif there is not None and there.get("type") != "webhook":
            told = f"one of type {there.get('type')!r} has this uid; delete it"
            self.refusals.append(f"contact point {CONTACT_POINT}: {told}")
        elif there is None and namesakes:
            self.refusals.append(
                f"contact point {CONTACT_POINT}: another one has this name (uid {namesakes[0]}); rename it"
            )
        body = contact_point(webhook)
        before, after = None if there is None else plain_contact_point(there), plain_contact_point(body)
        if before is not None and webhook.renew:
            before["secret"], after["secret"] = "as it is", "sent anew"
        if there is None:
            make = self._send("POST", "create the contact point", "contact-points", body)
        else:
            make = self._send("PUT", "save the contact point", f"contact-points/{CONTACT_POINT}", body)
        self._compare("contact point", CONTACT_POINT, before, after, make)

    def _rule_groups(self, folder: bool) -> list[Change]:
        """Returns how to remove the rules that are no longer shipped.

        A group is written whole: what is ours in it and not to be removed stays in the body, as it was found.
        """
        found = self._grafana.get_list("list the alert rules", _READ_ALERTS, f"{_ALERTING}/alert-rules")
        shipped = self._content.rules
        for group in self._content.groups:
            self._refuse_rules(group.rules, found)
            there = self._read_group(group.name) if folder else None
            interval = int((there or {}).get("interval") or 0)
            members = [rule for rule in found if (rule.get("folderUID"), rule.get("ruleGroup")) == (FOLDER, group.name)]
            kept = [rule for rule in members if our_rule(rule) and rule["uid"] not in shipped and not self._prune]
            own = {rule["uid"] for rule in group.rules}
            present = [*(rule for rule in found if rule.get("uid") in own), *kept]
            before = plain_group(group.name, interval, present) if present else None
            after = plain_group(group.name, group.interval, [*group.rules, *kept])
            rules = [{**rule, "folderUID": FOLDER, "ruleGroup": group.name} for rule in [*group.rules, *kept]]
            body = {"title": group.name, "folderUid": FOLDER, "interval": group.interval, "rules": rules}
            seen = plain_group(group.name, interval, members)
            if self._compare("rule group", group.name, before, after, self._save_group(group.name, body, seen)):
                for other in members:
                    if not our_rule(other):
                        self.refusals.append(
                            f"rule group {group.name}: it also holds {other.get('title')!r} (uid {other.get('uid')}), "
                            "which was not made by this command and would be rewritten with the group; move it to a "
                            "group of its own"
                        )
        gone = []
        for rule in found:
            if our_rule(rule) and rule["uid"] not in shipped and not _from_file(rule):
                uid, before = str(rule["uid"]), plain_group(str(rule.get("ruleGroup")), 0, [rule])
                gone.append(_change("rule", uid, before, None, self._delete_rule(uid)))
        return gone

    def _refuse_rules(self, rules: Sequence[Json], found: Sequence[Json]) -> None:
        by_uid = {rule.get("uid"): rule for rule in found}
        titles = {rule["title"]: rule["uid"] for rule in rules}
        for uid in titles.values():
            there = by_uid.get(uid)
            if there is not None and _from_file(there):
                self.refusals.append(f"rule {uid}: it {_FROM_FILE}")
            elif there is not None and not our_rule(there):
                self.refusals.append(
                    f"rule {uid}: one is there without the label {LABEL}={LABEL_VALUE}, so it was not made by this "
                    "command; delete it, or give it the label if it may be overwritten"
                )
        for other in found:
            uid = titles.get(str(other.get("title")))
            if other.get("folderUID") == FOLDER and not our_rule(other) and uid not in (None, other.get("uid")):
                self.refusals.append(_namesake(f"rule {uid}", other))

    def _read_group(self, name: str) -> Json | None:
        path = f"{_ALERTING}/folder/{FOLDER}/rule-groups/{quote(name, safe='')}"
        found: Json | None = self._grafana.find(f"read rule group {name}", _READ_ALERTS, path)
        return found

    def _save_group(self, name: str, body: Json, seen: Json) -> Callable[[], object]:
        """A group's PUT has no version to check, and deletes the rules that it does not name."""

        def save() -> object:
            there = self._read_group(name) or {}
            if plain_group(name, int(there.get("interval") or 0), there.get("rules") or []) != seen:
                raise GrafanaError(f"rule group {name} was changed meanwhile: run this again")
            path = f"folder/{FOLDER}/rule-groups/{quote(name, safe='')}"
            return self._send("PUT", f"save rule group {name}", path, body)()

        return save

    def _delete_rule(self, uid: str) -> Callable[[], object]:
        path = f"{_ALERTING}/alert-rules/{quote(uid, safe='')}"
        return lambda: self._grafana.find(f"delete rule {uid}", _WRITE_ALERTS, path, "DELETE")

    def _route(self, *, wanted: bool) -> None:
        """All else in the tree stays, its lock too, which any write would change for the whole tree."""
        tree = self._read_policies()
        if _from_file(tree):
            told = f"the tree of notification policies {_FROM_FILE}; without --route it is left alone"
            self.refusals.append(f"policy route: {told}")
        if wanted and self._webhook.secret is None and CONTACT_POINT not in self._points:
            self.refusals.append(f"policy route: it needs the contact point {CONTACT_POINT}; set DRAFTD_WEBHOOK_SECRET")
        there = bool(our_routes(tree))
        if not (wanted or there):
            return
        made = with_our_route(tree) if wanted else without_our_route(tree)
        send = self._send(
            "PUT", "save the notification policies", "policies", made, locked=bool(tree.get("provenance"))
        )

        def save() -> object:
            if self._read_policies() != tree:
                raise GrafanaError("the notification policies were changed meanwhile: run this again")
            return send()

        before, after = (plain_route(tree) if there else None), (plain_route(made) if wanted else None)
        self._compare("policy route", CONTACT_POINT, before, after, save)

    def _read_policies(self) -> Json:
        what = "read the notification policies"
        tree: Json = self._grafana.send("GET", what, _READ_ALERTS, f"{_ALERTING}/policies")
        return tree


def _change(kind: str, name: str, before: Json | None, after: Json | None, make: Callable[[], object]) -> Change:
    action = Action.CREATE if before is None else Action.REMOVE if after is None else Action.UPDATE
    old, new = (() if one is None else tuple(lines(one)) for one in (before, after))
    return Change(kind, action, name, old, new, make)


def _from_file(thing: Json) -> bool:
    return thing.get("provenance") not in (None, "", "api")


def _namesake(what: str, other: Json) -> str:
    return (
        f"{what}: another one in the folder is called {other.get('title')!r} (uid {other.get('uid')}); rename it or "
        "move it elsewhere"
    )
