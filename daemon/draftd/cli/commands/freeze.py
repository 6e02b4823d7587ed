"""`draftd freeze`: what is served, by what and on what, to the last byte, for others to check."""

from __future__ import annotations

import contextlib
import json as jsonlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftd.acceptance.ticks import Stage
from draftd.cli import measuring, options, runs, terminal
from draftd.cli.figures import size

if TYPE_CHECKING:
    from draftd.acceptance.manifest import Difference, Manifest, ModelManifest

_SHOWN_DIGITS = 12  # of a checksum, on a terminal
_ROLES = ("target", "draft", "light_draft")


def command(
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the manifest there.")] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FILE", help="Compare with a manifest that was written before.")
    ] = None,
    run: runs.Run = None,
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
    target: measuring.Target = None,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
    model: measuring.Model = None,
    draft_model: measuring.DraftModel = None,
    config: options.Config = None,
    assignments: options.Assignments = None,
) -> None:
    """Take the manifest of a daemon: its models' files, programs, machine, settings, and the prompts of a sweep.

    Figures can be compared where what matters of their manifests is the same. With --check it exits 1 where something
    that matters differs. With --run it is kept in a run, which then goes on with nothing else.

    The first time, all files of the models are hashed: ten gigabytes take some ten seconds.

    [bold]Examples[/]

    [dim]$[/] draftd freeze --target 127.0.0.1:50551 --out manifest.json

    [dim]$[/] draftd freeze --target 127.0.0.1:50551 --check manifest.json

    [dim]$[/] draftd freeze --run draftd-runs/mine
    """
    from draftd.acceptance.freezing import from_json, to_json
    from draftd.acceptance.manifest import differences

    before = None if check is None else from_json(check.read_bytes(), str(check))
    which = measuring.Which(target, token, tls_ca, model, draft_model, config, tuple(assignments or ()))
    now = _kept(run, which) if run is not None else _taken(which, timeout)
    if out is not None:
        out.write_text(to_json(now), encoding="utf-8")
    found = () if before is None else differences(before, now)
    differs = any(one.matters for one in found)
    if json:
        said = {"same": not differs, "differences": [asdict(one) for one in found]}
        print(to_json(now).rstrip() if before is None else jsonlib.dumps(said))
    elif before is None:
        _show(now)
    else:
        _compare(found, str(check))
    for role, one in now.models.items():
        if one.changed_since_load:
            terminal.complain(f"{role}: a file is no longer what was loaded; load it anew before anything is measured")
    if differs:
        raise typer.Exit(1)


def _taken(which: measuring.Which, timeout: float) -> Manifest:
    from draftd.acceptance.freezing import take_manifest

    with _daemon(which) as daemon:
        return take_manifest(daemon.client, runs.by_stage(_prompts(daemon)), timeout=timeout)


def _kept(run: Path, which: measuring.Which) -> Manifest:
    """In the run, as that of a session. Raises RunError where the run was begun with something else."""
    folder, which = runs.open_run(run, which)
    with _daemon(which) as daemon:
        session = runs.begin(daemon, folder, _prompts(daemon))
    return folder.manifests()[session.number]


@contextlib.contextmanager
def _daemon(which: measuring.Which) -> Iterator[measuring.Measured]:
    """A running one is only asked: its ladder may stand where it likes."""
    from draftd.acceptance.sweep.options import SweepOptions
    from draftd.client.asking import connect

    if which.target is None:
        with measuring.measured(which, block_length=max(SweepOptions().block_lengths)) as daemon:
            yield daemon
        return
    with connect(which.target, which.token, which.tls_ca) as client:
        yield measuring.Measured(client, client.model(), own=False)


def _prompts(daemon: measuring.Measured) -> dict[Stage, dict[str, str]]:
    """Checksums of what a sweep asks of this model where it is told nothing else; of none where none fits."""
    from draftd.acceptance.sweep.options import SweepOptions
    from draftd.acceptance.sweep.plan import NothingToMeasure, chosen_prompts
    from draftd.acceptance.sweep.prompts import checksums

    try:
        return {Stage.SWEEP: checksums(chosen_prompts(SweepOptions(), daemon.model))}
    except NothingToMeasure:
        return {}


def _show(manifest: Manifest) -> None:
    out = terminal.stdout()
    for name, value in lines(manifest):
        out.print(f"[bold]{name:<14}[/]", end=" ")
        out.print(value, markup=False, soft_wrap=True)


def lines(manifest: Manifest) -> list[tuple[str, str]]:
    """Name and value, in the order a person asks. A name that is empty belongs to the one above."""
    packages = ", ".join(f"{name} {version}" for name, version in manifest.packages.items())
    power = [manifest.power_source] if manifest.power_source else []
    power += ["low-power mode"] if manifest.low_power else []
    made = [
        ("draftd", f"{manifest.draftd}, Python {manifest.python}"),
        ("packages", packages),
        ("machine", f"{manifest.device}, {manifest.cores} cores, {size(manifest.memory_bytes)}; {manifest.os}"),
        ("backend", f"{manifest.backend}; {manifest.blas}" if manifest.blas else manifest.backend),
        *([("power", ", ".join(power))] if power else []),
    ]
    for role, model in sorted(manifest.models.items(), key=lambda one: _ROLES.index(one[0])):
        made.append((role.replace("_", " "), _model(model)))
        made += [("", f"{file.sha256}  {file.name} ({size(file.bytes)})") for file in model.files]
    made += [("prompts" if not i else "", f"{sha}  {name}") for i, (name, sha) in enumerate(manifest.prompts.items())]
    return made


def _model(model: ModelManifest) -> str:
    quantization = "no quantisation" if model.quantization == "none" else model.quantization
    return f"{model.name} ({quantization}, {size(model.weight_bytes)} in memory)"


def _compare(found: Sequence[Difference], source: str) -> None:
    out = terminal.stdout()
    differ = sum(one.matters for one in found)
    if found:
        rows = [(one.field, _short(one.left), _short(one.right), "yes" if one.matters else "no") for one in found]
        out.print(terminal.table(out, ("field", source, "now", "matters"), rows))
    differs = f"what matters is not as in {source}: {differ} of {len(found)} differences"
    out.print(differs if differ else f"all that matters is as in {source}", markup=False, soft_wrap=True)


def _short(value: str) -> str:
    """A checksum by its beginning."""
    digest = len(value) == 64 and all(digit in "0123456789abcdef" for digit in value)
    return f"{value[:_SHOWN_DIGITS]}…" if digest else value
