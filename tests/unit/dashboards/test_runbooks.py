"""Everything that the runbooks name exists: commands and options, settings, metrics, labels, values, panels, files."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from opentelemetry.sdk import environment_variables

from dashboards import evidence
from dashboards.board import written
from dashboards.boards import boards
from dashboards.ratios import INSTANCE, label
from dashboards.render.reading import parsed
from dashboards.settings import Alerting
from draftd import errors
from draftd.cli.main import load
from draftd.fallback.alerts.payload import NotificationResult
from draftd.fallback.ladder import Cause
from draftd.settings.load import describe_settings
from draftd.strategies import LinkFailure
from draftd.telemetry import attributes, catalog
from draftd.telemetry.attributes import Attribute

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
# Names of other programs and of the text itself.
ELSEWHERE = {
    "keep_firing_for", "fallback_level", "remote_level", INSTANCE, evidence.STAGE, "Alerting", "draftd-daemon",
    "max_tokens", "decoding-strategy", "df", "lost", "openssl x509 -noout -enddate -in FILE", "launchctl bootout",
}  # fmt: skip
_GAP = "…"  # stands for any text in a name


def spans() -> list[str]:
    """Returns the texts in backticks, each once."""
    return sorted({" ".join(one.split()) for one in re.findall(r"`([^`]+)`", TEXT)})


def commands() -> list[str]:
    return [one for one in spans() if one.startswith("draftd ")]


def test_runbooks_contain_at_least_ten_commands() -> None:
    assert len(commands()) >= 10


@pytest.mark.parametrize("command", commands())
def test_runbook_command_line_is_accepted_by_command_parser(command: str) -> None:
    """The command is parsed as on a terminal, and not run."""
    name, *arguments = shlex.split(command.replace("FILE", __file__).replace(_GAP, "text"))[1:]
    taken = load(name)
    while arguments and arguments[0] in getattr(taken, "commands", {}):
        name, *arguments = arguments
        taken = taken.commands[name]
    taken.make_context(name, arguments)


@cache
def names() -> frozenset[str]:
    """Returns all names of telemetry, settings and errors."""
    texts = {*ELSEWHERE, *Cause, *LinkFailure, *NotificationResult}
    every = [value for value in vars(attributes).values() if isinstance(value, Attribute)]
    for attribute in every:
        texts |= {attribute.name, label(attribute), *attribute.values, *attribute.examples, *quoted(attribute.brief)}
    for metric in (*catalog.METRICS, *catalog.SDK_METRICS):
        texts |= {metric.name, metric.prometheus}
    settings = {doc.name for doc in describe_settings()}
    texts |= settings | {f"{name.partition('.')[0]}.*" for name in settings}
    kinds = {value for value in vars(errors).values() if inspect.isclass(value)}
    texts |= {kind.__name__ for kind in kinds}
    texts |= {errors.reason_of(kind) for kind in kinds if issubclass(kind, errors.DraftdError)}
    texts |= {value for value in vars(environment_variables).values() if isinstance(value, str)}
    return frozenset(texts | set(re.findall(r'"stage", "(\w+)"', evidence.dropped(Alerting()))))


def quoted(text: str) -> Iterator[str]:
    return iter(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("span", [one for one in spans() if not one.startswith(("draftd ", "python -m "))])
def test_runbook_code_spans_name_existing_settings_metrics_errors_or_files(span: str) -> None:
    name = re.split(r" ?= ?", span)[0]  # a setting or a variable with its value
    pattern = re.compile(re.escape(name).replace(re.escape(_GAP), r"\w+"))
    assert (ROOT / name).is_file() or any(pattern.fullmatch(one) for one in names()), span


def test_runbook_panel_names_exist_on_generated_dashboards() -> None:
    titles: dict[str, set[str]] = {}
    for board in boards(Alerting()):
        titles[board.title] = {panel.title for panel in parsed(written(board)).panels}
    anywhere, absent = set().union(*titles.values()), {}
    for alert, text in re.findall(r"^## (Draftd\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL):
        if lost := {" ".join(one.split()) for one in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", text)} - anywhere - WORDS:
            absent[alert] = lost
    assert absent == {}


WORDS = {"Targets"}  # a page of Prometheus's
