"""The dashboards on a real pipeline under real traffic: each query of each panel is asked, its answer looked at.

What cannot give anything here is listed by name with the reason, and nothing is listed that does give something.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dashboards.alerts import alert_rules
from dashboards.alerts_ranks import rank_rules
from dashboards.alerts_remote import remote_rules
from dashboards.board import written
from dashboards.boards import boards
from dashboards.queries.speculation import DEEPEST
from dashboards.render.asking import Series, Shown, Source
from dashboards.render.reading import Dashboard, Panel, Target, parsed, read
from dashboards.settings import Alerting
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric
from tests.conftest import NanoPair
from tests.stack.traffic import CLASSES, Traffic, counts_equal_what_clients_receive, flag_off
from tests.stack.whole import SCRAPE_SECONDS, Whole, whole
from tests.wait_until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The alerts' windows and samples, as short as the traffic.
SHORT = Alerting(
    window_seconds=3.0,
    min_requests=1,
    min_drafts=5,
    baseline_windows=6,
    baseline_offset_windows=2,
    ttft_floor_seconds=0.0,
)
TRAFFIC_SECONDS = 15.0
(DRIFT,) = (rule for rule in alert_rules(SHORT) if rule.name == "DraftdAcceptanceDrift")
PACKAGED = Path(__file__).parents[2] / "daemon" / "draftd" / "grafana" / "dashboards"

# What a machine may lack: the figure is there if and only if the metric is.
SENSORS: Mapping[str, tuple[Metric, str]] = {
    "draftd-overview/Thermal level": (catalog.THERMAL_LEVEL, "only macOS tells its thermal level"),
    "draftd-overview/Pressure and heat/thermal": (catalog.THERMAL_LEVEL, "only macOS tells its thermal level"),
    "draftd-machine/Heat": (catalog.THERMAL_LEVEL, "only macOS tells its thermal level"),
    "draftd-machine/Thermal level": (catalog.THERMAL_LEVEL, "only macOS tells its thermal level"),
    "draftd-machine/Throttle events": (catalog.THERMAL_THROTTLES, "only macOS tells its thermal level"),
    "draftd-machine/Throttles": (catalog.THERMAL_THROTTLES, "only macOS tells its thermal level"),
    "draftd-machine/MLX/recommended at most": (catalog.MEMORY_WORKING_SET, "a working set is Metal's"),
    "draftd-machine/MLX/GPU, all processes": (catalog.MEMORY_GPU, "only macOS tells what the GPU holds"),
    "draftd-machine/Shares of memory/free by macOS's rule": (catalog.MEMORY_FREE, "a rule of macOS"),
    "draftd-machine/GPU busy": (catalog.GPU_UTILIZATION, "only macOS tells how busy the GPU is"),
    "draftd-machine/Temperature": (catalog.HW_TEMPERATURE, "a virtual machine has no thermal zones"),
    "draftd-machine/Fans": (catalog.HW_FAN_SPEED, "a virtual machine has no fans"),
    "draftd-machine/Power": (catalog.HW_POWER, "power is told by macmon"),
    "draftd-machine/Power source/low-power mode": (catalog.POWER_LOW_MODE, "a mode of macOS"),
    "draftd-machine/Power source/on mains": (catalog.POWER_PLUGGED_IN, "a machine without a battery does not tell"),
}
# What did not happen, on any machine.
NOT_HAPPENED: Mapping[str, str] = {
    "draftd-machine/Failed readings": "no reading failed",
    "draftd-telemetry/Failures of telemetry, by part": "telemetry did not fail",
    "draftd-latency/Calls by status/HTTP": "this daemon has no HTTP port",
    "draftd-latency/Calls, p95/": "this daemon has no HTTP port",
    "draftd-fallback/Signals that ask for a level": "nothing asked for less than full",
    "draftd-fallback/Level changes by cause": "the ladder did not move",
    "draftd-fallback/Level changes, from and to": "the ladder did not move",
    "draftd-fallback/Canary scores": "the canaries' first run is an hour away",
    "draftd-fallback/Canary runs": "the canaries' first run is an hour away",
    "draftd-fallback/Notifications by result": "no alert was sent here",
    "draftd-fallback/Polls for alerts": "no source of alerts is configured",
    "draftd-fallback/Annotations and saving/annotations": "no Grafana is configured",
    **{
        f"draftd-speculation/Depth chosen/{depth}": "the daemon drafts at most four tokens unless it is told otherwise"
        for depth in (*range(5, DEEPEST + 1), f"{DEEPEST + 1} or more")
    },
}

# Alerts that have nothing to judge here.
QUIET: Mapping[str, str] = {
    "DraftdStopped": "no daemon was told to stop",
    "DraftdTelemetryDropped": "none was dropped",
    "DraftdCanariesFail": "the canaries' first run is an hour away",
    "DraftdRequestErrors": "no request failed",
    "DraftdAlertsRefused": "no alert was sent here",
    "DraftdCertificateExpires": "there is no certificate",
    "DraftdCertificateExpired": "there is no certificate",
}

_ELSEWHERE = ("draftd-remote/", "draftd-ranks/")  # dashboards that have little to show of one daemon without ranks

# What a run as short as this may or may not come to.
EITHER_WAY: Mapping[str, str] = {
    "draftd-fallback/Drift": "a baseline takes 100 requests of a kind of text",
    **{
        f"draftd-fallback/{panel}": "the daemon probes when it has time to spare"
        for panel in ("Probes", "Acceptance in the last probe", "Speed-up in the last probe")
    },
}


@dataclass(frozen=True)
class Asked:
    """A query of a panel, and its answer."""

    dashboard: Dashboard
    panel: Panel
    target: Target
    found: Sequence[Series]

    @property
    def name(self) -> str:
        """The panel's name, and the query's legend where it has several."""
        panel = f"{self.dashboard.uid}/{self.panel.title}"
        return panel if len(self.panel.targets) == 1 else f"{panel}/{self.target.named({})}"


@dataclass(frozen=True)
class Run:
    """The pipeline after the traffic, and the time in which it ran; all queries, each asked once of that time."""

    whole: Whole
    source: Source
    shown: Shown
    answers: Sequence[Asked]

    def names(self) -> set[str]:
        return set(self.source.label_values('{__name__=~".+"}', "__name__", self.shown))


@contextlib.contextmanager
def measured(folder: Path, short: Sequence[Dashboard]) -> Iterator[Run]:
    with whole(folder) as running:
        started = time.time()
        counts_equal_what_clients_receive(running.prometheus, running.address)
        source = Source(running.prometheus.url)

        def shown() -> Shown:
            # Windows of twice as many scrapes as Grafana would take: a busy machine misses some.
            return Shown(started, time.time(), 2 * SCRAPE_SECONDS, 60)

        with Traffic(running.address, pause=0.25) as traffic:
            time.sleep(TRAFFIC_SECONDS / 3)
            traffic.trouble()
            traffic.overload()
            with flag_off(running.address):
                time.sleep(TRAFFIC_SECONDS / 6)
            time.sleep(TRAFFIC_SECONDS / 3)
            traffic.trouble()
            until(
                lambda: all(all_offered(offered(dashboard, source, shown())) for dashboard in short),
                60,
                "every value of every variable is in Prometheus",
            )
            until(lambda: source.over(DRIFT.value, under_traffic(shown())), 60, "a baseline that drift is held against")
            # The traffic goes on, but what is asked is of the time until now.
            then = shown()
            answers = [Asked(*one, one[0].ask(one[2], source, then)) for one in asked(short)]
            yield Run(running, source, then, answers)


def under_traffic(shown: Shown) -> Shown:
    return dataclasses.replace(shown, start=shown.end - TRAFFIC_SECONDS * 2 / 3)


def offered(dashboard: Dashboard, source: Source, shown: Shown) -> dict[str, list[str]]:
    """The values of each variable."""
    found = {}
    for name, query in dashboard.variable_queries.items():
        metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        found[name] = source.label_values(metric, label, shown)
    return found


def all_offered(values: Mapping[str, Sequence[str]]) -> bool:
    return (
        values["instance"] == ["test"]
        and set(CLASSES) <= set(values["workload"])
        and {"nano/draft", "prompt_lookup"} <= set(values["draft"])
        and len(values["model"]) == 1
    )


def asked(dashboards: Sequence[Dashboard]) -> Iterator[tuple[Dashboard, Panel, Target]]:
    for dashboard in dashboards:
        for panel in dashboard.panels:
            for target in panel.targets:
                yield dashboard, panel, target


def tells(series: Sequence[Series]) -> bool:
    return any(math.isfinite(value) for one in series for _, value in one.points)


def every_query_gives_series_with_the_labels_that_its_legend_names(run: Run) -> None:
    silent, unlabelled = set(), set()
    for one in run.answers:
        if not tells(one.found):
            silent.add(one.name)
        for label in one.target.legend_labels:
            unlabelled |= {f"{one.name}: {label}" for series in one.found if not series.labels.get(label)}
    there = run.names()
    lacking = {name for name, (metric, _) in SENSORS.items() if metric.prometheus not in there}
    elsewhere = {name for name in silent if name.startswith(_ELSEWHERE)}
    assert silent - set(EITHER_WAY) - elsewhere == lacking | set(NOT_HAPPENED)
    assert not unlabelled


def no_figure_is_nan(run: Run) -> None:
    for one in run.answers:
        assert not any(math.isnan(value) for series in one.found for _, value in series.points), one.name


def shipped_dashboards_ask_what_prometheus_understands(run: Run) -> None:
    for dashboard, _, target in asked([read(path) for path in sorted(PACKAGED.glob("*.json"))]):
        dashboard.ask(target, run.source, run.shown)


def choosing_all_values_by_hand_shows_what_all_shows(run: Run, short: Sequence[Dashboard]) -> None:
    for dashboard in short:
        values = offered(dashboard, run.source, run.shown)
        assert all_offered(values), values
        chosen = {name: f"({'|'.join(each)})" for name, each in values.items()}
        by_hand = dataclasses.replace(dashboard, variables=chosen)
        for one in run.answers:
            if one.dashboard is dashboard:
                assert labels(by_hand.ask(one.target, run.source, run.shown)) == labels(one.found), one.name


def labels(found: Sequence[Series]) -> set[tuple[tuple[str, str], ...]]:
    return {tuple(sorted(series.labels.items())) for series in found}


def a_flag_that_changed_is_marked_and_nothing_else_is(run: Run, short: Sequence[Dashboard]) -> None:
    for dashboard in short:
        found = {}
        for mark in dashboard.marks:
            series = run.source.over(run.shown.put_in(mark.expression, dashboard.variables), run.shown)
            found[mark.name] = {one.labels["to"] for one in series}
        assert found == {"Fallback level": set(), "Feature flag": {"on", "off"}}


def a_latency_leads_to_traces(run: Run, short: Sequence[Dashboard]) -> None:
    (latency,) = (dashboard for dashboard in short if dashboard.uid == "draftd-latency")
    for _, panel, target in asked([latency]):
        if target.exemplar and "http_server" not in target.expression:  # this daemon has no HTTP port
            expression = run.shown.put_in(target.expression, latency.variables)
            assert run.source.exemplars(expression, run.shown), panel.title


def every_alert_judges_by_what_there_is(run: Run) -> None:
    silent = set()
    for rule in alert_rules(SHORT):
        run.source.at(rule.expr, run.shown.end)
        found = run.source.over(rule.value, under_traffic(run.shown))
        if not found:
            silent.add(rule.name)
        for one in found:
            texts = " ".join(str(text) for text in rule.annotations(".Value").values())
            for label in re.findall(r"(?:\$labels|\.Labels)\.(\w+)", texts):
                assert label in one.labels, (rule.name, label)
    lacking = {"DraftdThermalHeavy"} if catalog.THERMAL_LEVEL.prometheus not in run.names() else set()
    # The daemon is there, but one that had no processor for three seconds is missed for a moment.
    elsewhere = {rule.name for rule in (*remote_rules(SHORT), *rank_rules(SHORT))}  # of two daemons, of several ranks
    assert silent - {"DraftdAbsent"} - elsewhere == lacking | set(QUIET)


def test_dashboard_queries_and_alert_rules_give_data_on_a_real_pipeline(tmp_path: Path, nano_pair: NanoPair) -> None:
    """One test, because what it looks at takes long to make."""
    short = [parsed(written(board)) for board in boards(SHORT)]
    with measured(tmp_path, short) as run:
        every_query_gives_series_with_the_labels_that_its_legend_names(run)
        no_figure_is_nan(run)
        shipped_dashboards_ask_what_prometheus_understands(run)
        choosing_all_values_by_hand_shows_what_all_shows(run, short)
        a_flag_that_changed_is_marked_and_nothing_else_is(run, short)
        a_latency_leads_to_traces(run, short)
        every_alert_judges_by_what_there_is(run)
