"""The content to send: the package's dashboards and alert rules, with the data sources of the Grafana that gets them.

Dashboards carry a tag, rules a label. Copies made by hand keep these but get another uid, so an object is draftd's own
only with its mark and a uid that begins with `draftd-`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
#: Grafana's names of the kinds of data source; the shipped files name one of each by the uid `draftd-KIND`.
_KINDS = ("prometheus", "tempo", "loki")


def ours(thing: Json) -> bool:
    """Whether a dashboard or a rule is draftd's own."""
    marked = TAG in (thing.get("tags") or []) or (thing.get("labels") or {}).get(LABEL) == LABEL_VALUE
    return marked and str(thing.get("uid", "")).startswith(_UID_PREFIX)


def read_content(
    sources: Mapping[str, str], folder: Traversable | None = None, docs_url: str = DOCS_URL
) -> tuple[list[Json], Json]:
    """Returns the shipped dashboards and group of rules in the HTTP API's form, marked as draftd's own. `sources`: uids
    of data sources by kind; links point to the documents at `docs_url`. `folder` is laid out like the package's:
    `dashboards/*.json`, and `alerting/rules.yaml` in Grafana's format for provisioning files."""
    folder = files("draftd") / "grafana" if folder is None else folder
    boards = (file for file in (folder / "dashboards").iterdir() if file.name.endswith(".json"))
    models = with_sources([json.loads(file.read_text(encoding="utf-8")) for file in boards], sources)
    rules = (folder / "alerting" / "rules.yaml").read_text(encoding="utf-8").replace(DOCS_URL, docs_url)
    (group,) = with_sources(yaml.safe_load(rules)["groups"], sources)
    tagged = [model | {"tags": [*model["tags"], TAG]} for model in models]
    for rule in group["rules"]:
        rule["labels"][LABEL] = LABEL_VALUE
        rule["keep_firing_for"] = rule.pop("keepFiringFor", "0s")  # the provisioning file names it otherwise
        rule |= {"folderUID": FOLDER, "ruleGroup": group["name"]}
    return sorted(tagged, key=lambda model: str(model["uid"])), {
        "title": group["name"],
        "folderUid": FOLDER,
        "interval": int(seconds_of(group["interval"])),
        "rules": group["rules"],
    }


def with_sources(value: Any, sources: Mapping[str, str]) -> Any:
    """Replaces the shipped uids of data sources, wherever they are in a JSON value."""
    text = json.dumps(value)
    for kind, uid in sources.items():
        text = text.replace(f"draftd-{kind}", uid)
    return json.loads(text)


def choose_sources(
    data_sources: Sequence[Json], wanted_uids: Mapping[str, str | None]
) -> tuple[dict[str, str], list[str]]:
    """Returns the uids of data sources by kind: the wanted one, else the only one of its kind; and notes on missing
    ones. Raises ConfigError for a wanted uid that is missing, GrafanaError without a Prometheus source."""
    chosen: dict[str, str] = {}
    notes: list[str] = []
    for kind in _KINDS:
        names = {
            str(source.get("uid")): str(source.get("name")) for source in data_sources if source.get("type") == kind
        }
        listed = ", ".join(f"{uid} ({name})" for uid, name in names.items()) or "none is there"
        wanted = wanted_uids.get(kind)
        if wanted is not None and wanted not in names:
            raise ConfigError(kind, wanted, f"the uid of one of Grafana's {kind} data sources: {listed}")
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
