"""A whole dashboard: rows of panels on the grid, and the variables, links and annotations that all dashboards share."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import loki, prometheus
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard as model

from dashboards.panels import DATASOURCE, Panel
from dashboards.queries import events
from dashboards.queries.query import shown
from dashboards.ratios import label
from draftd.telemetry import attributes as a
from draftd.telemetry.attributes import Attribute

TAG = "draftd"
PROMETHEUS, TEMPO, LOKI = "draftd-prometheus", "draftd-tempo", "draftd-loki"  # uids of the provisioned data sources


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels from left to right, which fill whole lines of the grid."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard before it is written. Its file is named after `key`, its uid is `draftd-` and `key`."""

    key: str
    title: str
    description: str
    rows: Sequence[Row]

    @property
    def uid(self) -> str:
        return f"draftd-{self.key}"


def written(board: Board) -> str:
    """Returns the dashboard as the JSON that Grafana provisions."""
    made = _built(board)
    return json.dumps(made, cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


def traces(panel: Panel, query: str, title: str = "The traces of this time") -> Panel:
    """Adds a link to Tempo to the panel, for the query's traces in the time that the panel shows."""
    link = build.DashboardLink(title).type(model.DashboardLinkType.LINK).url(_explore(query)).target_blank(True)
    return panel.links([link])


def _explore(query: str) -> str:
    source = {"type": "tempo", "uid": TEMPO}
    asked = {"refId": "A", "datasource": source, "queryType": "traceql", "query": query, "limit": 50}
    pane = {"datasource": TEMPO, "queries": [asked], "range": {"from": "${__from}", "to": "${__to}"}}
    quoted = urllib.parse.quote(json.dumps({"draftd": pane}, separators=(",", ":")))
    # Grafana fills in the times: their two placeholders must stay unquoted.
    readable = re.sub(r"%24%7B(__\w+)%7D", r"${\1}", quoted)
    return f"/explore?schemaVersion=1&panes={readable}"


def _built(board: Board) -> model.Dashboard:
    builder = (
        build.Dashboard(f"draftd / {board.title}")
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .editable()
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .refresh("30s")
        .timepicker(build.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m", "15m"]))
        .variables([_datasource(), *(_variable(name) for name in events.VARIABLES)])
        .annotations(_annotations())
        .link(_links())
    )
    for row in board.rows:
        builder = builder.with_row(build.Row(row.title))
        for panel in row.panels:
            builder = builder.with_panel(panel)
    made = builder.build()
    _in_sight(made)
    return made


def _in_sight(made: model.Dashboard) -> None:
    """Places links and annotations above the panels, where Grafana puts them by default; the SDK puts them into a
    menu."""
    for link in made.links or ():
        link.placement = None  # type: ignore[assignment]
    for mark in (made.annotations.list_val if made.annotations else None) or ():
        mark.placement = None  # type: ignore[assignment]
    for panel in made.panels or ():
        for link in (panel.links if isinstance(panel, model.Panel) else None) or ():
            link.placement = None  # type: ignore[assignment]


def _datasource() -> build.DatasourceVariable:
    chosen = model.VariableOption(selected=True, text=PROMETHEUS, value=PROMETHEUS)
    return build.DatasourceVariable("datasource").label("Data source").type("prometheus").current(chosen)


def _variable(name: str) -> build.QueryVariable:
    label, query = events.VARIABLES[name]
    return (
        build.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": f"variable-{name}", "qryType": 1})
        .definition(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")  # also matches series without the label: a request that was refused early has no model
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _links() -> build.DashboardLink:
    """Links to all dashboards with the tag, and keeps time range and variables."""
    return (
        build.DashboardLink("draftd")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )


def _annotations() -> list[Builder[model.AnnotationQuery]]:
    changes = (
        ("Fallback level", events.LEVEL_CHANGES, "orange", "Fallback level: {{to}}"),
        ("Feature flag", events.FLAG_CHANGES, "blue", "Speculation: {{to}}"),
    )
    marks: list[Builder[model.AnnotationQuery]] = [
        build.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(color)
        .target(prometheus.Dataquery().ref_id("A").datasource(DATASOURCE).expr(expression).range())
        .title_format(title)
        .text_format("{{instance}}")
        .tag_keys("instance,to")
        for name, expression, color, title in changes
    ]
    logs = shape.DataSourceRef(type_val="loki", uid=LOKI)
    told = (
        ("Changes and why", events.TRANSITIONS, "purple", _words(a.TRANSITION_SUBJECT, a.TRANSITION_TO),
         _words(a.TRANSITION_CAUSE)),
        ("Flag evaluation failed", events.FLAG_FAILURES, "red", _words(a.FLAG_KEY), _words(a.ERROR_TYPE)),
    )  # fmt: skip
    marks += [
        build.AnnotationQuery()
        .name(name)
        .datasource(logs)
        .enable(False)  # off by default: not every Grafana has Loki
        .icon_color(color)
        .target(loki.Dataquery().ref_id("A").datasource(logs).expr(expression).query_type("range"))
        .title_format(title)
        .text_format(text)
        for name, expression, color, title, text in told
    ]
    # These annotations belong to the whole organisation: only a query by their tag shows them in a dashboard.
    marks.append(
        build.AnnotationQuery()
        .name("Marked by the daemon")
        .datasource(shape.DataSourceRef(type_val="grafana", uid="-- Grafana --"))
        .enable(True)
        .icon_color("purple")
        .target(_ByTag())
    )
    return marks


class _Tagged(model.AnnotationTarget, Dataquery):
    """Grafana's own annotations by tag, as a query; the SDK has no type for it."""


class _ByTag(Builder[Dataquery]):
    def build(self) -> Dataquery:
        return _Tagged(limit=100, match_any=False, tags=[TAG], type_val="tags")


def _words(*attributes: Attribute) -> str:
    return ": ".join(shown(label(attribute)) for attribute in attributes)
