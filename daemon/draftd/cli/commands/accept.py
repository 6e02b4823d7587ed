"""`draftd accept`: is this pair, on this machine, fit for production? Everything that answers it, by one command."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from draftd.cli import criteria, measuring, options, runs, terminal
from draftd.cli.failures import explain
from draftd.errors import DraftdError, FieldError

NOT_JUDGED = 2


def command(
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", metavar="COUNT", help="Times that the sweep asks each prompt; 3 if not given."),
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", metavar="SECONDS", help="Of the soak; 600 if not given.")
    ] = None,
    spec: criteria.Spec = None,
    baseline: criteria.Baseline = None,
    may_differ: criteria.MayDiffer = None,
    junit: criteria.Junit = None,
    run: runs.Run = None,
    json: options.Json = False,
    target: measuring.Target = None,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
    model: measuring.Model = None,
    draft_model: measuring.DraftModel = None,
    config: options.Config = None,
    assignments: options.Assignments = None,
) -> None:
    """Freeze, sweep, soak, quality, gate and report, one after another. Exit code 0: promoted; 1: not promoted; 2: not
    judged.

    Takes about 25 minutes with the embedded pair, an hour or more with a large one; it says how long still.
    Ctrl-C loses nothing that was measured: draftd accept --run FOLDER goes on.

    [bold]Examples[/]

    [dim]$[/] draftd accept

    [dim]$[/] draftd accept --model ./Qwen3-8B-4bit --draft-model ./Qwen3-0.6B-4bit

    [dim]$[/] draftd accept --target 127.0.0.1:50551 --junit accept.xml

    [dim]$[/] draftd accept --run draftd-runs/20260131-120000-nano
    """
    from draftd.acceptance.gate.spec import load_spec  # what measures, derives and draws is heavy
    from draftd.cli import accepting, gating

    which = measuring.Which(target, token, tls_ca, model, draft_model, config, tuple(assignments or ()))
    try:
        load_spec(spec)  # what is wrong with it is said now, not in an hour
        folder, which = runs.open_run(run, which)
        accepting.measure(folder, which, {"repetitions": repeat}, {"duration": duration})
        verdict = gating.judge(folder.path, spec, baseline=baseline, may_differ=may_differ or (), junit=junit)
        page = accepting.report(folder, which, verdict)
    except FieldError:
        raise
    except (DraftdError, TimeoutError) as error:
        failure = explain(error)
        terminal.complain(f"not judged: {failure.message if failure else error}")
        raise typer.Exit(NOT_JUDGED) from None
    if json:
        print(jsonlib.dumps({"run": str(folder.path), "report": str(page)} | jsonlib.loads(gating.to_json(verdict))))
    else:
        gating.show(verdict)
        terminal.stdout().print(str(page), markup=False, soft_wrap=True)
    if verdict.decision.exit_code:
        raise typer.Exit(verdict.decision.exit_code)
