"""Every query of every dashboard, on a Prometheus whose store has gaps, stops and both ways of export (store.py)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from dashboards.alerts import alert_rules
from dashboards.board import written
from dashboards.boards import boards
from dashboards.queries.speculation import DEEPEST
from dashboards.render.asking import Series, Shown, Source
from dashboards.render.reading import Dashboard, Panel, Target, parsed
from dashboards.settings import Alerting
from draftd.telemetry import catalog
from draftd.telemetry import catalog_sdk as sdk
from tests.stack import store
from tests.stack.components import prometheus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_MOST = 1.0 + 1e-6  # what a share may be: Prometheus extrapolates both sides of a ratio alike
# Shares that may be above one: break-even, where no acceptance pays, and acceptance over its baseline.
_UNBOUNDED = {
    "Acceptance and break-even",
    "Acceptance, three ways",
    "Acceptance against break-even",
    "Drift",
}
NOTHING_ASKED = {"draftd-fallback/Signals that ask for a level/"}  # every signal has ended: no level is asked for


@dataclass(frozen=True)
class Asked:
    """A query of a panel, and its answer over one time shown."""

    dashboard: Dashboard
    panel: Panel
    target: Target
    shown: Shown
    found: Sequence[Series]

    @property
    def name(self) -> str:
        return f"{self.dashboard.uid}/{self.panel.title}/{self.target.named({})}"


@dataclass(frozen=True)
class Store:
    source: Source
    began: float
    dashboards: Sequence[Dashboard]

    def shown(self, first: float, last: float) -> Shown:
        return Shown(self.began + first, self.began + last, store.SCRAPE_SECONDS)

    def ask(self, shown: Shown, instances: str = ".*") -> list[Asked]:
        """Every query of every panel."""
        targets = [(one, panel, target) for one in self.dashboards for panel in one.panels for target in panel.targets]

        def answer(dashboard: Dashboard, panel: Panel, target: Target) -> Asked:
            chosen = replace(dashboard, variables={**dashboard.variables, "instance": instances})
            return Asked(dashboard, panel, target, shown, chosen.ask(target, self.source, shown))

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(answer, *zip(*targets, strict=True)))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    began = time.time() // 60 * 60 - store.SECONDS - 3 * 3600.0
    store.write(folder / "tsdb", began)
    with prometheus(folder) as running:
        yield Store(Source(running.url), began, [parsed(written(board)) for board in boards(Alerting())])


@pytest.fixture(scope="module")
def all_of_it(kept: Store) -> list[Asked]:
    return kept.ask(kept.shown(0, store.SECONDS))


def values(one: Asked) -> list[float]:
    return [value for series in one.found for _, value in series.points]


def test_dashboard_queries_give_finite_values_on_a_store_with_gaps(all_of_it: list[Asked]) -> None:
    silent = {one.name for one in all_of_it if not values(one)}
    depths = (*range(3, DEEPEST + 1), f"{DEEPEST + 1} or more")
    assert silent == {f"draftd-speculation/Depth chosen/{depth}" for depth in depths} | NOTHING_ASKED
    assert [one.name for one in all_of_it if not all(map(math.isfinite, values(one)))] == []


def test_dashboard_queries_give_no_impossible_values_over_gaps(all_of_it: list[Asked]) -> None:
    for one in all_of_it:
        low, unit = one.panel.defaults.get("min"), one.panel.defaults["unit"]
        least, most = min(values(one), default=0.0), max(values(one), default=0.0)
        assert low is None or least >= low or one.panel.title.startswith("Mean"), (one.name, least)
        assert unit != "percentunit" or one.panel.title in _UNBOUNDED or 0 <= least <= most <= _MOST, (one.name, most)


def test_dashboard_series_of_a_panel_have_distinct_legends(all_of_it: list[Asked]) -> None:
    names: dict[str, list[str]] = {}
    for one in all_of_it:
        for series in one.found:
            assert all(series.labels.get(label) for label in one.target.legend_labels), one.name
            names.setdefault(f"{one.dashboard.uid}/{one.panel.title}", []).append(one.target.named(series.labels))
    assert {panel: sorted(found) for panel, found in names.items() if len(found) != len(set(found))} == {}


def test_dashboard_variables_offer_each_daemon_model_draft_and_workload(kept: Store) -> None:
    shown, offered = kept.shown(0, store.SECONDS), {}
    for name, query in kept.dashboards[0].variable_queries.items():
        metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        offered[name] = kept.source.label_values(metric, label, shown)
    assert offered.pop("instance") == sorted(daemon.name for daemon in store.DAEMONS)
    assert offered == {"model": ["nano"], "draft": ["nano/draft", "prompt_lookup"], "workload": ["code", "unspecified"]}


def late(one: Asked, after: float) -> list[float]:
    """Values at times later than that."""
    return [value for series in one.found for at, value in series.points if at > after]


IDLE, DEAD = "idle|idle-scraped", "killed|stopped"
WINDOW = Alerting().window_seconds + store.SCRAPE_SECONDS  # the longest of a line, and a step


@pytest.mark.parametrize("part", [(store.PARTS[1][0], store.PARTS[3][1]), store.PARTS[4]], ids=["an hour", "a day"])
def test_dashboard_counts_no_old_event_as_new_after_a_gap(kept: Store, part: tuple[float, float]) -> None:
    after = kept.began + store.BUSY_UNTIL + WINDOW
    counting = [one for one in kept.ask(kept.shown(*part), IDLE) if counts(one.target.expression)]
    assert len(counting) > 100
    assert [(one.name, max(late(one, after))) for one in counting if any(late(one, after))] == []


def counts(expression: str) -> bool:
    """Whether it is about what counters did of late: not about a baseline, nor exports, which an idle daemon goes on
    with, nor how many daemons serve."""
    of_daemons = (sdk.DATA_POINTS_EXPORTED.prometheus, catalog.STATE.prometheus)
    others = (*of_daemons, f"[{Alerting().baseline}]", "[$__range:]")
    return ("rate(" in expression or "increase(" in expression) and not any(one in expression for one in others)


def test_annotations_and_alerts_stay_silent_after_a_data_gap(kept: Store) -> None:
    shown = kept.shown(store.PARTS[1][0] + 2 * Alerting().window_seconds, store.SECONDS)
    for dashboard in kept.dashboards[:1]:
        for mark in dashboard.marks:
            assert kept.source.over(shown.put_in(mark.expression, dashboard.variables), shown) == [], mark.name
    fired = {
        (rule.name, series.labels["instance"])
        for rule in alert_rules(Alerting())
        for series in kept.source.over(rule.expr, shown)
        if series.labels.get("instance") in IDLE.split("|")
    }
    assert fired == set()


def test_dashboard_shows_no_current_values_of_a_dead_daemon(kept: Store) -> None:
    asked = kept.ask(kept.shown(store.DIED - 600, store.DIED + 240), DEAD)
    present = [one for one in asked if shows_now(one.target.expression)]
    assert len(present) > 50
    gone = kept.began + store.DIED + 180
    assert [one.name for one in present if any(late(one, gone))] == []


def shows_now(expression: str) -> bool:
    """Whether it is about a daemon as it is, not about what it counted."""
    return "$instance" in expression and not any(one in expression for one in ("rate(", "increase(", "[$__range:]"))
