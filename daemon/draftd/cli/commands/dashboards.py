"""`draftd dashboards push`: the dashboards, alert rules and contact point that come with draftd."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftd import DOCS_URL
from draftd.cli import options, output

if TYPE_CHECKING:
    from draftd.cli.grafana.client import Grafana
    from draftd.cli.grafana.push import GrafanaChange, Push

DEFAULT_WEBHOOK = "http://127.0.0.1:50552/v1/alerts"

_where = partial(typer.Option, rich_help_panel="Which Grafana")
_what = partial(typer.Option, rich_help_panel="What to send")
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def _data_source(kind: str) -> Any:
    """Returns the option that names a data source."""
    return _what(f"--{kind}", metavar="UID", help=f"UID of the {kind.title()} data source. Unset: the only one.")


@dataclass(frozen=True)
class GrafanaOptions:
    """A Grafana, and how to reach it."""

    url: Annotated[str | None, _where("--url", envvar="GRAFANA_URL", help="Address of Grafana's start page.")] = None
    token_file: Annotated[
        Path | None,
        _where(
            "--token-file",
            metavar="FILE",
            help="File with a service account's token. Unset: the variable GRAFANA_TOKEN.",
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        _where(
            "--tls-ca",
            metavar="FILE",
            help="Certificate authority (PEM) of Grafana's certificate. Unset: public ones.",
        ),
    ] = None
    insecure_http: Annotated[
        bool,
        _where("--insecure-http", help="Allow sending the credentials unencrypted, over http, to another machine."),
    ] = False
    timeout: Annotated[
        float, _where("--timeout", min=0.1, max=600, help="Longest wait in seconds for each of Grafana's answers.")
    ] = 10.0

    def connect(self) -> Grafana:
        """Returns the client; nothing is sent yet. Raises FieldError."""
        from draftd.cli.grafana.client import Grafana

        return Grafana(
            self.url,
            os.environ,
            token_file=self.token_file,
            insecure_http=self.insecure_http,
            timeout=self.timeout,
            tls_ca=self.tls_ca,
        )


@options.with_options(
    "draftd dashboards push --url https://grafana.example.org --dry-run",
    "draftd dashboards push --url http://127.0.0.1:3000 --prometheus my-prometheus --route",
)
def push(
    target: GrafanaOptions,
    prometheus: Annotated[str | None, _data_source("prometheus")] = None,
    tempo: Annotated[str | None, _data_source("tempo")] = None,
    loki: Annotated[str | None, _data_source("loki")] = None,
    webhook_url: Annotated[
        str, _what("--webhook-url", envvar="DRAFTD_WEBHOOK_URL", help="The daemon's webhook, as Grafana reaches it.")
    ] = DEFAULT_WEBHOOK,
    docs_url: Annotated[
        str, _what("--docs-url", envvar="DRAFTD_DOCS_URL", help="Address of the documentation that alerts link to.")
    ] = DOCS_URL,
    renew_secret: Annotated[
        bool, _what("--renew-secret", help="Send DRAFTD_WEBHOOK_SECRET again. Needed after it has changed.")
    ] = False,
    route: Annotated[
        bool, _what("--route", help="Add a notification policy that sends alerts with a fallback level to the daemon.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
) -> None:
    """Put draftd's dashboards, alert rules and contact point into a Grafana. Objects that others made are not changed.

    If nothing has changed since the last push, nothing is sent. The credentials are GRAFANA_TOKEN, --token-file, or
    GRAFANA_USER and GRAFANA_PASSWORD; the webhook's secret is DRAFTD_WEBHOOK_SECRET.
    """
    # Imported here: they need the extra `grafana`.
    from draftd.cli.grafana.client import checked_url
    from draftd.cli.grafana.content import choose_sources, read_content
    from draftd.cli.grafana.push import Push, Webhook

    grafana = target.connect()
    secret = os.environ.get("DRAFTD_WEBHOOK_SECRET") or None
    webhook = Webhook(checked_url("webhook_url", webhook_url), secret, renew_secret)
    grafana.check()
    listed = grafana.get_list("list the data sources", "/datasources")
    sources, notes = choose_sources(listed, {"prometheus": prometheus, "tempo": tempo, "loki": loki})
    plan = Push(grafana, read_content(sources, docs_url=checked_url("docs_url", docs_url)), webhook, route=route)
    _end_if_refused(plan)
    if dry_run:
        _show_changes(plan)
    else:
        plan.carry_out(lambda change: _say(change, change.done))
    for note in notes + plan.notes:
        output.say(f"note: {note}")
    output.say(_summary(plan, dry_run=dry_run))


def _end_if_refused(plan: Push) -> None:
    for refusal in plan.refusals:
        output.complain(refusal)
    if plan.refusals:
        output.complain("nothing was changed")
        raise typer.Exit(1)


def _show_changes(plan: Push) -> None:
    for change in plan.changes:
        if change.before is None:  # in one line: a dashboard has a thousand
            _say(change, f"to be {change.done}")
            continue
        for line in change.diff:
            output.say(line, style=_COLOURS.get(line[:1]))


def _say(change: GrafanaChange, what: str) -> None:
    output.say(f"{change.kind:<13}  {change.name:<32}  {what}")


def _summary(plan: Push, *, dry_run: bool) -> str:
    same = f"{plan.unchanged} as shipped"
    if not plan.changes:
        return f"nothing to do: {same}"
    done = [change.done for change in plan.changes]
    parts = [
        f"{done.count(outcome)} {'to be ' * dry_run}{outcome}" for outcome in ("created", "updated") if outcome in done
    ]
    return ", ".join(parts + [same] * bool(plan.unchanged)) + "; nothing was changed" * dry_run


GROUP = {"push": push}
