"""Lays out a dashboard on its grid and writes the picture."""

from __future__ import annotations

import time
from pathlib import Path

from dashboards.panels import COLUMNS
from dashboards.render import theme
from dashboards.render.asking import Shown, Source
from dashboards.render.canvas import WIDTH, Box, Page
from dashboards.render.drawing import Moment, draw
from dashboards.render.reading import Dashboard, Panel

_MARGIN, _HEADER = 14, 74
_LINE, _GAP = 33, 8  # height of a line of the grid, and the space between panels, in pixels


def save(dashboard: Dashboard, source: Source, shown: Shown, path: Path, note: str = "") -> Path:
    """Sends all queries, draws the dashboard and writes a PNG. `note` is shown beside the time. Returns `path`."""
    lines = max(panel.y + panel.height for panel in dashboard.panels)
    page = Page(_HEADER + lines * _LINE + _MARGIN)
    _header(page, dashboard, shown, note)
    moments = list(_moments(dashboard, source, shown))
    for panel in dashboard.panels:
        box = _box(panel)
        if panel.kind == "row":
            page.text(box.x + 4, box.y + box.height / 2 + 2, f"⌄  {panel.title}", 15, weight="bold")
            continue
        page.frame(box)
        page.text(box.x + 10, box.y + 15, panel.title, 13)
        found = [(target, dashboard.ask(target, source, shown)) for target in panel.targets]
        draw(page, box, panel, found, shown, moments)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page.png())
    return path


def _box(panel: Panel) -> Box:
    column = (WIDTH - 2 * _MARGIN + _GAP) / COLUMNS
    return Box(
        _MARGIN + panel.x * column,
        _HEADER + panel.y * _LINE,
        panel.width * column - _GAP,
        panel.height * _LINE - _GAP,
    )


def _header(page: Page, dashboard: Dashboard, shown: Shown, note: str) -> None:
    page.text(_MARGIN + 2, 22, dashboard.title, 20, weight="bold")
    fmt = "%Y-%m-%d %H:%M:%S"
    start, end = (time.strftime(fmt, time.gmtime(when)) for when in (shown.start, shown.end))
    said = f"{start} to {end[11:]} UTC" + (f"   ({note})" if note else "")
    page.text(WIDTH - _MARGIN - 2, 22, said, 12, theme.FAINT, ha="right")
    x = float(_MARGIN + 2)
    for name in dashboard.variables:
        page.text(x, 54, name.capitalize(), 12, theme.FAINT)
        page.text(x + 9 * len(name) + 2, 54, "All ⌄", 12)
        x += 9 * len(name) + 70
    for mark in dashboard.marks:
        page.text(x + 14, 54, "—", 14, theme.color(mark.color), weight="bold")
        page.text(x + 32, 54, mark.name, 12, theme.FAINT)
        x += 50 + 7.5 * len(mark.name)


def _moments(dashboard: Dashboard, source: Source, shown: Shown) -> list[Moment]:
    """Returns the times at which something changed: the first step that shows it."""
    found = []
    for mark in dashboard.marks:
        for series in source.over(shown.put_in(mark.expression, dashboard.variables), shown):
            times = [at for at, _ in series.points]
            starts = [at for before, at in zip([0.0, *times], times, strict=False) if at - before > 2 * shown.step]
            found += [Moment(at, theme.color(mark.color)) for at in starts]
    return found
