"""The page in a real browser, on a telephone and on a desk, by day and by night: nothing cut, nothing overlaps."""

from __future__ import annotations

import json
import re
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from tests.stack.components import browser_binary

pytestmark = pytest.mark.slow

# Inspects the page's layout from a frame of the wanted width.
_LOOK = """
function look(frame) {
  const page = frame.contentDocument, window_ = frame.contentWindow, wrong = [];
  const fetched = [performance, window_.performance].map(one => one.getEntriesByType("resource").length);
  const seen = {asked: fetched[0] + fetched[1]};
  if (page.documentElement.scrollWidth > window_.innerWidth) wrong.push("the page is wider than the window");
  const boxes = [];
  for (const svg of page.querySelectorAll("svg.chart")) {
    const outer = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")];
    if (outer.width < 200) wrong.push("a chart is " + outer.width + " wide");
    const name = svg.querySelector("title").textContent;
    const placed = texts.map(text => [text.textContent.trim(), text.getBoundingClientRect()]);
    for (const [said, box] of placed)
      if (Math.min(box.left - outer.left, outer.right - box.right, box.top - outer.top, outer.bottom - box.bottom) < -1)
        wrong.push("cut: " + said + " of " + name);
    for (let i = 0; i < placed.length; i++) for (let j = 0; j < i; j++) {
      const [one, a] = placed[i], [other, b] = placed[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 2) wrong.push("overlap: " + one + " / " + other + " of " + name);
    }
    const scale = outer.width / svg.viewBox.baseVal.width;
    for (const text of texts)
      if (parseFloat(window_.getComputedStyle(text).fontSize) * scale < 9) wrong.push("too small: " + text.textContent);
  }
  for (const one of page.querySelectorAll("h1, h2, h3, p, dd, dt, li, .badge, .tile .value")) {
    const box = one.getBoundingClientRect();
    if (box.width && (box.right > window_.innerWidth + 1 || one.scrollWidth > one.clientWidth + 2 && one.clientWidth))
      wrong.push("cut: " + one.textContent.trim().slice(0, 60));
  }
  const inside = one => [...page.querySelectorAll(one)].some(found => found.getBoundingClientRect().height > 0);
  seen.list = [inside("nav.contents .side"), inside("nav.contents details")];
  for (const note of page.querySelectorAll(".note")) {
    const box = note.getBoundingClientRect(), before = note.previousElementSibling.getBoundingClientRect();
    const beside = note.parentElement.getBoundingClientRect();
    if (box.top - before.bottom < 12 || box.left < 16 || box.right > beside.right)
      wrong.push("a note without a margin: " + note.textContent.trim().slice(0, 60));
  }
  seen.charts = page.querySelectorAll("svg.chart").length;
  seen.paper = window_.getComputedStyle(page.body).backgroundColor;
  const line = page.querySelector("#chart-throughput svg.chart path[style*=speculative]");
  seen.line = window_.getComputedStyle(line).stroke;
  page.querySelector("#theme-dark").checked = true;
  seen.dark = window_.getComputedStyle(page.body).backgroundColor;
  page.querySelector("#theme-light").checked = true;
  seen.light = window_.getComputedStyle(page.body).backgroundColor;
  seen.wrong = wrong;
  document.getElementById("seen").textContent = JSON.stringify(seen);
}
"""


def seen(page: str, folder: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """Returns the measurements that a browser takes of the page in a window of this width."""
    outer = folder / f"{width}.html"
    outer.write_text(
        f"<!doctype html><meta charset=utf-8><script>{_LOOK}</script><pre id=seen></pre>"
        f'<iframe style="width:{width}px;height:900px;border:0" onload="look(this)" srcdoc="{escape(page)}"></iframe>',
        encoding="utf-8",
    )
    command = [
        browser_binary(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--window-size=1600,1000",
        "--dump-dom",
        outer.as_uri(),
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="seen">(.+?)</pre>', said, re.DOTALL)
    assert found, said[:500]
    return dict(json.loads(unescape(found[1])))


@pytest.mark.parametrize("width", [400, 1400])
def test_report_page_makes_no_network_request_and_has_no_cut_or_overlapping_text(
    full_html: str, tmp_path: Path, width: int
) -> None:
    page = seen(full_html, tmp_path, width)
    assert page["wrong"] == []
    assert page["charts"] >= 18
    assert page["asked"] == 0
    assert page["list"] == [width == 1400, width == 400]


def test_report_page_follows_system_colour_scheme_and_theme_switch_overrides_it(full_html: str, tmp_path: Path) -> None:
    day, night = seen(full_html, tmp_path, 1000), seen(full_html, tmp_path, 1000, dark=True)
    assert (day["paper"], night["paper"]) == ("rgb(251, 250, 247)", "rgb(21, 23, 27)")
    assert day["line"] == "rgb(31, 95, 174)"
    assert night["line"] == "rgb(111, 168, 245)"
    for page in (day, night):
        assert (page["light"], page["dark"]) == (day["paper"], night["paper"])
