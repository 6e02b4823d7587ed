"""The pages generated from the catalog and the settings are complete and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftd.settings import describe_settings
from draftd.telemetry import catalog, catalog_spans
from scripts import pages

ROOT = Path(__file__).parents[2]


def test_generated_documentation_check_detects_outdated_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    assert pages.main(["--check"]) == 1
    assert pages.main([]) == pages.main(["--check"]) == 0
    for page in pages.PAGES:
        assert page.read_text() == (ROOT / page).read_text(), "run make docs"
        page.write_text(page.read_text() + "one more line")
    assert pages.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert all(f"{page} is out of date" in said for page in pages.PAGES)


def test_generated_telemetry_page_names_every_metric_span_event_and_attribute() -> None:
    page = pages.telemetry()
    for thing in (*catalog.METRICS, *catalog_spans.SPANS, *catalog_spans.EVENTS):
        assert f"`{thing.name}`" in page  # type: ignore[attr-defined]
        assert all(f"| `{attribute.name}` |" in page for attribute in thing.attributes)  # type: ignore[attr-defined]
    for metric in catalog.METRICS:
        assert f"`{metric.prometheus}" in page


def test_generated_configuration_page_names_every_setting() -> None:
    page = pages.configuration()
    assert all(f"| `{doc.name}` |" in page for doc in describe_settings())
