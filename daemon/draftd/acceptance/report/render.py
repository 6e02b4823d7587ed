"""The report as files, in the run's own folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftd.acceptance.cost import CostRates
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.gate.judge import Verdict
from draftd.acceptance.report.html import html
from draftd.acceptance.report.markdown import markdown
from draftd.acceptance.report.page import page


@dataclass(frozen=True, slots=True)
class Written:
    """The files."""

    html: Path
    markdown: Path


def write_report(
    run: Path, verdict: Verdict, *, against: Path | None = None, prices: CostRates | None = None
) -> Written:
    """Writes report.html and report.md into the run, which `verdict` is of. `against` is a run to set beside it;
    `prices` count where the run's manifest names none. Raises RunError."""
    folder = RunFolder.open(run)
    other = None if against is None else RunFolder.open(against)
    made = page(folder, verdict, other=other, prices=prices)
    return Written(folder.write("report.html", html(made)), folder.write("report.md", markdown(made)))
