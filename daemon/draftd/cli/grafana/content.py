"""What is sent: the dashboards and alert rules of this package, or of a folder laid out like it.

    dashboards/*.json          one dashboard each
    alerting/rules.yaml        rule groups, in Grafana's format for provisioning files

The HTTP API names some fields of a rule otherwise than the file does; what comes out here is as the API wants it.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from draftd.cli.figures import seconds_of as seconds
from draftd.cli.grafana.names import MAX_UID, UID_PREFIX, Json
from draftd.errors import ConfigError

RULES = "alerting/rules.yaml"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together, every `interval` seconds."""

    name: str
    interval: int
    rules: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """All that there is to send. `files` are what it was read from, by their path in the folder."""

    dashboards: tuple[Json, ...]
    groups: tuple[Group, ...]
    files: tuple[tuple[str, str], ...]


def read_content(folder: Path | None = None) -> Content:
    """ConfigError names the file and what is wrong in it."""
    root: Traversable = files("draftd") / "grafana" if folder is None else folder
    source = "this package" if folder is None else str(folder)
    texts = _texts(root)
    if not texts:
        raise ConfigError("from", source, f"a folder with dashboards/*.json or {RULES}")
    dashboards = [_dashboard(path, text) for path, text in texts if path != RULES]
    groups = [group for path, text in texts if path == RULES for group in _groups(text)]
    _unique("uid of a dashboard", [model["uid"] for model in dashboards])
    _unique("uid of a rule", [rule["uid"] for group in groups for rule in group.rules])
    _unique("name of a group", [group.name for group in groups])
    return Content(tuple(dashboards), tuple(groups), tuple(texts))


def _texts(root: Traversable) -> list[tuple[str, str]]:
    found = []
    folder = root / "dashboards"
    if folder.is_dir():
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".json"):
                found.append((f"dashboards/{file.name}", file.read_text(encoding="utf-8")))
    rules = root / "alerting" / "rules.yaml"
    if rules.is_file():
        found.append((RULES, rules.read_text(encoding="utf-8")))
    return found


def _dashboard(path: str, text: str) -> Json:
    try:
        model = json.loads(text)
    except ValueError as error:
        raise ConfigError(path, str(error), "JSON") from None
    if not isinstance(model, dict) or not isinstance(model.get("title"), str):
        raise ConfigError(path, type(model).__name__, "a dashboard: an object with uid and title")
    _check_uid(f"{path}: uid", model.get("uid"))
    return model


def _groups(text: str) -> list[Group]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(RULES, " ".join(str(error).split()), "YAML") from None
    if not isinstance(document, dict) or document.get("apiVersion") != 1:
        raise ConfigError(
            f"{RULES}: apiVersion", document.get("apiVersion") if isinstance(document, dict) else None, "1"
        )
    return [_group(group) for group in document.get("groups") or []]


def _group(group: Json) -> Group:
    name = group.get("name")
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError(f"{RULES}: name of a group", name, "text without a slash")
    rules = tuple(_rule(rule) for rule in group.get("rules") or [])
    return Group(name, int(_duration(f"{name}: interval", group.get("interval", "1m"))), rules)


def _rule(rule: Json) -> Json:
    _check_uid(f"{RULES}: uid", rule.get("uid"))
    uid = rule["uid"]
    for name in ("title", "condition", "data"):
        if not rule.get(name):
            raise ConfigError(f"{RULES}: {name} of {uid}", rule.get(name), "something: a rule needs it")
    annotations = {str(key): str(value) for key, value in (rule.get("annotations") or {}).items()}
    if rule.get("dashboardUid"):  # the file has fields of their own for what the API keeps among the annotations
        annotations["__dashboardUid__"] = str(rule["dashboardUid"])
        annotations["__panelId__"] = str(rule.get("panelId", 0))
    keep_firing = rule.get("keepFiringFor", rule.get("keep_firing_for", "0s"))
    for field, value in (("for", rule.get("for", "0s")), ("keepFiringFor", keep_firing)):
        _duration(f"{uid}: {field}", value)
    made = {
        "uid": uid,
        "title": _plain(rule["title"]),
        "condition": rule["condition"],
        "data": [_query(query) for query in rule["data"]],
        "noDataState": rule.get("noDataState") or "NoData",
        "execErrState": rule.get("execErrState") or "Alerting",
        "for": str(rule.get("for", "0s")),
        "keep_firing_for": str(keep_firing),
        "annotations": annotations,
        "labels": {str(key): _plain(value) for key, value in (rule.get("labels") or {}).items()},
        "isPaused": bool(rule.get("isPaused", False)),
    }
    if rule.get("missing_series_evals_to_resolve") is not None:
        made["missingSeriesEvalsToResolve"] = rule["missing_series_evals_to_resolve"]
    if rule.get("notification_settings"):
        made["notification_settings"] = copy.deepcopy(rule["notification_settings"])
    return made


def _query(query: Json) -> Json:
    made = copy.deepcopy(query)
    made.setdefault("queryType", "")
    made.setdefault("relativeTimeRange", {"from": 0, "to": 0})
    return made


def _plain(value: object) -> str:
    """In a file Grafana expands variables in titles and labels, so that a dollar is written twice there."""
    return str(value).replace("$$", "$")


def _duration(name: str, value: object) -> float:
    try:
        return seconds(str(value))
    except ValueError:
        raise ConfigError(f"{RULES}: {name}", value, "a duration such as 1m30s") from None


def _check_uid(name: str, uid: object) -> None:
    if not isinstance(uid, str) or not uid.startswith(UID_PREFIX) or len(uid) > MAX_UID:
        raise ConfigError(name, uid, f"text of at most {MAX_UID} characters that begins with {UID_PREFIX}")


def _unique(name: str, values: list[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(name, value, "each once")
