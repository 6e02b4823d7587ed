"""`draftd dashboards push|list|export`: the dashboards, alert rules and contact point that come with draftd."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftd.cli import options, output
from draftd.errors import ConfigError

if TYPE_CHECKING:
    from draftd.cli.grafana.access import Access
    from draftd.cli.grafana.client import GrafanaClient
    from draftd.cli.grafana.plan import Plan
    from draftd.cli.grafana.wanted import Webhook

DIFFERS = 3  # --dry-run --exit-code: there is something to do. 1 and 2 mean that it failed, or was asked wrongly
DEFAULT_WEBHOOK = "http://127.0.0.1:50552/v1/alerts"

_WHERE = "Which Grafana"
_WHAT = "What to send"
_HOW = "How"

_From = Annotated[
    Path | None,
    typer.Option("--from", metavar="FOLDER", help="Another build than the one shipped.", rich_help_panel=_WHAT),
]
_Url = Annotated[
    str | None, typer.Option("--url", envvar="GRAFANA_URL", help="Address of its start page.", rich_help_panel=_WHERE)
]
_TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="Token, instead of GRAFANA_TOKEN.", rich_help_panel=_WHERE),
]
_TlsCa = Annotated[
    Path | None, typer.Option("--tls-ca", metavar="FILE", help="Authority (PEM) to trust.", rich_help_panel=_WHERE)
]
_InsecureHttp = Annotated[
    bool,
    typer.Option(
        "--insecure-http", help="Send credentials over plain http to another machine.", rich_help_panel=_WHERE
    ),
]
_Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=600, help="Seconds for each call.", rich_help_panel=_WHERE)
]
_WebhookUrl = Annotated[
    str,
    typer.Option(
        "--webhook-url",
        envvar="DRAFTD_WEBHOOK_URL",
        help="The daemon's webhook, as Grafana reaches it.",
        rich_help_panel=_WHAT,
    ),
]
_Route = Annotated[
    bool | None,
    typer.Option(
        "--route/--no-route",
        help="Add our route to the notification policies, or take it out. Neither: leave them alone.",
        rich_help_panel=_WHAT,
    ),
]


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


def push(
    url: _Url = None,
    token_file: _TokenFile = None,
    tls_ca: _TlsCa = None,
    insecure_http: _InsecureHttp = False,
    timeout: _Timeout = 10.0,
    source: _From = None,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="UID", help="Data source.", rich_help_panel=_WHAT)
    ] = None,
    tempo: Annotated[
        str | None, typer.Option("--tempo", metavar="UID", help="Data source.", rich_help_panel=_WHAT)
    ] = None,
    loki: Annotated[
        str | None, typer.Option("--loki", metavar="UID", help="Data source.", rich_help_panel=_WHAT)
    ] = None,
    webhook_url: _WebhookUrl = DEFAULT_WEBHOOK,
    renew_secret: Annotated[
        bool,
        typer.Option(
            "--renew-secret",
            help="Send DRAFTD_WEBHOOK_SECRET although nothing else changed: Grafana never shows it.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    route: _Route = None,
    editable: Annotated[
        bool,
        typer.Option("--editable", help="Create rules that may be edited in Grafana.", rich_help_panel=_HOW),
    ] = False,
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

    [bold]Examples[/]

    [dim]$[/] draftd dashboards push --url https://grafana.example.org --dry-run

    [dim]$[/] draftd dashboards push --url http://127.0.0.1:3000 --prometheus my-prometheus --route
    """
    from draftd.cli.grafana.access import checked_url, find_access
    from draftd.cli.grafana.applying import carry_out
    from draftd.cli.grafana.client import GrafanaClient
    from draftd.cli.grafana.show import as_dict, change_line, show_dry_run, show_rest, summary
    from draftd.cli.grafana.wanted import Webhook

    if exit_code and not dry_run:
        raise ConfigError("exit_code", "--exit-code", "together with --dry-run")
    access: Access = find_access(
        url, os.environ, token_file=token_file, insecure_http=insecure_http, timeout=timeout, tls_ca=tls_ca
    )
    webhook = Webhook(
        checked_url("webhook_url", webhook_url), os.environ.get("DRAFTD_WEBHOOK_SECRET") or None, renew_secret
    )
    if renew_secret and webhook.secret is None:
        raise ConfigError("renew_secret", "--renew-secret", "with DRAFTD_WEBHOOK_SECRET set")
    client = GrafanaClient(access, [webhook.secret] if webhook.secret else [])
    version, plan = _plan(
        client,
        source,
        {"prometheus": prometheus, "tempo": tempo, "loki": loki},
        webhook,
        route=route,
        prune=prune,
        editable=editable,
    )
    out = output.stdout()
    if plan.refusals:
        if json:
            print(jsonlib.dumps(as_dict(plan, url=access.url, version=version, dry_run=dry_run)))
        for refusal in plan.refusals:
            output.complain(refusal)
        output.complain("nothing was changed")
        raise typer.Exit(1)
    if not dry_run:
        carry_out(client, plan.changes, lambda change: None if json else out.print(change_line(change), markup=False))
    if json:
        print(jsonlib.dumps(as_dict(plan, url=access.url, version=version, dry_run=dry_run)))
    elif dry_run:
        show_dry_run(out, plan)
    else:
        show_rest(out, plan)
        out.print(summary(plan), markup=False, soft_wrap=True)
    if exit_code and plan.changes:
        raise typer.Exit(DIFFERS)


def _plan(
    client: GrafanaClient,
    source: Path | None,
    asked: dict[str, str | None],
    webhook: Webhook,
    *,
    route: bool | None,
    prune: bool,
    editable: bool,
) -> tuple[str, Plan]:
    """The Grafana's version, and what there is to do there. What is wrong on this side is found before it is asked."""
    import dataclasses

    from draftd.cli.grafana.content import read_content
    from draftd.cli.grafana.datasources import choose
    from draftd.cli.grafana.plan import make_plan
    from draftd.cli.grafana.reading import look
    from draftd.cli.grafana.wanted import build

    content = read_content(source)
    version = client.version()
    choice = choose(client.data_sources(), asked)
    wanted = build(content, choice, webhook, route=route, prune=prune, editable=editable)
    plan = make_plan(wanted, look(client, wanted))
    return version, dataclasses.replace(plan, notes=(*choice.notes, *plan.notes))


def list_(source: _From = None, json: options.Json = False) -> None:
    """List the dashboards and alert rules that `push` sends.

    [bold]Example[/]

    [dim]$[/] draftd dashboards list
    """
    from draftd.cli.grafana.content import read_content

    content = read_content(source)
    rows = [("dashboard", str(model["uid"]), str(model["title"])) for model in content.dashboards]
    rows += [("rule", str(rule["uid"]), f"{rule['title']} ({g.name})") for g in content.groups for rule in g.rules]
    if json:
        print(jsonlib.dumps([{"kind": kind, "uid": uid, "title": title} for kind, uid, title in rows]))
        return
    for kind, uid, title in rows:
        output.stdout().print(f"{kind:<9}  {uid:<40}  {title}", markup=False, soft_wrap=True)


def export(
    folder: Annotated[Path, typer.Argument(help="Made if need be; files of the same name are written over.")],
    source: _From = None,
) -> None:
    """Write the dashboards and alert rules out, as Grafana's provisioning takes them and as `push --from` does.

    [bold]Example[/]

    [dim]$[/] draftd dashboards export ./my-dashboards
    """
    from draftd.cli.grafana.content import read_content

    for path, text in read_content(source).files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(target)
