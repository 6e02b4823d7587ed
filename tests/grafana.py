"""A Grafana for tests: holds state, and answers as the documented HTTP API does, as far as it is used here.

It is a model, not a Grafana. What it models, and from where:

- `/api/health`, `/api/datasources`: Grafana 12.4's HTTP API reference ("Other", "Data source").
- `/api/folders`, `/api/dashboards`: the same reference ("Folder", "Dashboard"). A save whose version is not the stored
  one is 412 with status `version-mismatch` unless `overwrite`; each save counts the version up and gives an id; what
  comes from a provisioning file cannot be saved (400); an unknown uid is 404.
- `/api/v1/provisioning/…`: "Alerting provisioning HTTP API" of 12.4 and 13, and Grafana's own sources
  (pkg/services/ngalert/api and …/provisioning). A rule group's PUT replaces the group, deletes what it does not name,
  takes rules over from elsewhere by uid, and writes nothing, provenance included, where no rule differs. Rules come
  back with `id`, `orgID`, `updated`, normalised durations, and `intervalMs` 1000 and `maxDataPoints` 43200 in every
  query. Writes set provenance `api` unless `X-Disable-Provenance` is there; `file` refuses all; `api` may go back to
  none for rules and for the policy tree, not for contact points. Secrets come back as `[REDACTED]`, and sent like that
  keep the stored one. The policy tree is one: each write sets the provenance of all of it, and every receiver in it
  must exist.
- Wrong credentials are 401; a missing permission is 403 and names it in `message`.

What it does not model: permissions by folder, quotas, organisations, dashboards of schema v2, the /apis paths.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.http_server import Answer, Refused, Request

Json = dict[str, Any]

REDACTED = "[REDACTED]"
DEFAULT_RECEIVER = "grafana-default-email"
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


@dataclass
class Grafana:
    """Grafana's state, which tests may read and change. Ids and versions are counted as Grafana does."""

    version: str = "12.4.1"
    token: str = "glsa_token-of-the-tests"
    login: tuple[str, str] = ("admin", "password-of-the-tests")
    denied: set[str] = field(default_factory=set)  # permissions that whoever asks lacks
    datasources: list[Json] = field(default_factory=list)
    folders: dict[str, Json] = field(default_factory=dict)
    dashboards: dict[str, Json] = field(default_factory=dict)  # uid: {"dashboard": …, "meta": …}
    rules: dict[str, Json] = field(default_factory=dict)
    intervals: dict[str, int] = field(default_factory=dict)  # "folder/group": seconds
    contact_points: dict[str, Json] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)  # by the contact point's uid
    policies: Json = field(default_factory=lambda: {"receiver": DEFAULT_RECEIVER, "group_by": ["grafana_folder"]})
    requests: list[Request] = field(default_factory=list)
    answers: dict[tuple[str, str], Answer | Callable[[], Answer | None]] = field(default_factory=dict)
    delay: float = 0.0
    _ids: int = 100

    def __post_init__(self) -> None:
        self.contact_points[DEFAULT_RECEIVER] = {
            "uid": DEFAULT_RECEIVER,
            "name": DEFAULT_RECEIVER,
            "type": "email",
            "settings": {"addresses": "<example@email.com>"},
            "disableResolveMessage": False,
        }

    @property
    def writes(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests if request.method != "GET"]

    def frozen(self) -> str:
        """Returns all its state as text, so that two moments can be compared."""
        names = ("folders", "dashboards", "rules", "intervals", "contact_points", "secrets", "policies")
        return json.dumps({name: getattr(self, name) for name in names}, sort_keys=True)

    def add_datasource(self, kind: str, uid: str, name: str) -> None:
        self.datasources.append({"id": self._next_id(), "uid": uid, "name": name, "type": kind})

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        time.sleep(self.delay)
        scripted = self.answers.get((request.method, request.path))
        if callable(scripted):
            scripted = scripted()
        if scripted is not None:
            return scripted
        if request.path == "/api/health":
            return 200, {"commit": "0" * 40, "database": "ok", "version": self.version}
        self._check_credentials(request)
        for method, pattern, permission, name in _ROUTES:
            match = re.fullmatch(pattern, request.path)
            if match and method == request.method:
                if permission in self.denied:
                    raise Refused(
                        403,
                        f"You'll need additional permissions. Permissions needed: {permission}",
                        title="Access denied",
                    )
                return getattr(self, name)(request, *map(unquote, match.groups()))  # type: ignore[no-any-return]
        raise Refused(404, "Not found")

    # What follows answers one route each.

    def _list_datasources(self, request: Request) -> Answer:
        return 200, self.datasources

    def _get_folder(self, request: Request, uid: str) -> Answer:
        return 200, _found(self.folders, uid, "folder not found")

    def _post_folder(self, request: Request) -> Answer:
        uid, title = request.body["uid"], request.body["title"]
        if uid in self.folders:
            raise Refused(409, "a folder with this uid already exists")
        self.folders[uid] = {"id": self._next_id(), "uid": uid, "title": title, "version": 1, "canSave": True}
        return 200, self.folders[uid]

    def _get_dashboard(self, request: Request, uid: str) -> Answer:
        return 200, _found(self.dashboards, uid, "Dashboard not found")

    def _post_dashboard(self, request: Request) -> Answer:
        model = copy.deepcopy(request.body["dashboard"])
        folder = request.body.get("folderUid") or ""
        if folder and folder not in self.folders:
            raise Refused(400, "folder not found")
        stored = self.dashboards.get(model["uid"])
        if stored and stored["meta"].get("provisioned"):
            raise Refused(400, "Cannot save provisioned dashboard")
        now = stored["dashboard"]["version"] if stored else 0
        if stored and model.get("version") != now and not request.body.get("overwrite"):
            raise Refused(412, "The dashboard has been changed by someone else", status="version-mismatch")
        model["id"] = stored["dashboard"]["id"] if stored else self._next_id()
        model["version"] = now + 1
        meta = {"folderUid": folder, "version": now + 1, "provisioned": False, "canSave": True}
        self.dashboards[model["uid"]] = {"dashboard": model, "meta": meta}
        return 200, {"id": model["id"], "uid": model["uid"], "status": "success", "version": now + 1}

    def _list_rules(self, request: Request) -> Answer:
        return 200, list(self.rules.values())

    def _get_group(self, request: Request, folder: str, group: str) -> Answer:
        members = self._members(folder, group)
        if not members:
            raise Refused(404, "rule group not found")
        interval = self.intervals[f"{folder}/{group}"]
        return 200, {"title": group, "folderUid": folder, "interval": interval, "rules": members}

    def _put_group(self, request: Request, folder: str, group: str) -> Answer:
        body, wanted = request.body, _provenance(request)
        if folder not in self.folders:
            raise Refused(400, "folder does not exist")
        if body["interval"] <= 0 or body["interval"] % 10:
            raise Refused(400, f"invalid alert rule group: interval ({body['interval']}) must be divided exactly by 10")
        incoming = {rule["uid"]: _stored_rule(rule, folder, group) for rule in body["rules"]}
        changes_interval = self.intervals.get(f"{folder}/{group}") != body["interval"]
        gone = [rule["uid"] for rule in self._members(folder, group) if rule["uid"] not in incoming]
        changed = [
            uid for uid, rule in incoming.items() if changes_interval or _content(self.rules.get(uid)) != _content(rule)
        ]
        for uid in [*gone, *changed]:
            before = self.rules.get(uid, {}).get("provenance", "")
            if before not in ("", wanted) and not (before == "api" and wanted == ""):
                raise Refused(409, f"cannot change provenance from '{before}' to '{wanted}'")
        for uid in gone:
            del self.rules[uid]
        for uid in changed:
            ident = self.rules.get(uid, {}).get("id") or self._next_id()
            self.rules[uid] = {**incoming[uid], "id": ident, "orgID": 1, "updated": self._stamp()}
            if wanted:
                self.rules[uid]["provenance"] = wanted
        self.intervals[f"{folder}/{group}"] = body["interval"]
        return 200, body

    def _list_contact_points(self, request: Request) -> Answer:
        shown = []
        for uid, point in self.contact_points.items():
            point = copy.deepcopy(point)
            if uid in self.secrets:
                point["settings"]["hmacConfig"]["secret"] = REDACTED
            shown.append(point)
        return 200, sorted(shown, key=lambda point: str(point["name"]))

    def _post_contact_point(self, request: Request) -> Answer:
        point = copy.deepcopy(request.body)
        if point["uid"] in self.contact_points:
            raise Refused(500, f"receiver configuration with UID '{point['uid']}' already exist")
        self._store_contact_point(point, _provenance(request))
        return 202, {**self.contact_points[point["uid"]]}

    def _put_contact_point(self, request: Request, uid: str) -> Answer:
        stored = _found(self.contact_points, uid, "contact point not found").get("provenance", "")
        if stored not in ("", _provenance(request)):
            raise Refused(500, f"cannot changed provenance from '{stored}' to '{_provenance(request)}'")
        self._store_contact_point({**copy.deepcopy(request.body), "uid": uid}, _provenance(request))
        return 202, {"message": "contactpoint updated"}

    def _store_contact_point(self, point: Json, provenance: str) -> None:
        if not point["settings"].get("url"):
            raise Refused(400, f"invalid contact point: url is missing in {json.dumps(point)}")  # some do repeat it all
        point.pop("provenance", None)
        secret = (point["settings"].get("hmacConfig") or {}).pop("secret", None)
        if secret and secret != REDACTED:
            self.secrets[point["uid"]] = secret
        self.contact_points[point["uid"]] = {**point, **({"provenance": provenance} if provenance else {})}

    def _get_policies(self, request: Request) -> Answer:
        return 200, self.policies

    def _put_policies(self, request: Request) -> Answer:
        if self.policies.get("provenance") == "file":
            raise Refused(409, "cannot change provenance from 'file'")
        tree = copy.deepcopy(request.body)
        tree.pop("provenance", None)
        names = {point["name"] for point in self.contact_points.values()}
        for receiver in _receivers(tree):
            if receiver not in names:
                raise Refused(400, f"invalid object specification: receiver '{receiver}' does not exist")
        provenance = _provenance(request)
        self.policies = {**tree, **({"provenance": provenance} if provenance else {})}
        return 202, {"message": "policies updated"}

    def _members(self, folder: str, group: str) -> list[Json]:
        return [rule for rule in self.rules.values() if (rule["folderUID"], rule["ruleGroup"]) == (folder, group)]

    def _check_credentials(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        basic = base64.b64encode(":".join(self.login).encode()).decode()
        if given not in (f"Bearer {self.token}", f"Basic {basic}"):
            raise Refused(401, "Invalid API key" if given.startswith("Bearer") else "Invalid username or password")

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def _stamp(self) -> str:
        return f"2026-11-21T00:00:00.{self._next_id():06d}Z"


_PROVISIONING = r"/api/v1/provisioning"
_READ, _WRITE = "alert.provisioning:read", "alert.provisioning:write"
_ROUTES = (
    ("GET", r"/api/datasources", "datasources:read", "_list_datasources"),
    ("GET", r"/api/folders/([^/]+)", "folders:read", "_get_folder"),
    ("POST", r"/api/folders", "folders:create", "_post_folder"),
    ("GET", r"/api/dashboards/uid/([^/]+)", "dashboards:read", "_get_dashboard"),
    ("POST", r"/api/dashboards/db", "dashboards:write", "_post_dashboard"),
    ("GET", rf"{_PROVISIONING}/alert-rules", _READ, "_list_rules"),
    ("GET", rf"{_PROVISIONING}/folder/([^/]+)/rule-groups/([^/]+)", _READ, "_get_group"),
    ("PUT", rf"{_PROVISIONING}/folder/([^/]+)/rule-groups/([^/]+)", _WRITE, "_put_group"),
    ("GET", rf"{_PROVISIONING}/contact-points", _READ, "_list_contact_points"),
    ("POST", rf"{_PROVISIONING}/contact-points", _WRITE, "_post_contact_point"),
    ("PUT", rf"{_PROVISIONING}/contact-points/([^/]+)", _WRITE, "_put_contact_point"),
    ("GET", rf"{_PROVISIONING}/policies", _READ, "_get_policies"),
    ("PUT", rf"{_PROVISIONING}/policies", _WRITE, "_put_policies"),
)


def _found(things: dict[str, Json], uid: str, otherwise: str) -> Json:
    if uid not in things:
        raise Refused(404, otherwise)
    return things[uid]


def _provenance(request: Request) -> str:
    return "" if "x-disable-provenance" in request.headers else "api"


def _stored_rule(rule: Json, folder: str, group: str) -> Json:
    made = copy.deepcopy(rule)
    for query in made["data"]:
        query["model"].setdefault("intervalMs", 1000)
        query["model"].setdefault("maxDataPoints", 43200)
    made["for"] = _duration(made.get("for", "0s"))
    made["keep_firing_for"] = _duration(made.get("keep_firing_for", "0s"))
    made.pop("provenance", None)
    return {**made, "folderUID": folder, "ruleGroup": group, "notification_settings": None, "record": None}


def _content(rule: Json | None) -> Json | None:
    counted = ("id", "orgID", "updated", "provenance")
    return None if rule is None else {key: value for key, value in rule.items() if key not in counted}


def _duration(text: str) -> str:
    left = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))
    made = ""
    for unit, size in _UNITS.items():
        if left >= size:
            made += f"{left // size}{unit}"
            left %= size
    return made or "0s"


def _receivers(route: Json) -> Iterator[str]:
    if "receiver" in route:
        yield route["receiver"]
    for child in route.get("routes") or []:
        yield from _receivers(child)
