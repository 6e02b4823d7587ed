"""The page is one file that fetches nothing, runs nothing, and can be read without eyes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from draftd_acceptance.gate.judge import not_judged
from draftd_acceptance.manifest import ModelFile, ModelManifest
from draftd_acceptance.report.charts import PALETTE, SERIES, Series, lines
from draftd_acceptance.report.render import html, report
from draftd_acceptance.ticks import Stage
from tests.synthetic_run import manifest, synthetic_run
from tests.unit.acceptance.report.conftest import SMALL, Page

_VOID = {"meta", "input", "br", "hr", "img", "link"}


@dataclass
class Parsed(HTMLParser):
    """Every tag with its attributes, the text of each, and what was not closed."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.wrong.append(f"{self.getpos()}: </{tag}> after {self.open[-3:]}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def parsed(text: str) -> Parsed:
    found = Parsed()
    found.feed(text)
    return found


@pytest.fixture(scope="module")
def tree(full_html: str) -> Parsed:
    return parsed(full_html)


def test_report_html_tags_are_balanced(tree: Parsed) -> None:
    assert not tree.wrong
    assert not tree.open


def test_report_html_has_no_scripts_and_no_external_resources(tree: Parsed, full_html: str) -> None:
    assert not {"script", "link", "iframe", "img", "object", "embed", "base"} & {tag for tag, _ in tree.tags}
    for tag, attributes in tree.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "data")], tag
        assert attributes.get("href", "#").startswith("#"), (tag, attributes)
    assert not re.search(r"url\((?!#)", full_html)
    assert "@import" not in full_html


def test_report_contents_list_is_sidebar_on_wide_page_and_folded_on_narrow_page(
    full_page: Page, full_html: str
) -> None:
    (nav,) = list(full_page.root.iter("nav"))
    sections = [one.get("aria-labelledby") for one in full_page.root.iter("section")]
    for part in (nav.find("details"), nav.find("div")):  # the page shows one of the two
        assert part is not None
        assert [one.get("href") for one in part.iter("a")] == [f"#{id_}" for id_ in sections]
    assert "open" not in nav.find("details").attrib  # type: ignore[union-attr]
    style = full_html[full_html.index("<style>") : full_html.index("</style>")]
    shown, folded = "nav.contents .side { display: block; }", "nav.contents details { display: none; }"
    wide, printed = style[style.index("(min-width: 80rem)") :], style[style.index("@media print") :]
    assert "nav.contents .side { display: none; }" in style[: style.index("@media")]
    assert shown in wide[: wide.index("@media")]
    assert folded in wide[: wide.index("@media")]
    assert "position: sticky" in wide[: wide.index("@media")]
    assert shown in printed
    assert "nav.contents details { display: none; }" in printed


def test_report_html_ids_are_unique_and_all_references_resolve(tree: Parsed, full_html: str) -> None:
    ids = Counter(attributes["id"] for _, attributes in tree.tags if "id" in attributes)
    assert [name for name, times in ids.items() if times > 1] == []
    referred = {name for _, attributes in tree.tags for name in attributes.get("aria-labelledby", "").split()}
    referred |= {attributes["href"][1:] for _, attributes in tree.tags if "href" in attributes}
    referred |= set(re.findall(r"url\(#([^)]+)\)", full_html))
    referred |= {attributes["for"] for attributes in tree.all("label")}
    assert referred <= ids.keys()


def test_report_charts_have_accessible_title_description_and_caption(tree: Parsed, full_html: str) -> None:
    figures = re.findall(r'<figure class="plot".*?</figure>', full_html, re.DOTALL)
    assert len(figures) >= 18
    for figure in figures:
        assert re.search(r'<svg role="img" aria-labelledby="(\S+)-title \1-desc"', figure)
        assert re.search(r"<title[^>]*>[^<]{5,}</title><desc[^>]*>[^<]{40,}</desc>", figure)
        assert re.search(r'<figcaption class="reading">[^<]{20,}</figcaption>', figure), figure[:300]


def test_report_tables_have_caption_and_row_and_column_headers(tree: Parsed, full_html: str) -> None:
    tables = re.findall(r"<table>.*?</table>", full_html, re.DOTALL)
    assert tables
    for table in tables:
        columns = len(re.findall(r'<th scope="col"', table))
        assert re.search(r"<caption><span>[^<]+", table)
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]:
            assert row.count('<th scope="row"') == 1
            assert row.count("<td") == columns - 1


def test_report_charts_take_colours_only_from_defined_css_variables(full_html: str) -> None:
    for svg in re.findall(r'<svg role="img".*?</svg>', full_html, re.DOTALL):
        assert not re.search(r"#[0-9a-f]{6}\b", svg), re.findall(r"#[0-9a-f]{6}\b", svg)[:3]
    used = set(re.findall(r"var\(--([\w-]+)\)", full_html))
    defined = set(re.findall(r"--([\w-]+):", full_html))
    assert used <= defined


def test_report_chart_text_does_not_use_default_plot_font(full_html: str) -> None:
    for svg in re.findall(r'<svg role="img".*?</svg>', full_html, re.DOTALL):
        assert "DejaVu" not in svg
        assert "<text" in svg


def test_report_html_is_smaller_than_1_5_megabytes(full_html: str) -> None:
    assert len(full_html.encode()) < 1_500_000


def test_report_html_escapes_markup_in_names_and_settings(tmp_path: Path) -> None:
    evil = '<script>alert("&")</script>'
    one = manifest(device=evil, os=evil, draftd=evil, python=evil, settings={evil: evil}, models=_models(evil))
    stages = (Stage.SWEEP, Stage.SOAK)
    folder = synthetic_run(
        tmp_path / "evil", name=evil, stages=stages, manifests=(one,), left_out={evil: evil}, **SMALL, soak_seconds=60
    )
    page = html(report(folder, not_judged(evil, spec=evil, run=evil), other=folder))
    tree = parsed(page)
    assert page.count(escape(evil)) >= 20
    assert not tree.all("script")
    assert not tree.wrong


def _models(name: str) -> dict[str, ModelManifest]:
    return {"target": ModelManifest(name, name, 1, (ModelFile(name, name, 1, name),), changed_since_load=True)}


def test_report_html_rendering_is_deterministic(full_report: dict[str, Any], full_html: str) -> None:
    assert html(full_report) == full_html


def test_report_chart_label_keeps_digits_and_dollar_signs_verbatim() -> None:
    found = lines("one", [Series("0.01234 & $5 < $6", "second", [0, 1], [0.0123456, 1])], across="x", up="y")
    assert ">0.01234 &amp; $5 &lt; $6</text>" in found.drawing


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours as WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_report_palette_has_sufficient_contrast_in_light_and_dark_theme(theme: int) -> None:
    colour = {name: pair[theme] for name, pair in PALETTE.items()}
    for ground in ("paper", "card", "raised"):
        for ink in ("ink", "quiet", "accent"):
            assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)
    for tone in ("good", "bad", "unproven", "absent"):
        for ground in (f"{tone}-wash", "card"):
            assert contrast(colour[tone], colour[ground]) >= 4.5, (tone, ground)
        assert contrast(colour["ink"], colour[f"{tone}-wash"]) >= 4.5
    for series in SERIES:
        assert contrast(colour[series], colour["card"]) >= 3, series
