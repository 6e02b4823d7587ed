"""Reads a generated dashboard: its panels, their queries, its variables and annotations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.render.asking import Series, Shown, Source

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel."""

    ref: str
    expression: str
    legend: str
    instant: bool
    exemplar: bool

    @property
    def legend_labels(self) -> list[str]:
        return _PLACEHOLDER.findall(self.legend)

    def named(self, labels: Mapping[str, str]) -> str:
        """Returns the series' name in the legend."""
        return _PLACEHOLDER.sub(lambda found: labels.get(found[1], ""), self.legend).strip(" ·")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, or the title of a row of panels."""

    title: str
    kind: str
    x: int
    y: int
    width: int
    height: int
    targets: Sequence[Target]
    defaults: Mapping[str, Any]
    overrides: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]

    @property
    def custom(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.defaults.get("custom", {})
        return found

    def overridden(self, name: str, ref: str) -> dict[str, Any]:
        """Returns the properties that overrides give to a series, selected by its legend or by its query."""
        found: dict[str, Any] = {}
        for override in self.overrides:
            kind, wanted = override["matcher"]["id"], override["matcher"]["options"]
            matches = re.search(wanted.strip("/"), name) if kind == "byRegexp" else wanted == ref
            if matches:
                found |= {one["id"]: one["value"] for one in override["properties"]}
        return found


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation query."""

    name: str
    color: str
    title: str
    expression: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    panels: Sequence[Panel]
    variables: Mapping[str, str]  # their values when the dashboard is opened
    variable_queries: Mapping[str, str]
    marks: Sequence[Mark]

    def ask(self, target: Target, source: Source, shown: Shown) -> list[Series]:
        """Returns the results of the target's query."""
        expression = shown.put_in(target.expression, self.variables)
        return source.at(expression, shown.end) if target.instant else source.over(expression, shown)


def read(path: Path) -> Dashboard:
    return parsed(path.read_text(encoding="utf-8"))


def parsed(text: str) -> Dashboard:
    raw = json.loads(text)
    queried = [one for one in raw["templating"]["list"] if one["type"] == "query"]
    return Dashboard(
        uid=raw["uid"],
        title=raw["title"],
        panels=tuple(_panels(raw["panels"])),
        variables={one["name"]: one["allValue"] for one in queried},
        variable_queries={one["name"]: one["query"]["query"] for one in queried},
        marks=tuple(
            Mark(one["name"], one["iconColor"], one.get("titleFormat", ""), one["target"]["expr"])
            for one in raw["annotations"]["list"]
            if one["datasource"]["type"] == "prometheus"
        ),
    )


def _panels(raw: Sequence[Mapping[str, Any]]) -> Iterator[Panel]:
    for one in raw:
        where, fields = one["gridPos"], one.get("fieldConfig", {})
        yield Panel(
            title=one["title"],
            kind=one["type"],
            x=where["x"],
            y=where["y"],
            width=where["w"],
            height=where["h"],
            targets=tuple(
                Target(
                    target["refId"],
                    target["expr"],
                    target["legendFormat"],
                    bool(target.get("instant")),
                    bool(target.get("exemplar")),
                )
                for target in one.get("targets", ())
            ),
            defaults=fields.get("defaults", {}),
            overrides=fields.get("overrides", ()),
            options=one.get("options", {}),
        )
