"""The parts of an object that are somebody's decision, without what Grafana counts, stamps or fills in. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from draftd.cli.figures import seconds_of as seconds
from draftd.cli.grafana.names import FOLDER_UID, Json

REDACTED = "[REDACTED]"  # what Grafana shows instead of a secret

_RULE_FIELDS = (
    "uid",
    "title",
    "condition",
    "noDataState",
    "execErrState",
    "annotations",
    "labels",
    "isPaused",
    "missingSeriesEvalsToResolve",
    "notification_settings",
    "record",
)
_QUERY_DEFAULTS = {"intervalMs": 1000, "maxDataPoints": 43200}


def dashboard(model: Json, folder_uid: str = FOLDER_UID) -> Json:
    """The schema's version is left out: a newer Grafana raises it when it reads the dashboard."""
    kept = {key: value for key, value in model.items() if key not in ("id", "version", "iteration", "schemaVersion")}
    kept["tags"] = dict.fromkeys(model.get("tags") or [], True)  # a set
    return {"folder": folder_uid, **kept}


def group(name: str, interval: int, rules: Iterable[Json]) -> Json:
    return {"interval": interval, "rules": {str(rule["uid"]): _rule(rule, name) for rule in rules}}


def contact_point(point: Json) -> Json:
    """The secret cannot be read back, so it does not take part."""
    settings = copy.deepcopy(point.get("settings") or {})
    settings.pop("hmacConfig.secret", None)  # how some versions name a redacted secret of an inner object
    hmac = settings.get("hmacConfig")
    if isinstance(hmac, dict):
        hmac["secret"] = None
    return {
        "uid": point.get("uid"),
        "name": point.get("name"),
        "type": point.get("type"),
        "disableResolveMessage": point.get("disableResolveMessage", False),
        "settings": settings,
    }


def _rule(rule: Json, group_name: str) -> Json:
    made = {name: rule[name] for name in _RULE_FIELDS if name in rule}
    made["for"] = _seconds(rule.get("for"))
    made["keep_firing_for"] = _seconds(rule.get("keep_firing_for"))
    made["data"] = [_query(query) for query in rule.get("data") or []]
    place = rule.get("folderUID", FOLDER_UID), rule.get("ruleGroup", group_name)
    if place != (FOLDER_UID, group_name):
        made["moved to"] = "/".join(map(str, place))
    return made


def _query(query: Json) -> Json:
    model = dict(query.get("model") or {})
    for name, value in _QUERY_DEFAULTS.items():
        if model.get(name) == value:
            del model[name]
    if model.get("queryType") == query.get("queryType"):
        model.pop("queryType", None)
    reach = query.get("relativeTimeRange") or {}
    return {
        "refId": query.get("refId"),
        "queryType": query.get("queryType", ""),
        "relativeTimeRange": {"from": reach.get("from", 0), "to": reach.get("to", 0)},
        "datasourceUid": query.get("datasourceUid"),
        "model": model,
    }


def _seconds(value: object) -> float | str:
    try:
        return seconds(str(value or "0s"))
    except ValueError:
        return str(value)
