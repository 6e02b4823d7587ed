"""What is sent: the dashboards and alert rules of this package, or of a folder laid out like it.

    dashboards/*.json          one dashboard each
    alerting/rules.yaml        rule groups, in Grafana's format for provisioning files

Dashboards carry a tag, rules a label. Copies made by hand keep both, but get another uid: so a thing is draftd's own
only with the mark and a uid that begins with `draftd-`.
"""

from __future__ import annotations

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


def ours(thing: Json) -> bool:
    """Whether a dashboard or a rule is draftd's own."""
    marked = TAG in (thing.get("tags") or []) or (thing.get("labels") or {}).get(LABEL) == LABEL_VALUE
    return marked and str(thing.get("uid", "")).startswith(_UID_PREFIX)


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together, every `interval` seconds."""

    name: str
    interval: int
    rules: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """All that there is to send, marked as draftd's own."""

    dashboards: Mapping[str, Json]
    groups: tuple[Group, ...]

    @property
    def rules(self) -> dict[str, Json]:
        """By uid."""
        return {str(rule["uid"]): rule for group in self.groups for rule in group.rules}

    def reading(self, sources: Mapping[str, str]) -> Content:
        """With the shipped uids of data sources replaced by these, by kind, in whatever text they are."""
        replaced = {_SHIPPED_SOURCES[kind]: uid for kind, uid in sources.items()}
        if not replaced:
            return self
        # A name by itself: no letter, digit or hyphen beside it, unless that ends an encoded sign of a link (%22).
        names = "|".join(map(re.escape, replaced))
        alone = re.compile(rf"(?:(?<![\w-])|(?<=%[0-9A-Fa-f]{{2}}))({names})(?![\w-])")

        def chosen(value: Any) -> Any:
            if isinstance(value, str):
                return alone.sub(lambda found: replaced[found[1]], value)
            if isinstance(value, dict):
                return {key: chosen(item) for key, item in value.items()}
            return list(map(chosen, value)) if isinstance(value, list) else value

        groups = tuple(Group(one.name, one.interval, tuple(map(chosen, one.rules))) for one in self.groups)
        return Content(chosen(dict(self.dashboards)), groups)


def read_content(folder: Path | None = None) -> Content:
    """ConfigError names the file and what is wrong in it."""
    found = _texts(files("draftd") / "grafana" if folder is None else folder)
    if not found:
        source = "this package" if folder is None else str(folder)
        raise ConfigError("from", source, f"a folder with dashboards/*.json or {RULES}")
    dashboards = [_dashboard(path, text) for path, text in found.items() if path != RULES]
    groups = _groups(found[RULES]) if RULES in found else []
    for name, values in (
        ("uid of a dashboard", [model["uid"] for model in dashboards]),
        ("uid of a rule", [rule["uid"] for group in groups for rule in group.rules]),
        ("name of a group", [group.name for group in groups]),
    ):
        if doubled := [value for value in values if values.count(value) > 1]:
            raise ConfigError(name, doubled[0], "each once")
    return Content({model["uid"]: model for model in dashboards}, tuple(groups))


def choose_sources(found: Sequence[Json], asked: Mapping[str, str | None]) -> tuple[dict[str, str], list[str]]:
    """The Grafana's data sources to read, by kind: what is asked for by uid, else the only one of its kind; and notes
    on those that are missing. Prometheus must be there."""
    chosen: dict[str, str] = {}
    notes: list[str] = []
    for kind in _SHIPPED_SOURCES:
        names = {str(source.get("uid")): str(source.get("name")) for source in found if source.get("type") == kind}
        listed = ", ".join(f"{uid} ({name})" for uid, name in names.items()) or "none is there"
        wanted = asked.get(kind)
        if wanted is not None and wanted not in names:
            raise ConfigError(kind, wanted, f"the uid of one of its {kind} data sources: {listed}")
        if wanted is not None or len(names) == 1:
            chosen[kind] = wanted or next(iter(names))
        elif kind == "prometheus" and names:
            several = "this Grafana has several Prometheus data sources"
            raise GrafanaError(f"{several}: --prometheus UID picks one of {listed}")
        elif kind == "prometheus":
            advice = "add one that reads draftd's metrics, then run this again"
            raise GrafanaError(f"this Grafana has no Prometheus data source: {advice}")
        elif names:
            notes.append(f"none of the {kind} sources is used: --{kind} picks one of {listed}")
        else:
            notes.append(f"there is no {kind} source: links to it lead nowhere until there is, and this is run again")
    return chosen, notes


def _texts(root: Traversable) -> dict[str, str]:
    """By path in the folder."""
    found, folder, rules = {}, root / "dashboards", root / "alerting" / "rules.yaml"
    if folder.is_dir():
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".json"):
                found[f"dashboards/{file.name}"] = file.read_text(encoding="utf-8")
    if rules.is_file():
        found[RULES] = rules.read_text(encoding="utf-8")
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
    made = []
    for group in document.get("groups") or []:
        name = group.get("name")
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"{RULES}: name of a group", name, "text without a slash")
        interval = _seconds(f"{name}: interval", group.get("interval", "1m"))
        made.append(Group(name, int(interval), tuple(map(_rule, group.get("rules") or []))))
    return made


def _rule(rule: Json) -> Json:
    """As the HTTP API wants it: the file names one field otherwise, and writes each dollar of titles and labels twice,
    where Grafana expands variables."""
    uid = rule.get("uid")
    _check_uid(f"{RULES}: uid", uid)
    for name in ("title", "condition", "data"):
        if not rule.get(name):
            raise ConfigError(f"{RULES}: {name} of {uid}", rule.get(name), "something: a rule needs it")
    made = {key: value for key, value in rule.items() if key != "keepFiringFor"}
    made |= {"for": str(rule.get("for", "0s")), "keep_firing_for": str(rule.get("keepFiringFor", "0s"))}
    for name in ("for", "keep_firing_for"):
        _seconds(f"{uid}: {name}", made[name])
    labels = {str(key): str(value).replace("$$", "$") for key, value in (rule.get("labels") or {}).items()}
    made |= {"title": str(rule["title"]).replace("$$", "$"), "labels": labels | {LABEL: LABEL_VALUE}}
    query = {"queryType": "", "relativeTimeRange": {"from": 0, "to": 0}}
    made["data"] = [query | one for one in rule["data"]]
    return {"noDataState": "NoData", "execErrState": "Alerting", "isPaused": False, "annotations": {}} | made


def _seconds(name: str, value: object) -> float:
    try:
        return seconds_of(str(value))
    except ValueError:
        raise ConfigError(f"{RULES}: {name}", value, "a duration such as 1m30s") from None


def _check_uid(name: str, uid: object) -> None:
    if not isinstance(uid, str) or not uid.startswith(_UID_PREFIX) or len(uid) > _LONGEST_UID:
        raise ConfigError(name, uid, f"text of at most {_LONGEST_UID} characters that begins with {_UID_PREFIX}")
