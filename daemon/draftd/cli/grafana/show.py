"""A plan for people, and for machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from draftd.cli.grafana.plan import Action, Change, Plan

_DONE = {Action.CREATE: "created", Action.UPDATE: "updated", Action.REMOVE: "removed"}
_TELLING = re.compile(
    r"title|uid|folder|interval|settings\.url|panels\[(\"[^\"]*\"|\d+)\]\.title|rules\.[^.]+\.title|.*\.receiver"
)
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def change_line(change: Change) -> str:
    return f"{change.kind:<13}  {change.name:<32}  {_DONE[change.action]}"


def show_dry_run(out: Console, plan: Plan) -> None:
    """Every change with its difference, then one line."""
    for change in plan.changes:
        for line in _difference(change):
            out.print(line, style=_COLOURS.get(line[:1]), markup=False, soft_wrap=True)
        out.print()
    show_rest(out, plan)
    out.print(summary(plan, dry_run=True), markup=False, soft_wrap=True)


def show_rest(out: Console, plan: Plan) -> None:
    for kind, name in plan.obsolete:
        out.print(f"{kind:<13}  {name:<32}  no longer shipped; --prune removes it", markup=False, soft_wrap=True)
    for note in plan.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def summary(plan: Plan, *, dry_run: bool = False) -> str:
    same = f"{len(plan.unchanged)} as shipped"
    if not plan.changes:
        return f"nothing to do: {same}"
    counts = [
        f"{number} {'to be ' if dry_run else ''}{word}"
        for action, word in _DONE.items()
        if (number := sum(change.action is action for change in plan.changes))
    ]
    if plan.unchanged:
        counts.append(same)
    return ", ".join(counts) + ("; nothing was changed" if dry_run else "")


def as_dict(plan: Plan, *, url: str, version: str, dry_run: bool) -> dict[str, Any]:
    return {
        "grafana": {"url": url, "version": version},
        "dry_run": dry_run,
        "changes": [
            {"kind": str(c.kind), "action": str(c.action), "name": c.name, "diff": c.diff} for c in plan.changes
        ],
        "unchanged": _named(plan.unchanged),
        "obsolete": _named(plan.obsolete),
        "refused": list(plan.refusals),
        "notes": list(plan.notes),
    }


def _difference(change: Change) -> Iterator[str]:
    """What is new is not shown line by line: `export` writes it out, and a dashboard has a thousand lines."""
    if change.action is Action.UPDATE:
        yield from change.diff
        return
    sign, values = ("-", change.before) if change.action is Action.REMOVE else ("+", change.after)
    name = f"{change.kind} {change.name}"
    yield f"--- {'nothing there' if sign == '+' else name}"
    yield f"+++ {'no longer there' if sign == '-' else name}"
    titles = [value for value in values if _tells(value)]
    for value in titles:
        yield f"{sign}{value}"
    if rest := len(values) - len(titles):
        yield f"{sign}… {rest} more lines"


def _tells(line: str) -> bool:
    """Lines from which a person knows what it is: titles of it and of its parts, an address, a receiver."""
    return _TELLING.fullmatch(line.split(" = ", 1)[0]) is not None


def _named(things: tuple[Any, ...]) -> list[dict[str, str]]:
    return [{"kind": str(kind), "name": name} for kind, name in things]
