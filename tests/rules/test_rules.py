"""The alerts under Prometheus's own rule tests: when each fires, does not, has too few samples to tell, and resolves.

The cases are the YAML files beside this one, one for each alert, of the rules file that is committed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.alerts import alert_rules
from dashboards.settings import Alerting
from tests.conftest import missing

ROOT = Path(__file__).parents[2]
RULES = ROOT / "dashboards" / "prometheus" / "draftd.rules.yaml"
CASES = sorted(Path(__file__).parent.glob("*.yaml"))
ALERTS = {rule.uid: rule for rule in alert_rules(Alerting())}
# What compares one time with another, or one count with another: it must be able to say that it cannot tell.
RATIOS = {
    "DraftdRemoteBelowStreaming",
    "DraftdRemoteErrors",
    "DraftdRequestErrors",
    "DraftdRequestsRefused",
    "DraftdDeadlinesExceeded",
    "DraftdAcceptanceBelowFloor",
    "DraftdAcceptanceDrift",
    "DraftdSlowerThanBreakEven",
    "DraftdTimeToFirstTokenRegression",
}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        ["sh", str(ROOT / "scripts" / "unpacked.sh"), "--find", "promtool", "prometheus"],
        capture_output=True,
        text=True,
    )
    if found.returncode:
        missing("promtool: apt-get install prometheus (macOS: brew install prometheus)")
    return subprocess.run([found.stdout.strip(), *arguments], capture_output=True, text=True)


def test_prometheus_takes_the_rules_file() -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(ALERTS) + 2} rules found" in said.stdout  # and the two baselines


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alert(cases: Path) -> None:
    said = promtool("test", "rules", str(cases))
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("uid", ALERTS)
def test_each_alert_is_shown_to_fire_not_to_fire_and_to_resolve(uid: str) -> None:
    """An alert without its cases, or a ratio without its case of too few samples, is not done."""
    names = [group["name"] for group in yaml.safe_load((Path(__file__).parent / f"{uid}.yaml").read_text())["tests"]]
    wanted = {"fires", "does not fire", "resolves"}
    if ALERTS[uid].name in RATIOS:
        wanted.add("too few samples")
    assert {start for start in wanted if any(name.startswith(start) for name in names)} == wanted


def test_each_file_of_cases_is_of_an_alert() -> None:
    assert {path.stem for path in CASES} == set(ALERTS)
