"""`draftd doctor`: is everything here that serving needs?"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from draftd.cli import checks, fallback_checks, options, terminal
from draftd.cli.checks import Finding, Verdict
from draftd.cli.overrides import parse_assignments
from draftd.errors import ConfigError
from draftd.settings import load_settings

_STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.BAD: "bold red"}


def command(
    model: Annotated[str | None, typer.Option("--model", help="As for serve.")] = None,
    draft_model: Annotated[str | None, typer.Option("--draft-model", help="As for serve.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="As for serve.")] = None,
    config: options.Config = None,
    assignments: options.Assignments = None,
    json: options.Json = False,
) -> None:
    """Check BLAS or Metal, memory, model files, ports, folders and the collector. Exits 1 when something is wrong.

    [bold]Examples[/]

    [dim]$[/] draftd doctor

    [dim]$[/] draftd doctor --model ./Qwen3-8B-4bit --draft-model ./Qwen3-0.6B-4bit

    [dim]$[/] draftd doctor --config /etc/draftd.toml --json
    """
    overrides: dict[str, object] = {
        "model.path": model,
        "model.draft_path": draft_model,
        "server.port": port,
    }
    overrides |= parse_assignments(assignments or [])
    findings = examine(config, overrides)
    if json:
        import json as jsonlib

        print(jsonlib.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        _show(findings)
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise typer.Exit(1)


def examine(config: Path | None, overrides: dict[str, object]) -> list[Finding]:
    """All checks; those of settings are left out when the settings themselves are wrong."""
    findings = [checks.check_mlx(), checks.check_blas()]
    try:
        settings = load_settings(config, overrides, os.environ)
    except ConfigError as error:
        return [*findings, Finding("settings", Verdict.BAD, error.message, "correct or remove it")]
    findings.append(Finding("settings", Verdict.OK, "flags, DRAFTD_* variables and file are in order"))
    findings += checks.check_models(settings)
    findings += [checks.check_memory(settings), checks.check_port(settings), checks.check_flag(settings)]
    findings += [fallback_checks.check_webhook(settings), fallback_checks.check_state(settings, os.environ)]
    return findings + checks.check_collectors(os.environ)


def _show(findings: list[Finding]) -> None:
    out = terminal.stdout()
    for finding in findings:
        style = _STYLES[finding.verdict]
        out.print(f"[{style}]{finding.verdict:<4}[/] [bold]{finding.subject:<12}[/]", end=" ")
        out.print(finding.found, markup=False, soft_wrap=True)
        if finding.mend:
            out.print(" " * 18 + f"mend: {finding.mend}", markup=False, soft_wrap=True)
