"""`draftd dashboards push|list|export`: the dashboards, alert rules and contact point that come with draftd."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from draftd.cli import options, output
from draftd.cli.grafana.client import Grafana, checked_url, find_access
from draftd.cli.grafana.compared import Webhook
from draftd.cli.grafana.content import choose_sources, read_content
from draftd.cli.grafana.push import Action, Change, Push
from draftd.errors import ConfigError

DIFFERS = 3  # --dry-run --exit-code: there is something to do. 1 and 2 mean that it failed, or was asked wrongly
DEFAULT_WEBHOOK = "http://127.0.0.1:50552/v1/alerts"

_WHERE = "Which Grafana"
_WHAT = "What to send"
_HOW = "How"
_DONE = {Action.CREATE: "created", Action.UPDATE: "updated", Action.REMOVE: "removed"}
#: Lines from which a person knows what a new thing is: titles of it and of its parts, an address, a receiver.
_TELLING = re.compile(
    r"title|uid|folder|interval|settings\.url|panels\[(\"[^\"]*\"|\d+)\]\.title|rules\.[^.]+\.title|.*\.receiver"
)
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

_From = Annotated[
    Path | None,
    typer.Option("--from", metavar="FOLDER", help="Another build than the one shipped.", rich_help_panel=_WHAT),
]


def _source(name: str) -> Any:
    return typer.Option(name, metavar="UID", help="Data source.", rich_help_panel=_WHAT)


def build_app() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="The dashboards and alert rules that come with draftd, and how to put them into a Grafana.",
    )
    app.command("push")(push)
    app.command("list")(list_)
    app.command("export")(export)
    return app


@options.with_options(
    "draftd dashboards push --url https://grafana.example.org --dry-run",
    "draftd dashboards push --url http://127.0.0.1:3000 --prometheus my-prometheus --route",
)
def push(
    url: Annotated[
        str | None,
        typer.Option("--url", envvar="GRAFANA_URL", help="Address of its start page.", rich_help_panel=_WHERE),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Token, instead of GRAFANA_TOKEN.", rich_help_panel=_WHERE),
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="Authority (PEM) to trust.", rich_help_panel=_WHERE)
    ] = None,
    insecure_http: Annotated[
        bool,
        typer.Option(
            "--insecure-http", help="Send credentials over plain http to another machine.", rich_help_panel=_WHERE
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=600, help="Seconds for each call.", rich_help_panel=_WHERE)
    ] = 10.0,
    source: _From = None,
    prometheus: Annotated[str | None, _source("--prometheus")] = None,
    tempo: Annotated[str | None, _source("--tempo")] = None,
    loki: Annotated[str | None, _source("--loki")] = None,
    webhook_url: Annotated[
        str,
        typer.Option(
            "--webhook-url",
            envvar="DRAFTD_WEBHOOK_URL",
            help="The daemon's webhook, as Grafana reaches it.",
            rich_help_panel=_WHAT,
        ),
    ] = DEFAULT_WEBHOOK,
    renew_secret: Annotated[
        bool,
        typer.Option(
            "--renew-secret",
            help="Send DRAFTD_WEBHOOK_SECRET although nothing else changed: Grafana never shows it.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    route: Annotated[
        bool | None,
        typer.Option(
            "--route/--no-route",
            help="Add our route to the notification policies, or take it out. Neither: leave them alone.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what is ours and no longer shipped.", rich_help_panel=_HOW)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the difference; change nothing.", rich_help_panel=_HOW)
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="With --dry-run: exit 3 if there is something to do.", rich_help_panel=_HOW),
    ] = False,
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
    grafana = Grafana(access, [secret] if secret else [])
    version = grafana.version()
    found = grafana.get_list("list the data sources", "datasources:read", "/datasources")
    sources, notes = choose_sources(found, {"prometheus": prometheus, "tempo": tempo, "loki": loki})
    plan = Push(grafana, content.reading(sources), webhook, route=route, prune=prune)
    plan.notes[:0] = notes
    if not plan.refusals and not dry_run:
        plan.carry_out(lambda change: None if json else output.say(_done(change)))
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


@options.with_options("draftd dashboards list")
def list_(source: _From = None, json: options.Json = False) -> None:
    """List the dashboards and alert rules that `push` sends."""
    content = read_content(source)
    rows = [("dashboard", uid, str(model["title"])) for uid, model in content.dashboards.items()]
    rows += [("rule", str(rule["uid"]), f"{rule['title']} ({g.name})") for g in content.groups for rule in g.rules]
    if json:
        output.print_json([{"kind": kind, "uid": uid, "title": title} for kind, uid, title in rows])
        return
    for kind, uid, title in rows:
        output.say(f"{kind:<9}  {uid:<40}  {title}")


@options.with_options("draftd dashboards export ./my-dashboards")
def export(
    folder: Annotated[Path, typer.Argument(help="Made if need be; files of the same name are written over.")],
    source: _From = None,
) -> None:
    """Write the dashboards and alert rules out, as Grafana's provisioning takes them and as `push --from` does."""
    for path, text in read_content(source).files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(target)


def _done(change: Change) -> str:
    return f"{change.kind:<13}  {change.name:<32}  {_DONE[change.action]}"


def _show(plan: Push, *, dry_run: bool) -> None:
    """The differences before a push, what is left after either, and one line."""
    for change in plan.changes if dry_run else ():
        for line in _difference(change):
            output.say(line, style=_COLOURS.get(line[:1]))
        output.say("")
    for kind, name in plan.obsolete:
        output.say(f"{kind:<13}  {name:<32}  no longer shipped; --prune removes it")
    for note in plan.notes:
        output.say(f"note: {note}")
    same = f"{len(plan.unchanged)} as shipped"
    counts = [
        f"{number} {'to be ' if dry_run else ''}{word}"
        for action, word in _DONE.items()
        if (number := sum(change.action is action for change in plan.changes))
    ]
    if not counts:
        output.say(f"nothing to do: {same}")
        return
    output.say(", ".join([*counts, *([same] * bool(plan.unchanged))]) + ("; nothing was changed" if dry_run else ""))


def _difference(change: Change) -> Iterator[str]:
    """What is new is not shown line by line: `export` writes it out, and a dashboard has a thousand lines."""
    if change.action is Action.UPDATE:
        yield from change.diff
        return
    sign, values = ("-", change.before) if change.action is Action.REMOVE else ("+", change.after)
    name = f"{change.kind} {change.name}"
    yield f"--- {'nothing there' if sign == '+' else name}"
    yield f"+++ {'no longer there' if sign == '-' else name}"
    titles = [value for value in values if _TELLING.fullmatch(value.split(" = ", 1)[0])]
    for value in titles:
        yield f"{sign}{value}"
    if rest := len(values) - len(titles):
        yield f"{sign}… {rest} more lines"


def _document(plan: Push, *, url: str, version: str, dry_run: bool) -> dict[str, Any]:
    return {
        "grafana": {"url": url, "version": version},
        "dry_run": dry_run,
        "changes": [
            {"kind": one.kind, "action": str(one.action), "name": one.name, "diff": one.diff} for one in plan.changes
        ],
        "unchanged": [{"kind": kind, "name": name} for kind, name in plan.unchanged],
        "obsolete": [{"kind": kind, "name": name} for kind, name in plan.obsolete],
        "refused": plan.refusals,
        "notes": plan.notes,
    }
