"""Fixtures: a Grafana to push to, content to push, and a way to run the command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from draftd.cli.grafana import content
from draftd.cli.grafana.content import read_content
from tests.grafana import Grafana
from tests.http_server import serving
from tests.unit.cli.conftest import Ran, in_process

SECRET = "webhook-secret-of-the-tests"
RULES = "alerting/rules.yaml"
_FILLED_IN = {"intervalMs": 1000, "maxDataPoints": 43200}  # Grafana has it in every query; the shipped dashboards too
TEMPO_QUERY = '{"datasource":"draftd-tempo","queries":[]}'


@dataclass
class Site:
    """A scripted Grafana, where it answers, and the folder that is pushed to it."""

    grafana: Grafana
    url: str
    folder: Path

    def change(self, path: str, change: Callable[[Any], None]) -> None:
        """Edits one of the files that are pushed."""
        file = self.folder / path
        content = yaml.safe_load(file.read_text())  # JSON is YAML
        change(content)
        file.write_text(json.dumps(content))

    @property
    def model(self) -> dict[str, Any]:
        """The overview as Grafana stores it."""
        model: dict[str, Any] = self.grafana.dashboards["draftd-overview"]["dashboard"]
        return model


Push = Callable[..., Ran]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    grafana = Grafana()
    grafana.add_datasource("prometheus", "prom-1", "Prometheus")
    grafana.add_datasource("tempo", "tempo-1", "Tempo")
    folder = tmp_path / "from"
    write_content(folder)
    with serving(grafana.answer) as url:
        yield Site(grafana, url, folder)


@pytest.fixture
def draftd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Push:
    """Returns a function that runs `draftd dashboards …` through the script's entry point. A variable that is None is
    unset."""

    def run(*arguments: str, **environ: str | None) -> Ran:
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name.startswith("GRAFANA_"):
                    patch.delenv(name)
            for name, value in environ.items():
                if value is not None:
                    patch.setenv(name, value)
            return in_process(["dashboards", *arguments], patch, capsys)

    return run


@pytest.fixture
def push(site: Site, draftd: Push, monkeypatch: pytest.MonkeyPatch) -> Push:
    """Returns a function that runs `draftd dashboards push` of the site's folder, in place of the shipped content, with
    all permissions. It clears the log of requests first."""
    monkeypatch.setattr(content, "read_content", partial(read_content, folder=site.folder))

    def run(*arguments: str, **environ: str | None) -> Ran:
        site.grafana.requests.clear()
        defaults = {"GRAFANA_URL": site.url, "GRAFANA_TOKEN": site.grafana.token, "DRAFTD_WEBHOOK_SECRET": SECRET}
        return draftd("push", *arguments, **(defaults | environ))

    return run


def write_content(folder: Path) -> None:
    (folder / "dashboards").mkdir(parents=True)
    (folder / "alerting").mkdir()
    for name in ("overview", "machine"):
        (folder / "dashboards" / f"{name}.json").write_text(json.dumps(dashboard(name)))
    (folder / RULES).write_text(yaml.safe_dump({"apiVersion": 1, "groups": [group()]}))


def dashboard(name: str) -> dict[str, Any]:
    return {
        "id": 7,
        "version": 3,
        "uid": f"draftd-{name}",
        "title": f"draftd {name}",
        "tags": ["draftd"],
        "schemaVersion": 42,
        "panels": [
            {
                "id": 1,
                "title": "Requests",
                "type": "timeseries",
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "fieldConfig": {"defaults": {"unit": "reqps"}},
                "targets": [{"refId": "A", "expr": "rate(x[5m])", "datasource": {"uid": "draftd-prometheus"}}],
                "links": [{"title": "Traces", "url": f"/explore?left={quote(TEMPO_QUERY)}&alt={TEMPO_QUERY}"}],
            },
            {"id": 2, "title": "Events", "type": "logs", "datasource": {"type": "loki", "uid": "draftd-loki"}},
        ],
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "current": {"value": "draftd-prometheus"}}]
        },
    }


def group() -> dict[str, Any]:
    return {
        "orgId": 1,
        "name": "draftd",
        "folder": "draftd",
        "interval": "1m",
        "rules": [rule("absent", "critical"), rule("slower", "warning", fallback_level="short_block")],
    }


def rule(name: str, severity: str, **labels: str) -> dict[str, Any]:
    return {
        "uid": f"draftd-{name}",
        "title": f"Draftd{name.title()}",
        "condition": "B",
        "data": [
            {
                "refId": "A",
                "relativeTimeRange": {"from": 600, "to": 0},
                "datasourceUid": "draftd-prometheus",
                "model": {"refId": "A", "expr": f"{name}_total > 1", "instant": True, **_FILLED_IN},
            },
            {
                "refId": "B",
                "datasourceUid": "__expr__",
                "relativeTimeRange": {"from": 600, "to": 0},
                "model": {"refId": "B", "type": "threshold", "expression": "A", **_FILLED_IN},
            },
        ],
        "noDataState": "OK",
        "execErrState": "KeepLast",
        "for": "5m",
        "keepFiringFor": "1m",
        "labels": {"severity": severity, **labels},
        "annotations": {"summary": "{{ $labels.instance }} is gone"},
    }
