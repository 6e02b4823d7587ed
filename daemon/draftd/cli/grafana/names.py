"""What is named here and found again in a Grafana: uids, and the mark that says who made a thing.

Dashboards carry the tag, rules the label. Copies made by hand keep tags and labels, but get another uid: so a thing is
ours only with the mark and a uid that begins like ours.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

UID_PREFIX = "draftd-"
MAX_UID = 40

FOLDER_UID = "draftd"
FOLDER_TITLE = "draftd"
CONTACT_POINT = "draftd-daemon"  # its uid and its name

TAG = "managed-by:draftd"
LABEL, LABEL_VALUE = "managed_by", "draftd"

#: The uids that what is shipped uses for the data sources, by Grafana's name of their kind.
SHIPPED_SOURCES = {"prometheus": "draftd-prometheus", "tempo": "draftd-tempo", "loki": "draftd-loki"}


def our_dashboard(model: Json) -> bool:
    return str(model.get("uid", "")).startswith(UID_PREFIX) and TAG in (model.get("tags") or [])


def our_rule(rule: Json) -> bool:
    return str(rule.get("uid", "")).startswith(UID_PREFIX) and (rule.get("labels") or {}).get(LABEL) == LABEL_VALUE
