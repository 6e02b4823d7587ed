"""`draftd freeze`: writes or checks a daemon's manifest: its models, programs and machine, with a checksum of every
file."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from draftd.cli import options, output
from draftd.cli.figures import size
from draftd.client.client import DraftdClient
from draftd.client.prompts import Prompt
from draftd_acceptance.commands import runs
from draftd_acceptance.folder import parse_json, to_json
from draftd_acceptance.manifest import Difference, Manifest, differences, take_manifest
from draftd_acceptance.options import SweepOptions
from draftd_acceptance.sweep.plan import NothingToMeasure, chosen_prompts
from draftd_acceptance.ticks import Stage

_SHOWN_DIGITS = 12  # of a checksum, on a terminal
_ROLES = ("target", "draft", "draft_head", "light_draft")


@options.with_options(
    "draftd freeze --target 127.0.0.1:50551 --out manifest.json",
    "draftd freeze --target 127.0.0.1:50551 --check manifest.json",
    "draftd freeze --run draftd-runs/mine",
)
def command(
    which: runs.DaemonChoice,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="File to write the manifest to.")
    ] = None,
    check: Path | None = runs.option("--check", "FILE", "File of an earlier manifest to compare with."),
    run: Path | None = runs.option("--run", "FOLDER", "Run to keep the manifest in, created if missing. Unset: none."),
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
) -> None:
    """Write the manifest of a daemon: its model files, programs, machine, settings, and the prompts of a sweep.

    The figures of two runs can be compared if their manifests agree in all relevant fields. With --check, exits 1 if a
    relevant field differs. A run that has a manifest refuses one that differs in a relevant field.

    The first time, all model files are hashed: ten gigabytes take about ten seconds.
    """
    before = None if check is None else parse_json(Manifest, check.read_bytes(), str(check))
    folder = None
    if run is not None:
        folder, which = runs.open_run(run, which)
    with _client(which) as client:
        prompts = _prompts(client)
        if folder is None:
            now = take_manifest(client, runs.checksums_by_stage(prompts), timeout=timeout)
        else:
            number = runs.begin(client, folder, prompts).number
            now = folder.manifests()[number]
    if out is not None:
        out.write_text(to_json(now), encoding="utf-8")
    differing = () if before is None else differences(before, now)
    differs = any(difference.matters for difference in differing)
    if json:
        said = {"same": not differs, "differences": [asdict(difference) for difference in differing]}
        print(to_json(now).rstrip() if before is None else jsonlib.dumps(said))
    elif before is None:
        output.print_fields(lines(now), 14)
    else:
        _print_differences(differing, str(check))
    for role, difference in now.models.items():
        if difference.changed_since_load:
            output.complain(f"{role}: a file has changed since it was loaded; load it again before you measure")
    if differs:
        raise typer.Exit(1)


def _print_differences(differing: Sequence[Difference], check: str) -> None:
    mattering = sum(difference.matters for difference in differing)
    if differing:
        rows = [
            (difference.field, _short(difference.left), _short(difference.right), "yes" if difference.matters else "no")
            for difference in differing
        ]
        output.print_table(("field", check, "now", "matters"), rows)
    unlike = f"relevant fields differ from {check}: {mattering} of {len(differing)} differences"
    output.say(unlike if mattering else f"no relevant difference from {check}")


def _client(which: runs.DaemonChoice) -> AbstractContextManager[DraftdClient]:
    """Returns a client to use in a `with` block: of a daemon that is started, or of the running one at `which.target`.
    A running daemon is used as it is: unlike in a measurement, its fallback level may change."""
    if which.target is None:
        return runs.measured_client(which, block_length=max(SweepOptions().block_lengths))
    return options.DaemonOptions(which.target, which.token, which.tls_ca).connect()


def _prompts(client: DraftdClient) -> Mapping[Stage, Sequence[Prompt]]:
    """Returns the prompts of a sweep with default options; empty if none fits the model's context."""
    try:
        return {Stage.SWEEP: chosen_prompts(SweepOptions(), client.model())}
    except NothingToMeasure:
        return {}


def lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Returns names and values in the order of interest. An empty name continues the line above."""
    packages = ", ".join(f"{name} {version}" for name, version in manifest.packages.items())
    power = [manifest.power_source] if manifest.power_source else []
    power += ["low-power mode"] if manifest.low_power else []
    rows = [
        ("draftd", f"{manifest.draftd}, Python {manifest.python}"),
        ("packages", packages),
        ("machine", f"{manifest.device}, {manifest.cores} cores, {size(manifest.memory_bytes)}; {manifest.os}"),
        ("backend", f"{manifest.backend}; {manifest.blas}" if manifest.blas else manifest.backend),
        *([("power", ", ".join(power))] if power else []),
    ]
    if manifest.exactness is not None:
        rows.append(("exactness", manifest.exactness.in_words()))
    for role, model in sorted(manifest.models.items(), key=lambda one: _ROLES.index(one[0])):
        quantization = "no quantisation" if model.quantization == "none" else model.quantization
        form = f"{model.form}; " if model.form else ""
        description = f"{model.name} ({form}{quantization}, {size(model.weight_bytes)} in memory)"
        rows.append((role.replace("_", " "), description))
        rows += [("", f"{file.sha256}  {file.name} ({size(file.bytes)})") for file in model.files]
    rows += [("prompts" if not i else "", f"{sha}  {name}") for i, (name, sha) in enumerate(manifest.prompts.items())]
    return rows


def _short(value: str) -> str:
    """Returns a checksum's beginning, and any other value unchanged."""
    digest = len(value) == 64 and all(digit in "0123456789abcdef" for digit in value)
    return f"{value[:_SHOWN_DIGITS]}…" if digest else value
