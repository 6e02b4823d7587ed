"""The page as one file: no script, nothing fetched."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, StrictUndefined

from draftd.acceptance.report.blocks import Page
from draftd.acceptance.report.palette import SERIES, style_sheet

_SHAPES = (
    "M9 2h8v8H9z",
    "M13 1.6a4.4 4.4 0 1 0 .01 0z",
    "M13 1l5 9.4H8z",
    "M13 .8 18.2 6 13 11.2 7.8 6z",
    "M13 11l5-9.4H8z",
)
_PLUS = "M11 1h4v3h3v4h-3v3h-4V8H8V4h3z"


def html(page: Page) -> str:
    here = resources.files("draftd.acceptance.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((here / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        style=style_sheet() + (here / "style.css").read_text(encoding="utf-8"),
        shapes=dict(zip(SERIES, (*_SHAPES, _PLUS), strict=True)),
        kind_of=lambda block: type(block).__name__,
    )
