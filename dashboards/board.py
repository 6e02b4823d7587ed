"""A whole dashboard: rows of panels on the grid, and what all dashboards share (variables, links, marks)."""

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
    """Panels under a title, from left to right; full lines of the grid."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard before it is written. `key` names its file, and with the project its uid."""

    key: str
    title: str
    description: str
    rows: Sequence[Row]

    @property
    def uid(self) -> str:
        return f"draftd-{self.key}"


def written(board: Board) -> str:
    """The dashboard as Grafana provisions it."""
    made = _built(board)
    return json.dumps(made, cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


def traces(panel: Panel, query: str, title: str = "The traces of this time") -> Panel:
    """Gives a panel a link to Tempo, for the time it shows."""
    link = build.DashboardLink(title).type(model.DashboardLinkType.LINK).url(_explore(query)).target_blank(True)
    return panel.links([link])


def _explore(query: str) -> str:
    source = {"type": "tempo", "uid": TEMPO}
    asked = {"refId": "A", "datasource": source, "queryType": "traceql", "query": query, "limit": 50}
    pane = {"datasource": TEMPO, "queries": [asked], "range": {"from": "${__from}", "to": "${__to}"}}
    quoted = urllib.parse.quote(json.dumps({"draftd": pane}, separators=(",", ":")))
    # Grafana puts the times in: those two must stay as they are.
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
    """The SDK puts links and marks into a menu; they belong above the panels, where Grafana puts them by itself."""
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
        .all_value(".*")  # of series without the label as well: a request that was refused early has no model's
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _links() -> build.DashboardLink:
    """To all dashboards with the tag, taking time and variables along."""
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
        .enable(False)  # off until asked for: not every Grafana has Loki
        .icon_color(color)
        .target(loki.Dataquery().ref_id("A").datasource(logs).expr(expression).query_type("range"))
        .title_format(title)
        .text_format(text)
        for name, expression, color, title, text in told
    ]
    # Of the whole organisation: without a query by their tag no dashboard would show them. None where none are sent.
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
    """Grafana's own annotations by tag, in the shape of a query: the SDK has none for them."""


class _ByTag(Builder[Dataquery]):
    def build(self) -> Dataquery:
        return _Tagged(limit=100, match_any=False, tags=[TAG], type_val="tags")


def _words(*attributes: Attribute) -> str:
    return ": ".join(shown(label(attribute)) for attribute in attributes)
