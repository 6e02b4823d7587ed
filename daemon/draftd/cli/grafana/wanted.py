"""What the Grafana shall have: the content, marked as ours and reading the chosen data sources. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftd.cli.grafana.content import Content, Group
from draftd.cli.grafana.datasources import Choice
from draftd.cli.grafana.names import CONTACT_POINT, LABEL, LABEL_VALUE, TAG, Json
from draftd.fallback.alerts.authentication import SIGNATURE_HEADER
from draftd.settings import TIMESTAMP_HEADER


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where the daemon hears of alerts. Without a secret there is nothing to sign with, and no contact point."""

    url: str
    secret: str | None = field(default=None, repr=False)
    renew: bool = False  # send the secret although nothing else changed: Grafana never tells which one it has


@dataclass(frozen=True, slots=True)
class Wanted:
    """`route`: True wants ours in the notification policies, False wants it gone, None leaves them alone."""

    dashboards: Mapping[str, Json]
    groups: tuple[Group, ...]
    webhook: Webhook
    route: bool | None = None
    prune: bool = False
    editable: bool = False


def build(
    content: Content,
    choice: Choice,
    webhook: Webhook,
    *,
    route: bool | None = None,
    prune: bool = False,
    editable: bool = False,
) -> Wanted:
    dashboards = {}
    for shipped in content.dashboards:
        model = {key: value for key, value in choice.put_into(shipped).items() if key not in ("id", "version")}
        model["tags"] = [*(tag for tag in model.get("tags") or [] if tag != TAG), TAG]
        dashboards[str(model["uid"])] = model
    groups = tuple(
        Group(group.name, group.interval, tuple(_marked(choice.put_into(rule)) for rule in group.rules))
        for group in content.groups
    )
    return Wanted(dashboards, groups, webhook, route, prune, editable)


def contact_point(webhook: Webhook) -> Json:
    """As it goes over the wire, secret included. The timestamp is signed too, so that old messages can be told."""
    return {
        "uid": CONTACT_POINT,
        "name": CONTACT_POINT,
        "type": "webhook",
        "settings": {
            "url": webhook.url,
            "httpMethod": "POST",
            "hmacConfig": {
                "secret": webhook.secret,
                "header": SIGNATURE_HEADER,
                "timestampHeader": TIMESTAMP_HEADER,
            },
        },
        "disableResolveMessage": False,
    }


def _marked(rule: Json) -> Json:
    return {**rule, "labels": {**rule["labels"], LABEL: LABEL_VALUE}}
