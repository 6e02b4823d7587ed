"""`draftd gate`: is what a run measured good enough? The answer is an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftd.cli import criteria, options
from draftd.errors import FieldError


def command(
    run: Annotated[Path | None, typer.Option("--run", metavar="FOLDER", help="The run to judge.")] = None,
    spec: criteria.Spec = None,
    baseline: criteria.Baseline = None,
    may_differ: criteria.MayDiffer = None,
    junit: criteria.Junit = None,
    json: options.Json = False,
    print_spec: Annotated[
        bool, typer.Option("--print-spec", help="Print the shipped criteria, to begin one's own with.")
    ] = False,
) -> None:
    """Hold a run against a spec. Exit code 0: promoted; 1: not promoted; 2: not judged.

    Each criterion passes, fails, has too few samples, was not measured, or is excused where a machine cannot be asked
    and the spec lets that pass. A run whose manifests differ in what matters is not judged. It all is in its gate.json.

    [bold]Examples[/]

    [dim]$[/] draftd gate --run draftd-runs/tonight

    [dim]$[/] draftd gate --run draftd-runs/tonight --spec ours.toml --junit gate.xml

    [dim]$[/] draftd gate --run draftd-runs/new --spec ours.toml --baseline draftd-runs/old --may-differ models.draft
    """
    from draftd.cli import gating  # what derives is heavy, and no other command needs it

    if print_spec:
        print(gating.shipped(), end="")
        return
    if run is None:
        raise FieldError("--run", None, "the folder of a run, as draftd sweep, soak, quality and accept write it")
    verdict = gating.judge(run, spec, baseline=baseline, may_differ=may_differ or (), junit=junit)
    if json:
        print(gating.to_json(verdict))
    else:
        gating.show(verdict)
    if verdict.decision.exit_code:
        raise typer.Exit(verdict.decision.exit_code)
