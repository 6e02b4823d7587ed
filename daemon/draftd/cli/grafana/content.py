"""What is sent: the dashboards and alert rules of this package, with the data sources of the Grafana that they go to.

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
from typing import Any

import yaml

from draftd import DOCS_URL
from draftd.cli.figures import seconds_of
from draftd.cli.grafana.client import GrafanaError
from draftd.errors import ConfigError

Json = dict[str, Any]

FOLDER = "draftd"  # its uid and its title
TAG = "managed-by:draftd"
LABEL, LABEL_VALUE = "managed_by", "draftd"

_UID_PREFIX = "draftd-"
#: The uids that what is shipped uses for the data sources, by Grafana's name of their kind.
_SHIPPED_SOURCES = {"prometheus": "draftd-prometheus", "tempo": "draftd-tempo", "loki": "draftd-loki"}
#: One of them by itself: no letter, digit or hyphen beside it, unless that ends an encoded sign of a link (%22).
_SHIPPED_UID = re.compile(rf"(?:(?<![\w-])|(?<=%[0-9A-Fa-f]{{2}}))(?:{'|'.join(_SHIPPED_SOURCES.values())})(?![\w-])")


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

    dashboards: tuple[Json, ...]
    groups: tuple[Group, ...]


def read_content(sources: Mapping[str, str], folder: Traversable | None = None, docs_url: str = DOCS_URL) -> Content:
    """What is shipped, with its uids of data sources replaced by these, by kind, and links to the documents at
    `docs_url`. `folder` is one like the package's: `dashboards/*.json`, and `alerting/rules.yaml` in Grafana's format
    for provisioning files."""
    folder = files("draftd") / "grafana" if folder is None else folder
    boards = (file for file in (folder / "dashboards").iterdir() if file.name.endswith(".json"))
    models = with_sources([json.loads(file.read_text(encoding="utf-8")) for file in boards], sources)
    rules = yaml.safe_load(
        (folder / "alerting" / "rules.yaml").read_text(encoding="utf-8").replace(DOCS_URL, docs_url.rstrip("/"))
    )
    groups = with_sources(rules["groups"], sources)
    return Content(
        tuple(sorted(map(_dashboard, models), key=lambda model: str(model["uid"]))),
        tuple(Group(one["name"], int(seconds_of(one["interval"])), tuple(map(_rule, one["rules"]))) for one in groups),
    )


def with_sources(value: Any, sources: Mapping[str, str]) -> Any:
    """A JSON value with other data sources, in whatever text of it the shipped uids are."""
    if isinstance(value, str):
        replaced = {_SHIPPED_SOURCES[kind]: uid for kind, uid in sources.items()}
        return _SHIPPED_UID.sub(lambda found: replaced.get(found[0], found[0]), value)
    if isinstance(value, dict):
        return {key: with_sources(item, sources) for key, item in value.items()}
    return [with_sources(item, sources) for item in value] if isinstance(value, list) else value


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
            notes.append(f"there is no {kind} source: links to it work once there is one and you run this again")
    return chosen, notes


def _dashboard(model: Json) -> Json:
    tags = [*(tag for tag in model.get("tags") or [] if tag != TAG), TAG]
    return {key: value for key, value in model.items() if key not in ("id", "version")} | {"tags": tags}


def _rule(rule: Json) -> Json:
    """As the HTTP API wants it: the file names one field otherwise, and writes each dollar of titles and labels twice,
    where Grafana expands variables."""
    made = {key: value for key, value in rule.items() if key != "keepFiringFor"}
    made |= {"for": str(rule.get("for", "0s")), "keep_firing_for": str(rule.get("keepFiringFor", "0s"))}
    labels = {str(key): str(value).replace("$$", "$") for key, value in (rule.get("labels") or {}).items()}
    made |= {"title": str(rule["title"]).replace("$$", "$"), "labels": labels | {LABEL: LABEL_VALUE}}
    query = {"queryType": "", "relativeTimeRange": {"from": 0, "to": 0}}
    made["data"] = [query | one for one in rule["data"]]
    return {"noDataState": "NoData", "execErrState": "Alerting", "isPaused": False, "annotations": {}} | made
