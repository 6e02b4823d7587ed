"""The changes that give a Grafana the shipped content, and the obstacles to them.

Everything is read first and compared; one obstacle stops all changes. Then each change is made by itself. Objects that
are written whole (a rule group, the tree of policies) are read again just before, because others write too.
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from draftd.cli.grafana.client import Grafana, GrafanaError
from draftd.cli.grafana.content import FOLDER, LABEL, LABEL_VALUE, TAG, Json, ours
from draftd.fallback.alerts.authentication import SIGNATURE_HEADER
from draftd.fallback.alerts.payload import LEVEL_LABEL
from draftd.settings import TIMESTAMP_HEADER

CONTACT_POINT = "draftd-daemon"  # its uid and its name

_ALERTING = "/v1/provisioning"
_FROM_FILE = "it comes from a provisioning file of Grafana: change it there"
_OURS = [LABEL, "=", LABEL_VALUE]
_RULE_FIELDS = (
    "uid", "title", "condition", "data", "noDataState", "execErrState", "annotations", "labels", "isPaused", "for",
    "missingSeriesEvalsToResolve", "notification_settings", "record",
)  # fmt: skip
_SETS = ("tags", "object_matchers")  # lists whose order has no meaning

#: The one route that draftd adds to a Grafana's tree of notification policies. Alerts that ask for a fallback level go
#: to the daemon, and still to all their other receivers. So the route is the first child, before any that would keep
#: alerts from the daemon; it continues to its siblings; and it also sends to the default contact point, which Grafana
#: uses only for alerts that no child has matched.
OUR_ROUTE: Json = {
    "object_matchers": [[LEVEL_LABEL, "=~", ".+"], _OURS],
    "continue": True,
    "routes": [
        {
            "receiver": CONTACT_POINT,
            "object_matchers": [_OURS],
            "continue": True,
            "group_by": ["grafana_folder", "alertname", "instance"],
            "group_wait": "10s",
            "group_interval": "1m",
            "repeat_interval": "10m",  # a restarted daemon gets the alerts that still hold
        },
        {"object_matchers": [_OURS]},  # the inherited, default contact point
    ],
}


@dataclass(frozen=True, slots=True)
class Webhook:
    """The daemon's webhook for alerts. Without a secret no contact point is made: it could not sign its alerts."""

    url: str
    secret: str | None = field(default=None, repr=False)
    renew: bool = False  # send the secret even if nothing else changed: Grafana does not show its own


@dataclass(frozen=True, slots=True)
class GrafanaChange:
    """One write: the object before and after, as comparable lines, and the call that writes it."""

    kind: str
    name: str
    before: list[str] | None  # None: the object does not exist
    after: list[str]
    make: Callable[[], object] = field(repr=False)

    @property
    def done(self) -> str:
        return "created" if self.before is None else "updated"

    @property
    def diff(self) -> list[str]:
        """Unified, from what the Grafana has to what it will have."""
        name = f"{self.kind}/{self.name}".replace(" ", "-")
        sides = f"grafana/{name}", f"draftd/{name}"
        return list(difflib.unified_diff(self.before or [], self.after, *sides, lineterm="", n=1))


class Push:
    """The plan after one look at a Grafana. `changes`: in the order in which they can be made; `refusals`: the
    obstacles; `unchanged`: how many objects are as shipped."""

    def __init__(
        self, grafana: Grafana, content: tuple[Sequence[Json], Json], webhook: Webhook, *, route: bool = False
    ) -> None:
        """Reads and compares all objects. `route`: add draftd's route to the notification policies, which otherwise
        stay as they are."""
        dashboards, group = content
        self.changes: list[GrafanaChange] = []
        self.unchanged = 0
        self.refusals: list[str] = []
        self.notes: list[str] = []
        self._grafana, self._webhook = grafana, webhook
        there = self._folder()
        for model in dashboards:
            self._dashboard(model)
        points = grafana.get_list("list the contact points", f"{_ALERTING}/contact-points")
        contact_point = self._contact_point({str(point.get("uid")): point for point in points})
        rules = grafana.get_list("list the alert rules", f"{_ALERTING}/alert-rules")
        self._group(group, rules, there=there)
        if route:
            self._route(contact_point)

    def carry_out(self, done: Callable[[GrafanaChange], None]) -> None:
        """Makes the changes, and calls `done` after each. An error says how many were made; the next push makes the
        rest."""
        for number, change in enumerate(self.changes):
            try:
                change.make()
            except GrafanaError as error:
                counted = f"; {number} of {len(self.changes)} changes were made" if number else ""
                raise GrafanaError(error.message + counted, error.code) from None
            done(change)

    def _compare(self, kind: str, name: str, before: Json | None, after: Json, make: Callable[[], object]) -> bool:
        """Notes a change if the object differs; returns whether it does."""
        change = GrafanaChange(kind, name, None if before is None else lines(before), lines(after), make)
        if change.before == change.after:
            self.unchanged += 1
            return False
        self.changes.append(change)
        return True

    def _refuse(self, thing: str, there: Json | None, from_file: bool, mark: str) -> None:
        """Notes a refusal if the object comes from a file, or is not draftd's own."""
        if from_file:
            self.refusals.append(f"{thing}: {_FROM_FILE}")
        elif there is not None and not ours(there):
            advice = f"delete it, or give it the {mark.split()[0]} if it may be overwritten"
            text = f"one is there without the {mark}, so it was not made by this command"
            self.refusals.append(f"{thing}: {text}; {advice}")

    def _folder(self) -> bool:
        """Returns whether the folder exists. The folder is only created, never changed: its title and place are the
        user's."""
        there = self._grafana.find("read the folder", f"/folders/{FOLDER}") is not None
        folder = {"uid": FOLDER, "title": FOLDER}
        create = partial(self._grafana.send, "POST", "create the folder", "/folders", folder)
        self._compare("folder", FOLDER, folder if there else None, folder, create)
        return there

    def _dashboard(self, shipped: Json) -> None:
        uid, grafana = shipped["uid"], self._grafana
        reply = grafana.find(f"read dashboard {uid}", f"/dashboards/uid/{quote(uid, safe='')}") or {}
        there, meta = reply.get("dashboard"), reply.get("meta") or {}
        self._refuse(f"dashboard {uid}", there, bool(meta.get("provisioned")), f"tag {TAG}")
        # Grafana refuses the write if its version is no longer this one.
        model = {"id": None, **shipped, "version": int((there or {}).get("version") or 0)}
        body = {"dashboard": model, "folderUid": FOLDER, "message": "draftd dashboards push"}
        before = None if there is None else _plain_dashboard(there, str(meta.get("folderUid") or ""))
        save = partial(grafana.send, "POST", f"save dashboard {uid}", "/dashboards/db", body)
        self._compare("dashboard", uid, before, _plain_dashboard(shipped, FOLDER), save)

    def _contact_point(self, points: dict[str, Json]) -> bool:
        """Compares the contact point; returns whether there will be one."""
        webhook, there = self._webhook, points.get(CONTACT_POINT)
        if webhook.secret is None:
            left = f"the contact point is left {'as it is' if there else 'out'}: DRAFTD_WEBHOOK_SECRET is not set"
            self.notes.append(f"{left}, which signs alerts for the daemon")
            return there is not None
        why = ""
        if there is None:
            if same := [uid for uid, point in points.items() if point.get("name") == CONTACT_POINT]:
                why = f"another one has this name (uid {same[0]}); rename it"
        elif _from_file(there):
            why = _FROM_FILE
        elif there.get("type") != "webhook":
            why = f"one of type {there.get('type')!r} has this uid; delete it"
        if why:
            self.refusals.append(f"contact point {CONTACT_POINT}: {why}")
        # The timestamp is signed too, so that the daemon can refuse old messages.
        signed = {"secret": webhook.secret, "header": SIGNATURE_HEADER, "timestampHeader": TIMESTAMP_HEADER}
        body = {
            "uid": CONTACT_POINT,
            "name": CONTACT_POINT,
            "type": "webhook",
            "settings": {"url": webhook.url, "httpMethod": "POST", "hmacConfig": signed},
            "disableResolveMessage": False,
        }
        before, after = None if there is None else plain_contact_point(there), plain_contact_point(body)
        if before is not None and webhook.renew:
            before["secret"], after["secret"] = "as it is", "sent again"
        path = f"{_ALERTING}/contact-points"
        make = partial(self._grafana.send, "POST", "create the contact point", path, body)
        if there is not None:
            make = partial(self._grafana.send, "PUT", "save the contact point", f"{path}/{CONTACT_POINT}", body)
        self._compare("contact point", CONTACT_POINT, before, after, make)
        return True

    def _group(self, shipped: Json, rules: Sequence[Json], *, there: bool) -> None:
        """Compares the rule group. It is written whole: rules that it no longer names are deleted, and no version is
        checked. `rules`: all of the Grafana's; `there`: whether the folder exists."""
        name, by_uid = shipped["title"], {rule.get("uid"): rule for rule in rules}
        own = [rule["uid"] for rule in shipped["rules"]]
        for uid in own:
            other_rule = by_uid.get(uid)
            from_file = other_rule is not None and _from_file(other_rule)
            self._refuse(f"rule {uid}", other_rule, from_file, f"label {LABEL}={LABEL_VALUE}")
        path = f"{_ALERTING}/folder/{FOLDER}/rule-groups/{quote(name, safe='')}"
        read = partial(self._grafana.find, f"read rule group {name}", path)
        was: Json = (read() if there else None) or {}
        members = was.get("rules") or []
        present = {rule["uid"]: rule for rule in [*members, *rules] if rule.get("uid") in own}
        present |= {rule["uid"]: rule for rule in members if ours(rule)}
        before = _plain_group(name, int(was.get("interval") or 0), present.values()) if present else None
        after = _plain_group(name, shipped["interval"], shipped["rules"])

        def save() -> None:
            if (read() or {}) != was:
                raise GrafanaError(f"rule group {name} was changed meanwhile: run this again")
            self._grafana.send("PUT", f"save rule group {name}", path, shipped)

        if self._compare("rule group", name, before, after, save):
            for other in members:
                if not ours(other) and other.get("uid") not in own:
                    text = f"it also holds {other.get('title')!r} (uid {other.get('uid')}), which was not made by this"
                    advice = "command and would be deleted with the group's writing; move it to a group of its own"
                    self.refusals.append(f"rule group {name}: {text} {advice}")

    def _route(self, contact_point: bool) -> None:
        """Compares draftd's route. Saving keeps the rest of the tree, and whether the tree is locked against edits in
        Grafana's pages: by default, a write locks it."""
        path = f"{_ALERTING}/policies"
        read = partial(self._grafana.send, "GET", "read the notification policies", path)
        tree: Json = read()
        if _from_file(tree):
            why = f"the tree of notification policies: {_FROM_FILE}; without --route it is left alone"
            self.refusals.append(f"policy route: {why}")
        if not contact_point:
            self.refusals.append(f"policy route: it needs the contact point {CONTACT_POINT}; set DRAFTD_WEBHOOK_SECRET")
        routes, place = list(tree.get("routes") or []), our_route(tree)
        before = None if place is None else {"routes": [routes.pop(place)]}
        routes.insert(place or 0, OUR_ROUTE)

        def save() -> None:
            if read() != tree:
                raise GrafanaError("the notification policies were changed meanwhile: run this again")
            changed_tree, locked = {**tree, "routes": routes}, bool(tree.get("provenance"))
            self._grafana.send("PUT", "save the notification policies", path, changed_tree, locked=locked)

        self._compare("policy route", CONTACT_POINT, before, {"routes": [OUR_ROUTE]}, save)


def our_route(tree: Json) -> int | None:
    """Finds draftd's route among the root's children, by its matcher and receiver; returns its index or None."""
    for place, child in enumerate(tree.get("routes") or []):
        receivers = [inner.get("receiver") for inner in child.get("routes") or []]
        if _OURS in (child.get("object_matchers") or []) and CONTACT_POINT in receivers:
            return place
    return None


def lines(value: Any) -> list[str]:
    """Returns a JSON value as sorted lines `path = value`, for comparison and for readable differences.

    An item of a list is named by a unique field (a panel by its title, a query by its refId), so a new panel does not
    rename those after it. Empty and false values count as absent: Grafana fills such values in.
    """
    return sorted(_walk(value, ""))


def _walk(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            item = sorted(item or [], key=json.dumps) if key in _SETS else item
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for label, item in zip(_labels(value), value, strict=True):
            yield from _walk(item, f"{path}[{label}]")
    elif value is not None and value is not False and value != "":
        yield f"{path} = {json.dumps(value, ensure_ascii=False)}"


def _labels(items: list[Any]) -> list[str]:
    for name in ("uid", "refId", "title", "name"):
        labels = [item.get(name) for item in items if isinstance(item, dict)]
        if len(labels) == len(items) and all(labels) and len(set(map(str, labels))) == len(items):
            return [json.dumps(str(label), ensure_ascii=False) for label in labels]
    return [str(i) for i in range(len(items))]


# The compared part of each object: without the fields that Grafana counts, stamps or fills in.


def _plain_dashboard(model: Json, folder: str) -> Json:
    """Leaves out counters and the schema's version, which a newer Grafana raises when it reads the dashboard."""
    counted = ("id", "version", "iteration", "schemaVersion")
    return {"folder": folder} | {key: value for key, value in model.items() if key not in counted}


def _plain_group(name: str, interval: int, rules: Iterable[Json]) -> Json:
    return {"interval": interval, "rules": {str(rule["uid"]): _plain_rule(rule, name) for rule in rules}}


def _plain_rule(rule: Json, group: str) -> Json:
    plain_rule = {name: rule.get(name) for name in _RULE_FIELDS}
    plain_rule["keep_firing_for"] = rule.get("keep_firing_for") or "0s"
    place = rule.get("folderUID", FOLDER), rule.get("ruleGroup", group)
    return plain_rule if place == (FOLDER, group) else plain_rule | {"moved to": "/".join(map(str, place))}


def plain_contact_point(point: Json) -> Json:
    """Leaves out the secret, which cannot be read back."""
    settings = copy.deepcopy(point.get("settings") or {})
    settings.pop("hmacConfig.secret", None)  # how some versions name a redacted secret of an inner object
    if isinstance(settings.get("hmacConfig"), dict):
        settings["hmacConfig"]["secret"] = None
    return {name: point.get(name) for name in ("uid", "name", "type", "disableResolveMessage")} | {"settings": settings}


def _from_file(thing: Json) -> bool:
    return thing.get("provenance") not in (None, "", "api")
