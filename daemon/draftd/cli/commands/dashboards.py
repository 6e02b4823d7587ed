"""`draftd dashboards push`: the dashboards, alert rules and contact point that come with draftd."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from draftd.cli import options, output
from draftd.cli.grafana.client import Grafana, checked_url, find_access
from draftd.cli.grafana.content import choose_sources, read_content
from draftd.cli.grafana.push import Push, Webhook
from draftd.errors import ConfigError

DIFFERS = 3  # --dry-run --exit-code: there is something to do. 1 and 2 mean that it failed, or was asked wrongly
DEFAULT_WEBHOOK = "http://127.0.0.1:50552/v1/alerts"

_where = partial(typer.Option, rich_help_panel="Which Grafana")
_what = partial(typer.Option, rich_help_panel="What to send")
_how = partial(typer.Option, rich_help_panel="How")
_DONE = {"create": "created", "update": "updated", "remove": "removed"}
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def build_app() -> typer.Typer:
    text = "The dashboards and alert rules that come with draftd, and how to put them into a Grafana."
    return options.group(text, {"push": push})


@options.with_options(
    "draftd dashboards push --url https://grafana.example.org --dry-run",
    "draftd dashboards push --url http://127.0.0.1:3000 --prometheus my-prometheus --route",
)
def push(
    url: Annotated[str | None, _where("--url", envvar="GRAFANA_URL", help="Address of its start page.")] = None,
    token_file: Annotated[
        Path | None, _where("--token-file", metavar="FILE", help="Token, instead of GRAFANA_TOKEN.")
    ] = None,
    tls_ca: Annotated[Path | None, _where("--tls-ca", metavar="FILE", help="Authority (PEM) to trust.")] = None,
    insecure_http: Annotated[
        bool, _where("--insecure-http", help="Send credentials over plain http to another machine.")
    ] = False,
    timeout: Annotated[float, _where("--timeout", min=0.1, max=600, help="Seconds for each call.")] = 10.0,
    source: Annotated[
        Path | None, _what("--from", metavar="FOLDER", help="Another build than the one shipped.")
    ] = None,
    prometheus: Annotated[str | None, _what("--prometheus", metavar="UID", help="Data source.")] = None,
    tempo: Annotated[str | None, _what("--tempo", metavar="UID", help="Data source.")] = None,
    loki: Annotated[str | None, _what("--loki", metavar="UID", help="Data source.")] = None,
    webhook_url: Annotated[
        str, _what("--webhook-url", envvar="DRAFTD_WEBHOOK_URL", help="The daemon's webhook, as Grafana reaches it.")
    ] = DEFAULT_WEBHOOK,
    renew_secret: Annotated[
        bool,
        _what(
            "--renew-secret",
            help="Send DRAFTD_WEBHOOK_SECRET although nothing else changed: Grafana never shows it.",
        ),
    ] = False,
    route: Annotated[
        bool | None,
        _what(
            "--route/--no-route",
            help="Add our route to the notification policies, or take it out. Neither: leave them alone.",
        ),
    ] = None,
    prune: Annotated[bool, _how("--prune", help="Remove what is ours and no longer shipped.")] = False,
    dry_run: Annotated[bool, _how("--dry-run", help="Show the difference; change nothing.")] = False,
    exit_code: Annotated[bool, _how("--exit-code", help="With --dry-run: exit 3 if there is something to do.")] = False,
    json: options.Json = False,
) -> None:
    """Put dashboards, alert rules and the contact point into a Grafana, and nothing else: what others made stays.

    A second push finds nothing to do. The token is read from GRAFANA_TOKEN or --token-file, or else GRAFANA_USER and
    GRAFANA_PASSWORD; the webhook's secret from DRAFTD_WEBHOOK_SECRET.
    """
    if exit_code and not dry_run:
        raise ConfigError("exit_code", "--exit-code", "together with --dry-run")
    access = find_access(
        url, os.environ, token_file=token_file, insecure_http=insecure_http, timeout=timeout, tls_ca=tls_ca
    )
    secret = os.environ.get("DRAFTD_WEBHOOK_SECRET") or None
    webhook = Webhook(checked_url("webhook_url", webhook_url), secret, renew_secret)
    if renew_secret and secret is None:
        raise ConfigError("renew_secret", "--renew-secret", "with DRAFTD_WEBHOOK_SECRET set")
    content = read_content(source)  # what is wrong on this side is found before anything is asked
    grafana = Grafana(access, secret)
    version = grafana.version()
    found = grafana.get_list("list the data sources", "/datasources")
    sources, notes = choose_sources(found, {"prometheus": prometheus, "tempo": tempo, "loki": loki})
    plan = Push(grafana, content.reading(sources), webhook, route=route, prune=prune)
    plan.notes[:0] = notes
    if not plan.refusals and not dry_run:
        plan.carry_out(lambda one: None if json else _say(one.kind, one.name, _DONE[one.action]))
    if json:
        output.print_json(_document(plan, url=access.url, version=version, dry_run=dry_run))
    for refusal in plan.refusals:
        output.complain(refusal)
    if plan.refusals:
        output.complain("nothing was changed")
        raise typer.Exit(1)
    if not json:
        _show(plan, dry_run=dry_run)
    if exit_code and plan.changes:
        raise typer.Exit(DIFFERS)


def _say(kind: str, name: str, what: str) -> None:
    output.say(f"{kind:<13}  {name:<32}  {what}")


def _show(plan: Push, *, dry_run: bool) -> None:
    """The differences before a push, what is left after either, and one line. What is new or goes is not shown line by
    line: a dashboard has a thousand."""
    counts = dict.fromkeys(_DONE, 0)
    for change in plan.changes:
        counts[change.action] += 1
        if dry_run and change.action == "update":
            for line in change.diff:
                output.say(line, style=_COLOURS.get(line[:1]))
        elif dry_run:
            _say(change.kind, change.name, f"to be {_DONE[change.action]}")
    for kind, name in plan.obsolete:
        _say(kind, name, "no longer shipped; --prune removes it")
    for note in plan.notes:
        output.say(f"note: {note}")
    same = f"{len(plan.unchanged)} as shipped"
    if not plan.changes:
        output.say(f"nothing to do: {same}")
        return
    told = [f"{count} {'to be ' if dry_run else ''}{_DONE[action]}" for action, count in counts.items() if count]
    output.say(", ".join(told + [same] * bool(plan.unchanged)) + ("; nothing was changed" if dry_run else ""))


def _document(plan: Push, *, url: str, version: str, dry_run: bool) -> dict[str, Any]:
    return {
        "grafana": {"url": url, "version": version},
        "dry_run": dry_run,
        "changes": [
            {"kind": one.kind, "action": one.action, "name": one.name, "diff": one.diff} for one in plan.changes
        ],
        "unchanged": [{"kind": kind, "name": name} for kind, name in plan.unchanged],
        "obsolete": [{"kind": kind, "name": name} for kind, name in plan.obsolete],
        "refused": plan.refusals,
        "notes": plan.notes,
    }
