"""`draftd report`: what a run came to, as one page to look at, and as Markdown."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from draftd.cli import criteria, measuring, options, terminal
from draftd.errors import FieldError


def command(
    run: Annotated[Path | None, typer.Option("--run", metavar="FOLDER", help="The run to report on.")] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FOLDER", help="Another run, to set beside it.")
    ] = None,
    spec: criteria.Spec = None,
    baseline: criteria.Baseline = None,
    may_differ: criteria.MayDiffer = None,
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Write a run's report.html and report.md: the verdict, then what it rests on, all derived anew from its raw ticks.

    The page is one file, without scripts, and fetches nothing. What was not measured is said to be so. Prices are those
    that the daemon had in its settings ([bold]cost.per_hour[/], or [bold]cost.watts[/] and [bold]cost.tariff[/]); where
    it had none, those of --config and the environment.

    [bold]Examples[/]

    [dim]$[/] draftd report --run draftd-runs/tonight

    [dim]$[/] draftd report --run draftd-runs/new --against draftd-runs/old
    """
    from draftd.acceptance.gate.document import document
    from draftd.acceptance.gate.gating import judge_run
    from draftd.acceptance.gate.spec import load_spec
    from draftd.acceptance.report.writing import write_report  # derives and draws: too slow to load for every command

    if run is None:
        raise FieldError("--run", None, "the folder of a run, as draftd sweep, soak, quality and accept write it")
    verdict = judge_run(run, load_spec(spec), baseline=baseline, may_differ=may_differ or ())
    prices = measuring.prices(measuring.Which(config=config).settings())
    written = write_report(run, verdict, against=against, prices=prices)
    if json:
        files = {"html": str(written.html), "markdown": str(written.markdown)}
        print(jsonlib.dumps({**files, "verdict": document(verdict)}, ensure_ascii=False))
        return
    out = terminal.stdout()
    out.print(verdict.sentence, markup=False, soft_wrap=True)
    out.print(str(written.html), markup=False, soft_wrap=True)
    out.print(str(written.markdown), markup=False, soft_wrap=True)
