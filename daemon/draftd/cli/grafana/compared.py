"""What is compared: the contact point and the route that draftd wants, and every object without what Grafana counts,
stamps or fills in, as lines whose difference a person can read. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftd.cli.figures import seconds_of
from draftd.cli.grafana.content import FOLDER, LABEL, LABEL_VALUE, Json
from draftd.fallback.alerts.authentication import SIGNATURE_HEADER
from draftd.settings import TIMESTAMP_HEADER

CONTACT_POINT = "draftd-daemon"  # its uid and its name

_OURS = [LABEL, "=", LABEL_VALUE]
_RULE_FIELDS = (
    "uid", "title", "condition", "noDataState", "execErrState", "annotations", "labels", "isPaused",
    "missingSeriesEvalsToResolve", "notification_settings", "record",
)  # fmt: skip
_QUERY_DEFAULTS = {"intervalMs": 1000, "maxDataPoints": 43200}

#: Our one route in the tree of notification policies, of which a Grafana has a single one, and it is others'. The
#: alerts that ask for a fallback level go to the daemon, and to all others who would have heard of them: the route is
#: the first child, so that no other child takes them away from the daemon, it continues to its siblings, and it sends
#: what it matched to the default contact point too, because Grafana only does that for what no child has matched.
OUR_ROUTE: Json = {
    "object_matchers": [["fallback_level", "=~", ".+"], _OURS],
    "continue": True,
    "routes": [
        {
            "receiver": CONTACT_POINT,
            "object_matchers": [_OURS],
            "continue": True,
            "group_by": ["grafana_folder", "alertname", "instance"],
            "group_wait": "10s",
            "group_interval": "1m",
            "repeat_interval": "10m",  # a daemon that was restarted hears of what still holds
        },
        {"object_matchers": [_OURS]},  # the default contact point, as it is inherited
    ],
}


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where the daemon hears of alerts. Without a secret there is nothing to sign with, and no contact point."""

    url: str
    secret: str | None = field(default=None, repr=False)
    renew: bool = False  # send the secret although nothing else changed: Grafana never tells which one it has


def contact_point(webhook: Webhook) -> Json:
    """As it goes over the wire, secret included. The timestamp is signed too, so that old messages can be told."""
    signed = {"secret": webhook.secret, "header": SIGNATURE_HEADER, "timestampHeader": TIMESTAMP_HEADER}
    return {
        "uid": CONTACT_POINT,
        "name": CONTACT_POINT,
        "type": "webhook",
        "settings": {"url": webhook.url, "httpMethod": "POST", "hmacConfig": signed},
        "disableResolveMessage": False,
    }


def our_routes(tree: Json) -> list[int]:
    """Where among the root's children our route is: it is told by its matcher and by its receiver."""
    return [
        i
        for i, child in enumerate(tree.get("routes") or [])
        if _OURS in (child.get("object_matchers") or [])
        and any(inner.get("receiver") == CONTACT_POINT for inner in child.get("routes") or [])
    ]


def with_our_route(tree: Json) -> Json:
    """The tree with our route as it shall be, in the place where it was or else first; all else as it is."""
    made, places = without_our_route(tree), our_routes(tree)
    made.setdefault("routes", []).insert(places[0] if places else 0, copy.deepcopy(OUR_ROUTE))
    return made


def without_our_route(tree: Json) -> Json:
    made, places = copy.deepcopy(tree), our_routes(tree)
    if places:
        made["routes"] = [child for i, child in enumerate(made["routes"]) if i not in places]
        if not made["routes"]:
            del made["routes"]
    return made


def lines(value: Any) -> list[str]:
    """A JSON value as sorted lines `path = value`, so that two can be compared, and the difference read by a person.

    An item of a list is named by what names it (a panel by its title, a query by its refId) where that is unique, so
    that a new panel does not rename all that follow it. What is empty or false counts as absent: Grafana fills such
    values in.
    """
    return sorted(_walk(value, ""))


def _walk(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for label, item in zip(_labels(value), value, strict=True):
            yield from _walk(item, f"{path}[{label}]")
    elif value is not None and value is not False and value != "":
        yield f"{path} = {json.dumps(value, ensure_ascii=False)}"


def _labels(items: list[Any]) -> list[str]:
    for name in ("uid", "refId", "title", "name"):
        found = [item.get(name) for item in items if isinstance(item, dict)]
        if len(found) == len(items) and all(found) and len(set(map(str, found))) == len(items):
            return [json.dumps(str(label), ensure_ascii=False) for label in found]
    return [str(i) for i in range(len(items))]


def plain_dashboard(model: Json, folder: str = FOLDER) -> Json:
    """The schema's version is left out: a newer Grafana raises it when it reads the dashboard."""
    kept = {key: value for key, value in model.items() if key not in ("id", "version", "iteration", "schemaVersion")}
    return {"folder": folder, **kept, "tags": dict.fromkeys(model.get("tags") or [], True)}  # tags are a set


def plain_group(name: str, interval: int, rules: Sequence[Json]) -> Json:
    return {"interval": interval, "rules": {str(rule["uid"]): _rule(rule, name) for rule in rules}}


def _rule(rule: Json, group: str) -> Json:
    made = {name: rule[name] for name in _RULE_FIELDS if name in rule}
    made |= {name: _seconds(rule.get(name)) for name in ("for", "keep_firing_for")}
    made["data"] = [_query(query) for query in rule.get("data") or []]
    place = rule.get("folderUID", FOLDER), rule.get("ruleGroup", group)
    if place != (FOLDER, group):
        made["moved to"] = "/".join(map(str, place))
    return made


def _query(query: Json) -> Json:
    model = {key: value for key, value in (query.get("model") or {}).items() if _QUERY_DEFAULTS.get(key) != value}
    if model.get("queryType") == query.get("queryType"):
        model.pop("queryType", None)
    reach = query.get("relativeTimeRange") or {}
    span = {"from": reach.get("from", 0), "to": reach.get("to", 0)}
    kept = {name: query.get(name) for name in ("refId", "queryType", "datasourceUid")}
    return kept | {"relativeTimeRange": span, "model": model}


def plain_contact_point(point: Json) -> Json:
    """It cannot be read back, so it does not take part."""
    settings = copy.deepcopy(point.get("settings") or {})
    settings.pop("hmacConfig.secret", None)  # how some versions name a redacted secret of an inner object
    if isinstance(settings.get("hmacConfig"), dict):
        settings["hmacConfig"]["secret"] = None
    return {name: point.get(name) for name in ("uid", "name", "type", "disableResolveMessage")} | {"settings": settings}


def plain_route(tree: Json) -> Json:
    """Our part of the tree; the order of matchers says nothing."""
    return {"routes": [_sorted(tree["routes"][i]) for i in our_routes(tree)]}


def _sorted(route: Json) -> Json:
    made = {key: value for key, value in route.items() if key not in ("routes", "object_matchers")}
    made["object_matchers"] = [" ".join(matcher) for matcher in sorted(route.get("object_matchers") or [])]
    return made | {"routes": [_sorted(child) for child in route.get("routes") or []]}


def _seconds(value: object) -> float | str:
    try:
        return seconds_of(str(value or "0s"))
    except ValueError:
        return str(value)
