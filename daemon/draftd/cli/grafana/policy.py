"""Our one route in the tree of notification policies, of which a Grafana has a single one, and it is others'. Pure.

The alerts that ask for a fallback level go to the daemon, and to everybody else who would have heard of them: our route
is the first child, so that no other child takes them away from the daemon, it goes on to its siblings, and it sends
what it matched to the default contact point too, because Grafana only does that for what no child has matched.
"""

from __future__ import annotations

import copy

from draftd.cli.grafana.names import CONTACT_POINT, LABEL, LABEL_VALUE, Json

OURS: Json = {
    "object_matchers": [["fallback_level", "=~", ".+"], [LABEL, "=", LABEL_VALUE]],
    "continue": True,
    "routes": [
        {
            "receiver": CONTACT_POINT,
            "object_matchers": [[LABEL, "=", LABEL_VALUE]],
            "continue": True,
            "group_by": ["grafana_folder", "alertname", "instance"],
            "group_wait": "10s",
            "group_interval": "1m",
            "repeat_interval": "10m",  # a daemon that was restarted hears of what still holds
        },
        {"object_matchers": [[LABEL, "=", LABEL_VALUE]]},  # the default contact point, as it is inherited
    ],
}


def ours_in(tree: Json) -> list[int]:
    """Where among the root's children our route stands: it is told by its matcher and by whom it tells."""
    return [
        i
        for i, child in enumerate(tree.get("routes") or [])
        if [LABEL, "=", LABEL_VALUE] in (child.get("object_matchers") or [])
        and any(inner.get("receiver") == CONTACT_POINT for inner in child.get("routes") or [])
    ]


def with_ours(tree: Json) -> Json:
    """The tree with our route as it shall be, in the place where it was or else first; all else as it is."""
    made = copy.deepcopy(tree)
    places = ours_in(made)
    routes = [child for i, child in enumerate(made.get("routes") or []) if i not in places]
    routes.insert(places[0] if places else 0, copy.deepcopy(OURS))
    made["routes"] = routes
    return made


def without_ours(tree: Json) -> Json:
    made = copy.deepcopy(tree)
    places = ours_in(made)
    if places:
        made["routes"] = [child for i, child in enumerate(made["routes"]) if i not in places]
        if not made["routes"]:
            del made["routes"]
    return made


def shown(tree: Json) -> Json:
    """Our part of the tree, for comparing and showing; the order of matchers says nothing."""
    children = [(tree.get("routes") or [])[i] for i in ours_in(tree)]
    return {"routes": [_sorted(child) for child in children]}


def _sorted(route: Json) -> Json:
    made = {key: value for key, value in route.items() if key not in ("routes", "object_matchers")}
    made["object_matchers"] = [" ".join(matcher) for matcher in sorted(route.get("object_matchers") or [])]
    made["routes"] = [_sorted(child) for child in route.get("routes") or []]
    return made
