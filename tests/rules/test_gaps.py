"""What counts as new after a gap in the data, in each rule and each query of changes: promtool on generated cases.

Every counter of a daemon has been 30 for long when something happens: a gap, a restart, a first event. A second daemon
stands still all the time, without a gap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dashboards.alerts import alert_rules
from dashboards.board import written
from dashboards.boards import boards
from dashboards.external import COLLECTOR_UPTIME
from dashboards.queries import ranks
from dashboards.queries.serving import SERVING
from dashboards.render.asking import Shown
from dashboards.render.reading import parsed
from dashboards.series import UPTIME
from dashboards.settings import Alerting
from draftd.core import FallbackLevel
from draftd.telemetry import catalog, catalog_ranks
from tests.rules.test_rules import promtool
from tests.unit.dashboards.promql import uses

STEP = 60  # seconds between two samples
BEFORE, AFTER = 20, 12  # samples before what happens, and after it
GAPS = {"1 min": 1, "6 min": 6, "30 min": 30, "7.5 h": 450, "1 day": 1440}
SHOWN = Shown(0, 1800, scrape=STEP)
UPTIMES = (UPTIME, COLLECTOR_UPTIME.name)
WELL = {  # what gauges show that are not well at 1
    catalog.THERMAL_LEVEL.prometheus: 0,
    catalog_ranks.LAG.prometheus: 0,
    catalog.FALLBACK_DEMAND.prometheus: FallbackLevel.FULL.value,
    catalog.CERTIFICATE_EXPIRY.prometheus: 10_000_000_000,
}
OLD = 90_000  # seconds that a daemon has been running


@dataclass(frozen=True)
class Happening:
    """What becomes of a daemon, as samples in promtool's notation: of its uptime, of its counters, of its gauges."""

    name: str
    uptime: str
    counter: str
    samples: int
    event: bool = False  # whether something new is among it


def gap(name: str, samples: int, away: str, *, event: bool = False) -> Happening:
    return Happening(
        f"{name}, {away.split()[0]}{', then an event' * event}",
        f"{OLD}+{STEP}x{BEFORE} {away} {OLD + STEP * (BEFORE + samples + 1)}+{STEP}x{AFTER}",
        f"30x{BEFORE} {away} " + (f"30x2 50x{AFTER - 3}" if event else f"30x{AFTER}"),
        BEFORE + samples,
        event,
    )


def happenings() -> Iterator[Happening]:
    for i, (name, samples) in enumerate(GAPS.items()):
        # By turns Prometheus was down, which then has no samples, and the collector, when it marks the series' ends.
        down, unread = f"_x{samples}", f"stale _x{samples - 1}"
        yield gap(name, samples, down if i % 2 == 0 else unread)
        if i % 2:
            yield gap(name, samples, down, event=True)
    old, began = f"{OLD}+{STEP}x{BEFORE + AFTER}", f"_x{BEFORE} 5+{STEP}x{AFTER}"
    yield Happening("first event of a counter", old, f"_x{BEFORE} 20x{AFTER}", BEFORE, event=True)
    yield Happening("a daemon begins with an event", began, f"_x{BEFORE} 20x{AFTER}", BEFORE, event=True)
    heard = f"_x{BEFORE} {OLD}+{STEP}x{AFTER}"
    yield Happening("Prometheus is new, the daemon old", heard, f"_x{BEFORE} 30x{AFTER}", BEFORE)
    for name, now, event in (("with as many", 30, True), ("with fewer", 20, True), ("with none", 0, False)):
        again = f"{OLD}+{STEP}x{BEFORE - 2} stale 5+{STEP}x{AFTER}"
        yield Happening(f"the same instance again {name}", again, f"30x{BEFORE - 2} stale {now}x{AFTER}", BEFORE, event)


@cache
def expressions() -> dict[str, tuple[str, bool]]:
    """Conditions of rules, and queries that tell of changes, by what they are; and whether they count events."""
    found = {rule.expr: rule.name for rule in alert_rules(Alerting())}
    for board in boards(Alerting()):
        dashboard = parsed(written(board))
        asked = [(panel.title, target.expression) for panel in dashboard.panels for target in panel.targets]
        for title, query in [*asked, *((mark.name, mark.expression) for mark in dashboard.marks)]:
            if re.search(r"\b(?:increase|changes|delta)\(", query):
                found.setdefault(SHOWN.put_in(query, dashboard.variables), f"{board.title}/{title}")
    del found[SHOWN.put_in(SERVING.expression, {"model": ".*", "instance": ".*"})]  # of daemons, not of events
    counts = re.compile(rf"(?:{'|'.join(UPTIMES)}) < ")  # as grown() asks
    return {f"{name} {i}": (text, bool(counts.search(text))) for i, (text, name) in enumerate(found.items())}


def series(expression: str) -> Iterator[tuple[str, str]]:
    """The series that an expression asks for: name and labels."""
    for name in {use.name for use in uses(expression)}:
        for braces in re.findall(rf"\b{name}\b(?:\{{([^}}]*)\}})?", expression):
            yield name, ", ".join(f'{label}="{value}"' for label, value in sorted(matching(braces).items()))


def matching(matchers: str) -> dict[str, str]:
    """Labels that match."""
    found: dict[str, str] = {}
    for label, how, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
        if how == "=" or (how == "=~" and value != ".*"):
            found[label] = re.sub(r"\((\w+)\|[^)]*\)", r"\1", value).split("|")[0].replace(".*", "x")
        else:
            found.setdefault(label, "x")
    return {label: value for label, value in found.items() if value and label != "instance"} | {"job": "draftd"}


def inputs(happening: Happening) -> Iterator[dict[str, str]]:
    every = {one for text, _ in expressions().values() for one in series(text)}
    counters = {name for text, _ in expressions().values() for name in re.findall(r"(?:increase|rate)\((\w+)", text)}
    still = happening.samples + AFTER + 1
    for name, labels in sorted(every):
        value = 30 if name in counters else WELL.get(name, 1)
        steady = f"{value}x{still}"
        one = f"{OLD}+{STEP}x{still}" if name in UPTIMES else steady
        mine = happening.uptime if name in UPTIMES else happening.counter
        if name not in UPTIMES and name not in counters:
            mine = re.sub(r"\d+(?:\+\d+)?x", f"{value}x", happening.uptime)
        yield {"series": f'{name}{{instance="still", {labels}}}', "values": one}
        yield {"series": f'{name}{{instance="mine", {labels}}}', "values": mine}


def group(happening: Happening) -> dict[str, object]:
    """A group of promtool's tests. Changes are looked for in each minute from where something happened."""
    tests: list[dict[str, object]] = []
    when = f"{happening.samples + AFTER}m"
    for text, counts in expressions().values():
        some = f"max_over_time((({text}) != 0)[{AFTER}m:1m])"
        if not happening.event:
            tests.append({"expr": some, "eval_time": when, "exp_samples": []})
        elif counts:
            tests.append({"expr": f"count({some} > 0) > bool 0", "eval_time": when, "exp_samples": [{"value": 1}]})
    return {
        "name": happening.name,
        "interval": f"{STEP}s",
        "input_series": list(inputs(happening)),
        "promql_expr_test": tests,
    }


def test_prometheus_queries_count_only_new_events_after_gaps_and_restarts(tmp_path: Path) -> None:
    assert sum(counts for _, counts in expressions().values()) > 60
    wrong = {}
    for happening in happenings():
        cases = tmp_path / "cases.json"  # which is YAML too
        cases.write_text(json.dumps({"evaluation_interval": f"{STEP}s", "tests": [group(happening)]}))
        said = promtool("test", "rules", str(cases))
        if said.returncode:
            text = said.stdout + said.stderr
            names = [name for name, (asked, _) in expressions().items() if json.dumps(asked)[1:-1] in text]
            wrong[happening.name] = names or text
    assert wrong == {}


def test_dashboard_counts_only_daemons_that_answer_requests_as_serving(tmp_path: Path) -> None:
    now, minutes = dict[str, str](), 10
    status = 'draftd_daemon_status{draftd_daemon_state="serving", instance='
    for name, state, refused, uptime in (
        ("serves", "serving", 0, f"{OLD}+{STEP}x{minutes}"),
        ("refuses-some", "serving", 0, f"{OLD}+{STEP}x{minutes}"),
        ("refuses-all", "serving", 1, f"{OLD}+{STEP}x{minutes}"),
        ("loads", "loading", 0, f"5+{STEP}x{minutes}"),
        ("drains", "draining", 0, f"{OLD}+{STEP}x{minutes}"),
        ("without-group", "not_serving", 0, f"{OLD}+{STEP}x{minutes}"),
        ("died", "serving", 0, f"{OLD}+{STEP}x{minutes - 4} {OLD}x4"),
    ):
        requests = catalog.REQUESTS.prometheus + '{gen_ai_request_model="m", instance="' + name
        now |= {
            f'{UPTIME}{{instance="{name}"}}': uptime,
            f'{status}"{name}"}}': f"{int(state == 'serving')}x{minutes}",
            f'draftd_engine_queue_capacity{{instance="{name}", gen_ai_request_model="m"}}': f"8x{minutes}",
            f'{requests}", draftd_outcome="stop"}}': f"5x{minutes}" if refused else f"0+5x{minutes}",
            f'{requests}", draftd_outcome="refused", error_type="QueueFull"}}': f"0+5x{minutes}",
        }
    asked = SHOWN.put_in(SERVING.expression, {"model": ".*", "instance": ".*"})
    inputs = [{"series": series, "values": values} for series, values in now.items()]
    tests = [{"expr": asked, "eval_time": f"{minutes}m", "exp_samples": [{"labels": "{}", "value": 2}]}]
    cases = tmp_path / "cases.json"
    group = {"interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": tests}
    cases.write_text(json.dumps({"tests": [group]}))
    said = promtool("test", "rules", str(cases))
    assert said.returncode == 0, said.stdout + said.stderr


def test_dashboard_shows_no_memory_of_silent_or_lost_ranks(tmp_path: Path) -> None:
    inputs = []
    for name, serving, silence in (("serves", 1, 1), ("lost", 0, 1), ("silent", 1, 60)):
        rank = f'instance="{name}", gen_ai_request_model="m", draftd_rank_number="1", draftd_rank_host="mini"'
        group = f'instance="{name}", gen_ai_request_model="m", draftd_group_state="serving"'
        inputs += [
            {"series": f'{UPTIME}{{instance="{name}"}}', "values": f"{OLD}+{STEP}x10"},
            {"series": f"{catalog_ranks.STATE.prometheus}{{{group}}}", "values": f"{serving}x10"},
            {"series": f"{catalog_ranks.SILENCE.prometheus}{{{rank}}}", "values": f"{silence}x10"},
            {"series": f"{catalog_ranks.MEMORY.prometheus}{{{rank}}}", "values": "4096x10"},
        ]
    asked = SHOWN.put_in(f"sum by (instance) ({ranks.MEMORY.expression})", {"model": ".*", "instance": ".*"})
    found = [{"labels": '{instance="serves"}', "value": 4096}]
    tests = [{"expr": asked, "eval_time": "10m", "exp_samples": found}]
    cases = tmp_path / "cases.json"
    group_of_tests = {"interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": tests}
    cases.write_text(json.dumps({"tests": [group_of_tests]}))
    said = promtool("test", "rules", str(cases))
    assert said.returncode == 0, said.stdout + said.stderr
