"""A run with everything in it, and its page, drawn once; and how a page is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.gate.judge import judge_run
from draftd.acceptance.gate.spec import load_spec
from draftd.acceptance.report.data import Section, Table
from draftd.acceptance.report.render import Report, html, report
from tests.acceptance import ARMS, Truth, manifest, synthetic_run

GROUPS = ("short_control", "long_context", "code")
FEW = tuple(arm for arm in ARMS if arm.id in ("ar", "k2", "k4", "auto6", "k4-prompt_lookup", "ar-x2", "k4-x2"))
PRICED = manifest(settings={"cost.currency": "€", "cost.per_hour": "0.36"})
TRUTH = Truth(alpha=0.85)


def drawn(folder: RunFolder, other: RunFolder | None = None) -> Report:
    return report(folder, judge_run(folder.path, load_spec()), other=other)


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """All stages; something failed, something was left out."""
    return synthetic_run(
        tmp_path_factory.mktemp("runs") / "full",
        truth=TRUTH,
        groups=GROUPS,
        arms=FEW,
        manifests=(PRICED,),
        tokens=32,
        left_out={"k8": "the daemon drafts 6 tokens a step at most"},
        sweep_errors=2,
        swap_in=400_000_000,
    )


@pytest.fixture(scope="session")
def full_page(full: RunFolder) -> Report:
    return drawn(full)


@pytest.fixture(scope="session")
def full_html(full_page: Report) -> str:
    return html(full_page)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


SMALL = {"groups": ("short_control", "code"), "arms": FEW[:3], "prompts": 3, "repetitions": 2, "tokens": 24}


def section(made: Report, id_: str) -> Section:
    return next(one for one in made.sections if one.id == id_)


def column(table: Table, title: str, unit: str | None = None) -> int:
    return next(at for at, one in enumerate(table.columns) if one.title == title and unit in (None, one.unit))


def row(table: Table, *words: str) -> dict[str, str]:
    found = next(r for r in table.rows if [r[0].text, r[0].detail][: len(words)] == list(words))
    return {column.title: cell.text for column, cell in zip(table.columns, found, strict=True)}


def words(one: Section) -> str:
    said = [one.lead, *(note.text for note in one.notes)]
    said += [f"{chart.title} {chart.reading} {chart.description}" for chart in one.charts]
    said += [f"{cell.text} {cell.detail}" for table in one.tables for cells in table.rows for cell in cells]
    for name, value in one.facts.items():
        said.append(f"{name} {value}" if isinstance(value, str) else f"{name} {value.text} {value.detail}")
    return "\n".join(said)
