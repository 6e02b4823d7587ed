"""What has to be done so that a Grafana has what it shall have, and what stands in the way. Pure: no HTTP, no printing.

One thing in the way stops all: `refusals` are shown and nothing is changed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from draftd.cli.grafana import normal, policy
from draftd.cli.grafana.found import Found
from draftd.cli.grafana.lines import diff, lines
from draftd.cli.grafana.names import CONTACT_POINT, FOLDER_TITLE, FOLDER_UID, Json, our_dashboard, our_rule
from draftd.cli.grafana.obstacles import obstacles
from draftd.cli.grafana.wanted import Wanted, contact_point


class Kind(enum.StrEnum):
    FOLDER = "folder"
    DASHBOARD = "dashboard"
    CONTACT_POINT = "contact point"
    RULES = "rule group"
    RULE = "rule"
    ROUTE = "policy route"


class Action(enum.StrEnum):
    CREATE = "create"
    UPDATE = "update"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `body` is what is sent, `seen` what it was planned from, `locked`: not to be edited in Grafana."""

    kind: Kind
    action: Action
    name: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    body: Json = field(default_factory=dict, repr=False)
    seen: Json = field(default_factory=dict, repr=False)
    locked: bool = True

    @property
    def diff(self) -> list[str]:
        return diff(self.before, self.after, f"{self.kind}/{self.name}".replace(" ", "-"))


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes in the order in which they can be made."""

    changes: tuple[Change, ...]
    unchanged: tuple[tuple[Kind, str], ...]
    obsolete: tuple[tuple[Kind, str], ...]  # ours and no longer shipped, but not asked to go
    refusals: tuple[str, ...]
    notes: tuple[str, ...]


def make_plan(wanted: Wanted, found: Found) -> Plan:
    planned = [
        *_folder(wanted, found),
        *_dashboards(wanted, found),
        *_contact_point(wanted, found),
        *_rule_groups(wanted, found),
        *_route(wanted, found),
    ]
    gone = list(_obsolete(wanted, found))
    changes = [change for change in planned if change.before != change.after]
    changed = {(change.kind, change.name) for change in changes}
    return Plan(
        changes=(*changes, *(gone if wanted.prune else ())),
        unchanged=tuple((c.kind, c.name) for c in planned if (c.kind, c.name) not in changed),
        obsolete=() if wanted.prune else tuple((change.kind, change.name) for change in gone),
        refusals=tuple(obstacles(wanted, found, {c.name for c in changes if c.kind is Kind.RULES})),
        notes=tuple(_notes(wanted, found)),
    )


def _change(kind: Kind, name: str, before: Json | None, after: Json | None, body: Json, **more: object) -> Change:
    action = Action.CREATE if before is None else Action.REMOVE if after is None else Action.UPDATE
    old = () if before is None else tuple(lines(before))
    new = () if after is None else tuple(lines(after))
    return Change(kind, action, name, old, new, body, **more)  # type: ignore[arg-type]


def _folder(wanted: Wanted, found: Found) -> Iterator[Change]:
    """Only ever created: what it is called and where it lies is then its owner's business."""
    if not wanted.dashboards and not wanted.groups:
        return
    made = {"uid": FOLDER_UID, "title": FOLDER_TITLE}
    yield _change(Kind.FOLDER, FOLDER_UID, None if found.folder is None else made, made, made)


def _dashboards(wanted: Wanted, found: Found) -> Iterator[Change]:
    for uid, model in wanted.dashboards.items():
        there = found.dashboards.get(uid)
        before = None if there is None else normal.dashboard(there.model, there.folder_uid)
        body = {**model, "version": 0 if there is None else there.version}
        yield _change(Kind.DASHBOARD, uid, before, normal.dashboard(model), body)


def _contact_point(wanted: Wanted, found: Found) -> Iterator[Change]:
    if wanted.webhook.secret is None:
        return
    there = _contact_point_of(found)
    body = contact_point(wanted.webhook)
    before, after = None if there is None else normal.contact_point(there), normal.contact_point(body)
    if before is not None and wanted.webhook.renew:
        before["secret"], after["secret"] = "as it is", "sent anew"
    editable = wanted.editable if there is None else not there.get("provenance")
    yield _change(Kind.CONTACT_POINT, CONTACT_POINT, before, after, body, locked=not editable)


def _rule_groups(wanted: Wanted, found: Found) -> Iterator[Change]:
    """A group is written whole: what is ours in it and not to be pruned stays in the body, as it was found.

    Grafana keeps whether a rule may be edited when nothing else of it changes, so that is only decided for a new group.
    """
    for group in wanted.groups:
        shipped = {str(rule["uid"]) for rule in group.rules}
        members = found.group(group.name)
        kept = [rule for rule in members if our_rule(rule) and rule["uid"] not in shipped and not wanted.prune]
        theirs = [rule for rule in found.rules if rule.get("uid") in shipped]
        before = None
        if theirs or kept:
            before = normal.group(group.name, found.intervals.get(group.name, 0), [*theirs, *kept])
        after = normal.group(group.name, group.interval, [*group.rules, *kept])
        rules = [{**rule, "folderUID": FOLDER_UID, "ruleGroup": group.name} for rule in [*group.rules, *kept]]
        body = {"title": group.name, "folderUid": FOLDER_UID, "interval": group.interval, "rules": rules}
        ours = [rule for rule in members if our_rule(rule)]
        editable = all(not rule.get("provenance") for rule in ours) if ours else wanted.editable
        seen = normal.group(group.name, found.intervals.get(group.name, 0), members)
        yield _change(Kind.RULES, group.name, before, after, body, seen=seen, locked=not editable)


def _route(wanted: Wanted, found: Found) -> Iterator[Change]:
    if wanted.route is None or found.policies is None:
        return
    tree = found.policies
    there = bool(policy.ours_in(tree))
    before = policy.shown(tree) if there else None
    locked = bool(tree.get("provenance"))  # as it was: the whole tree changes its lock with any write
    if wanted.route:
        made = policy.with_ours(tree)
        yield _change(Kind.ROUTE, CONTACT_POINT, before, policy.shown(made), made, seen=tree, locked=locked)
    elif there:
        made = policy.without_ours(tree)
        yield _change(Kind.ROUTE, CONTACT_POINT, before, None, made, seen=tree, locked=locked)


def _obsolete(wanted: Wanted, found: Found) -> Iterator[Change]:
    for uid, dashboard in found.dashboards.items():
        if uid not in wanted.dashboards and our_dashboard(dashboard.model) and not dashboard.provisioned:
            before = normal.dashboard(dashboard.model, dashboard.folder_uid)
            yield _change(Kind.DASHBOARD, uid, before, None, {})
    shipped = {rule["uid"] for group in wanted.groups for rule in group.rules}
    for rule in found.rules:
        if our_rule(rule) and rule["uid"] not in shipped and rule.get("provenance") in (None, "", "api"):
            before = normal.group(str(rule.get("ruleGroup")), 0, [rule])
            yield _change(Kind.RULE, str(rule["uid"]), before, None, {}, locked=bool(rule.get("provenance")))


def _notes(wanted: Wanted, found: Found) -> Iterator[str]:
    if wanted.webhook.secret is None:
        there = _contact_point_of(found)
        yield (
            f"the contact point is left {'as it is' if there else 'out'}: DRAFTD_WEBHOOK_SECRET is not set, and alerts "
            "go to the daemon signed or not at all"
        )


def _contact_point_of(found: Found) -> Json | None:
    return next((point for point in found.contact_points if point.get("uid") == CONTACT_POINT), None)
