"""What is sent: the dashboards and alert rules of this package, or of a folder laid out like it.

    dashboards/*.json          one dashboard each
    alerting/rules.yaml        rule groups, in Grafana's format for provisioning files

Dashboards carry a tag, rules a label. Copies made by hand keep both, but get another uid: so a thing is draftd's own
only with the mark and a uid that begins with `draftd-`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from draftd.cli.figures import seconds_of
from draftd.cli.grafana.client import GrafanaError
from draftd.errors import ConfigError

Json = dict[str, Any]

RULES = "alerting/rules.yaml"
FOLDER = "draftd"  # its uid and its title
TAG = "managed-by:draftd"
LABEL, LABEL_VALUE = "managed_by", "draftd"

_UID_PREFIX, _LONGEST_UID = "draftd-", 40
#: The uids that what is shipped uses for the data sources, by Grafana's name of their kind.
_SHIPPED_SOURCES = {"prometheus": "draftd-prometheus", "tempo": "draftd-tempo", "loki": "draftd-loki"}


def our_dashboard(model: Json) -> bool:
    return str(model.get("uid", "")).startswith(_UID_PREFIX) and TAG in (model.get("tags") or [])


def our_rule(rule: Json) -> bool:
    return str(rule.get("uid", "")).startswith(_UID_PREFIX) and (rule.get("labels") or {}).get(LABEL) == LABEL_VALUE


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together, every `interval` seconds."""

    name: str
    interval: int
    rules: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """All that there is to send, marked as draftd's own. `files` are what it was read from, by path in the folder."""

    dashboards: Mapping[str, Json]
    groups: tuple[Group, ...]
    files: tuple[tuple[str, str], ...]

    @property
    def rules(self) -> dict[str, Json]:
        """By uid."""
        return {str(rule["uid"]): rule for group in self.groups for rule in group.rules}

    def reading(self, sources: Mapping[str, str]) -> Content:
        """With the shipped uids of data sources replaced by these, by kind, in whatever text they are."""
        replaced = {_SHIPPED_SOURCES[kind]: uid for kind, uid in sources.items()}
        if not replaced:
            return self
        names = "|".join(map(re.escape, replaced))
        # A name by itself: no letter, digit or hyphen beside it, unless that ends an encoded sign of a link (%22).
        alone = re.compile(rf"(?:(?<![\w-])|(?<=%[0-9A-Fa-f]{{2}}))({names})(?![\w-])")
        groups = tuple(
            Group(group.name, group.interval, tuple(_replace(group.rules, alone, replaced))) for group in self.groups
        )
        return Content(_replace(self.dashboards, alone, replaced), groups, self.files)


def read_content(folder: Path | None = None) -> Content:
    """ConfigError names the file and what is wrong in it."""
    root: Traversable = files("draftd") / "grafana" if folder is None else folder
    texts = _texts(root)
    if not texts:
        source = "this package" if folder is None else str(folder)
        raise ConfigError("from", source, f"a folder with dashboards/*.json or {RULES}")
    dashboards = [_dashboard(path, text) for path, text in texts if path != RULES]
    groups = [group for path, text in texts if path == RULES for group in _groups(text)]
    for name, values in (
        ("uid of a dashboard", [model["uid"] for model in dashboards]),
        ("uid of a rule", [rule["uid"] for group in groups for rule in group.rules]),
        ("name of a group", [group.name for group in groups]),
    ):
        for value in values:
            if values.count(value) > 1:
                raise ConfigError(name, value, "each once")
    return Content({model["uid"]: model for model in dashboards}, tuple(groups), tuple(texts))


def choose_sources(found: Sequence[Json], asked: Mapping[str, str | None]) -> tuple[dict[str, str], list[str]]:
    """The Grafana's data sources to read, by kind: what is asked for by uid, else the only one of its kind; and notes
    on those that are missing. Prometheus must be there."""
    chosen: dict[str, str] = {}
    notes: list[str] = []
    for kind in _SHIPPED_SOURCES:
        candidates = {str(source.get("uid")): str(source.get("name")) for source in found if source.get("type") == kind}
        listed = ", ".join(f"{uid} ({name})" for uid, name in candidates.items()) or "none is there"
        wanted = asked.get(kind)
        if wanted is not None:
            if wanted not in candidates:
                raise ConfigError(kind, wanted, f"the uid of one of its {kind} data sources: {listed}")
            chosen[kind] = wanted
        elif len(candidates) == 1:
            chosen[kind] = next(iter(candidates))
        elif kind == "prometheus" and candidates:
            raise GrafanaError(
                f"this Grafana has several Prometheus data sources: --prometheus UID picks one of {listed}"
            )
        elif kind == "prometheus":
            raise GrafanaError(
                "this Grafana has no Prometheus data source: add one that reads draftd's metrics, then run this again"
            )
        elif candidates:
            notes.append(f"none of the {kind} sources is used: --{kind} picks one of {listed}")
        else:
            notes.append(f"there is no {kind} source: links to it lead nowhere until there is, and this is run again")
    return chosen, notes


def _texts(root: Traversable) -> list[tuple[str, str]]:
    found = []
    folder, rules = root / "dashboards", root / "alerting" / "rules.yaml"
    if folder.is_dir():
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".json"):
                found.append((f"dashboards/{file.name}", file.read_text(encoding="utf-8")))
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
    tags = [*(tag for tag in model.get("tags") or [] if tag != TAG), TAG]
    return {key: value for key, value in model.items() if key not in ("id", "version")} | {"tags": tags}


def _groups(text: str) -> list[Group]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(RULES, " ".join(str(error).split()), "YAML") from None
    version = document.get("apiVersion") if isinstance(document, dict) else None
    if version != 1:
        raise ConfigError(f"{RULES}: apiVersion", version, "1")
    return [_group(group) for group in document.get("groups") or []]


def _group(group: Json) -> Group:
    name = group.get("name")
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError(f"{RULES}: name of a group", name, "text without a slash")
    rules = tuple(_rule(rule) for rule in group.get("rules") or [])
    return Group(name, int(_duration(f"{name}: interval", group.get("interval", "1m"))), rules)


def _rule(rule: Json) -> Json:
    """As the HTTP API wants it, which names some fields otherwise than the file does."""
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
    times = {"for": rule.get("for", "0s"), "keep_firing_for": keep_firing}
    labels = {str(key): _unescaped(value) for key, value in (rule.get("labels") or {}).items()}
    query = {"queryType": "", "relativeTimeRange": {"from": 0, "to": 0}}
    for field, value in times.items():
        _duration(f"{uid}: {field}", value)
    made = {
        "uid": uid,
        "title": _unescaped(rule["title"]),
        "condition": rule["condition"],
        "data": [query | copy.deepcopy(one) for one in rule["data"]],
        "noDataState": rule.get("noDataState") or "NoData",
        "execErrState": rule.get("execErrState") or "Alerting",
        **{field: str(value) for field, value in times.items()},
        "annotations": annotations,
        "labels": labels | {LABEL: LABEL_VALUE},
        "isPaused": bool(rule.get("isPaused", False)),
    }
    if rule.get("missing_series_evals_to_resolve") is not None:
        made["missingSeriesEvalsToResolve"] = rule["missing_series_evals_to_resolve"]
    if rule.get("notification_settings"):
        made["notification_settings"] = copy.deepcopy(rule["notification_settings"])
    return made


def _unescaped(value: object) -> str:
    """In a file Grafana expands variables in titles and labels, so that a dollar is written twice there."""
    return str(value).replace("$$", "$")


def _duration(name: str, value: object) -> float:
    try:
        return seconds_of(str(value))
    except ValueError:
        raise ConfigError(f"{RULES}: {name}", value, "a duration such as 1m30s") from None


def _check_uid(name: str, uid: object) -> None:
    if not isinstance(uid, str) or not uid.startswith(_UID_PREFIX) or len(uid) > _LONGEST_UID:
        raise ConfigError(name, uid, f"text of at most {_LONGEST_UID} characters that begins with {_UID_PREFIX}")


def _replace(value: Any, pattern: re.Pattern[str], replaced: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda found: replaced[found.group(1)], value)
    if isinstance(value, (list, tuple)):
        return [_replace(item, pattern, replaced) for item in value]
    if isinstance(value, dict):
        return {key: _replace(item, pattern, replaced) for key, item in value.items()}
    return value
