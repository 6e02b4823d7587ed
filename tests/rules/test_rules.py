"""The alerts under Prometheus's own rule tests: when each fires, does not, has too few samples to tell, and resolves.

The cases are the YAML files beside this one, one for each alert, of the rules file that is committed. By hand:
`promtool test rules tests/rules/NAME.yaml`.
"""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from typing import Any

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


@functools.cache
def program() -> str:
    """Empty where there is none."""
    find = ["sh", str(ROOT / "scripts" / "unpacked.sh"), "--find", "promtool", "prometheus"]
    found = subprocess.run(find, capture_output=True, text=True)
    return "" if found.returncode else found.stdout.strip()


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not program():
        missing("promtool: apt-get install prometheus (macOS: brew install prometheus)")
    return subprocess.run([program(), *arguments], capture_output=True, text=True)


@functools.cache
def committed() -> list[dict[str, Any]]:
    """The rules of the file."""
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def test_promtool_accepts_the_alert_rules_file_without_lint() -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(ALERTS) + 2} rules found" in said.stdout  # and the two baselines


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alert_rule_passes_its_promtool_cases(cases: Path, tmp_path: Path) -> None:
    """With the baselines, and the rules of the alerts that the cases name: promtool evaluates each rule of a file in
    each minute of each case, which for all of them takes ten times as long."""
    text = cases.read_text(encoding="utf-8")
    named = set(re.findall(r'\balertname(?:: |=")(\w+)', text))
    assert not re.search(r'(?<!")\bALERTS\b(?!\{[^}]*alertname=")', text), "a case that asks for alerts of any name"
    rules = [rule for rule in committed() if "record" in rule or rule["alert"] in named]
    assert named == {rule["alert"] for rule in rules if "alert" in rule}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "draftd", "rules": rules}]}))
    asked, replaced = re.subn(
        rf"^rule_files: \[../../{RULES.relative_to(ROOT)}\]$", "rule_files: [rules.yaml]", text, flags=re.M
    )
    assert replaced == 1
    (tmp_path / "cases.yaml").write_text(asked)
    said = promtool("test", "rules", str(tmp_path / "cases.yaml"))
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("uid", ALERTS)
def test_each_alert_has_rule_cases_for_firing_not_firing_and_resolving(uid: str) -> None:
    """An alert without its cases, or a ratio without its case of too few samples, is not done."""
    names = [group["name"] for group in yaml.safe_load((Path(__file__).parent / f"{uid}.yaml").read_text())["tests"]]
    wanted = {"fires", "does not fire", "resolves"}
    if ALERTS[uid].name in RATIOS:
        wanted.add("too few samples")
    assert {start for start in wanted if any(name.startswith(start) for name in names)} == wanted


def test_each_alert_has_its_rule_case_file_and_each_file_its_alert() -> None:
    assert {path.stem for path in CASES} == set(ALERTS)
