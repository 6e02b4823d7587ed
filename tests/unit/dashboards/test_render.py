"""The renderer asks and formats values as Grafana does, and draws what it is given."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image

from dashboards.board import written as dashboard_json
from dashboards.boards import boards
from dashboards.render import theme
from dashboards.render.asking import Series, Shown, Source
from dashboards.render.page import save
from dashboards.render.reading import Dashboard, parsed
from dashboards.render.units import written
from dashboards.settings import Alerting


@dataclass(frozen=True)
class Canned(Source):
    """A Prometheus with one answer to every query."""

    url: str = "http://nowhere"
    labels: Mapping[str, str] = field(default_factory=lambda: {"le": "0.5", "instance": "a", "draftd_mode": "x"})
    values: tuple[float, ...] = (1.0, 1.0, 0.0, 1.0)

    def at(self, expression: str, when: float) -> list[Series]:
        assert "$" not in expression
        return [Series(self.labels, ((when, self.values[-1]),))] if self.values else []

    def over(self, expression: str, shown: Shown) -> list[Series]:
        assert "$" not in expression
        points = tuple((shown.start + number * shown.step, value) for number, value in enumerate(self.values))
        return [Series(self.labels, points)] if points else []


@pytest.mark.parametrize(
    ("shown", "step", "rate"),
    [
        (Shown(0, 1800), "15s", "60s"),  # the scrapes decide
        (Shown(0, 86400, points=400), "300s", "315s"),  # the width of the screen decides
        (Shown(0, 60, scrape=0.5), "500ms", "2s"),
    ],
)
def test_dashboard_renderer_substitutes_step_and_rate_intervals_of_grafana(shown: Shown, step: str, rate: str) -> None:
    assert shown.put_in("$__interval $__rate_interval", {}) == f"{step} {rate}"
    assert float(shown.put_in("$__rate_interval_ms", {})) == shown.rate * 1000


def test_dashboard_renderer_substitutes_variables_and_refuses_unknown_variable() -> None:
    shown = Shown(100, 1900)
    assert shown.put_in('x{a=~"$model"}[$__range] / ${model}', {"model": ".*"}) == 'x{a=~".*"}[1800s] / .*'
    with pytest.raises(KeyError):
        shown.put_in("$nobody", {})


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.6234, "percentunit", 0, "62%"),
        (0.5, "percentunit", None, "50%"),
        (1.4361, "suffix:×", 2, "1.44×"),
        (0.1894, "s", None, "189 ms"),
        (0.00002, "s", None, "20 µs"),
        (90.0, "s", None, "1.5 min"),
        (0.0, "bytes", None, "0 B"),
        (-3.5 * 2**30, "bytes", 1, "-3.5 GiB"),
        (2048.0, "Bps", None, "2 KiB/s"),
        (1234.0, "short", None, "1.23 K"),
        (41.5, "celsius", None, "41.5 °C"),
        (float("nan"), "short", None, "NaN"),
    ],
)
def test_dashboard_renderer_formats_values_with_grafana_units(
    value: float, unit: str, decimals: int | None, text: str
) -> None:
    assert written(value, unit, decimals) == text


def test_dashboard_renderer_colours_value_by_highest_threshold_reached() -> None:
    steps = [{"value": None, "color": "red"}, {"value": 1, "color": "green"}]
    assert [theme.of_value(value, steps) for value in (0.99, 1.0)] == [theme.color("red"), theme.color("green")]


@pytest.fixture(scope="module")
def dashboards() -> list[Dashboard]:
    return [parsed(dashboard_json(board)) for board in boards(Alerting())]


def kinds_of_panels(dashboard: Dashboard) -> int:
    return len({panel.kind for panel in dashboard.panels})


@pytest.mark.slow
def test_dashboard_renderer_draws_every_dashboard_with_and_without_data_at_same_size(
    dashboards: list[Dashboard], tmp_path: Path
) -> None:
    shown, drawn_empty = Shown(1_700_000_000, 1_700_000_060), set[str]()
    for dashboard in sorted(dashboards, key=kinds_of_panels, reverse=True):
        full = save(dashboard, Canned(), shown, tmp_path / "full.png").read_bytes()
        kinds = {panel.kind for panel in dashboard.panels}
        if kinds <= drawn_empty:
            continue
        drawn_empty |= kinds
        empty = save(dashboard, Canned(values=()), shown, tmp_path / "empty.png").read_bytes()
        sizes = [Image.open(io.BytesIO(picture)).size for picture in (full, empty)]
        assert sizes[0] == sizes[1]
        assert full != empty


def test_dashboard_renderer_refuses_unknown_panel_type(dashboards: list[Dashboard], tmp_path: Path) -> None:
    text = json.loads(dashboard_json(boards(Alerting())[0]))
    text["panels"][1]["type"] = "piechart"
    with pytest.raises(NotImplementedError, match="piechart"):
        save(parsed(json.dumps(text)), Canned(), Shown(0, 60), tmp_path / "x.png")
