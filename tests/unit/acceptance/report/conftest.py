"""Fixtures: a run of all stages, its page, drawn once, and a reader of pages."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder

import pytest
from matplotlib.figure import Figure

from draftd_acceptance.folder import RunFolder
from draftd_acceptance.gate.judge import judge_run
from draftd_acceptance.gate.spec import load_spec
from draftd_acceptance.report.render import html, markdown, report
from tests.synthetic_run import ARMS, Truth, manifest, synthetic_run

GROUPS = ("short_control", "long_context", "code")
FEW = tuple(arm for arm in ARMS if arm.id in ("ar", "k2", "k4", "auto6", "k4-prompt_lookup", "ar-x2", "k4-x2"))
PRICED = manifest(settings={"cost.currency": "€", "cost.per_hour": "0.36"})
TRUTH = Truth(alpha=0.85)


@dataclass
class Table:
    caption: str
    columns: list[tuple[str, str]]  # title and unit; where two have one title, `row` returns the last
    rows: list[list[Element]]

    def row(self, *words: str) -> dict[str, str]:
        """Returns the texts of the row whose first cell has these words, by column."""
        return {title: text(cell) for title, cell in self.cells(*words).items()}

    def cells(self, *words: str) -> dict[str, Element]:
        found = next(one for one in self.rows if [text(one[0]), detail(one[0])][: len(words)] == list(words))
        return dict(zip((title for title, _ in self.columns), found, strict=True))


class Page(HTMLParser):
    """A page as a reader finds it: what a section says, and in which order."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.html, self._builder = written, TreeBuilder()
        self.feed(written)
        self.root = self._builder.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in ("meta", "input"):
            self._builder.end(tag)

    def handle_endtag(self, tag: str) -> None:
        self._builder.end(tag)

    def handle_data(self, data: str) -> None:
        self._builder.data(data)

    @property
    def tone(self) -> str:
        """The tone of the verdict."""
        return tone(next(one for one in self.root.iter("div") if one.get("id") == "verdict"))

    def said(self, class_: str) -> str:
        return words(next(one for one in self.root.iter() if one.get("class") == class_))

    def section(self, id_: str) -> Element:
        return next(one for one in self.root.iter("section") if one.get("aria-labelledby") == id_)

    def lead(self, id_: str) -> str:
        return words(next(one for one in self.section(id_).iter("p") if one.get("class") == "lead"))

    def tables(self, id_: str) -> list[Table]:
        return [_table(one) for one in self.section(id_).iter("table")]


def charts(section: Element) -> list[str]:
    """Returns the titles of a section's charts."""
    return [words(one.find("h3")) for one in section.iter("figure")]


def _table(one: Element) -> Table:
    heads = [(text(head), unit(head)) for head in one.findall("thead/tr/th")]
    return Table(words(one.find("caption")), heads, [list(row) for row in one.findall("tbody/tr")])


def words(one: Element | None) -> str:
    assert one is not None
    return " ".join(" ".join(one.itertext()).split())


def detail(cell: Element) -> str:
    return "".join(words(one) for one in cell.iter("span") if one.get("class") == "detail")


def unit(head: Element) -> str:
    return "".join(words(one) for one in head.iter("span") if one.get("class") == "unit")


def text(cell: Element) -> str:
    """Returns a cell's text without its small print."""
    return words(cell).removesuffix(detail(cell) or unit(cell)).strip()


def tone(cell: Element) -> str:
    found = [one.get("class", "") for one in cell.iter() if "tone-" in one.get("class", "")]
    return found[0].partition("tone-")[2] if found else "plain"


def drawn(folder: RunFolder, other: RunFolder | None = None, *, pictures: bool = False) -> Page:
    """Draws the report's page; without `pictures` charts are left empty, which halves the time."""
    with pytest.MonkeyPatch.context() as patch:
        if not pictures:
            patch.setattr(Figure, "savefig", lambda self, out, **how: out.write("<svg></svg>"))
        return Page(html(report(folder, judge_run(folder.path, load_spec()), other=other)))


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of all stages, with failures and with an arm left out."""
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
def full_report(full: RunFolder) -> dict[str, Any]:
    return report(full, judge_run(full.path, load_spec()))


@pytest.fixture(scope="session")
def full_html(full_report: dict[str, Any]) -> str:
    return html(full_report)


@pytest.fixture(scope="session")
def full_page(full_html: str) -> Page:
    return Page(full_html)


@pytest.fixture(scope="session")
def full_markdown(full_report: dict[str, Any]) -> str:
    return markdown(full_report)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


SMALL = {"groups": ("short_control", "code"), "arms": FEW[:3], "prompts": 3, "repetitions": 2, "tokens": 24}
