"""Which run is worked on: one that is gone on with, or a new one."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftd.acceptance.folder import RunError, RunFolder
from draftd.acceptance.freezing import take_manifest
from draftd.acceptance.manifest import differences
from draftd.acceptance.ticks import Stage
from draftd.cli import terminal
from draftd.cli.measuring import Measured, Which, measured
from draftd.cli.progress import progress

if TYPE_CHECKING:
    from draftd.acceptance.session import Progress, Session

_RUNS = Path("draftd-runs")

Run = Annotated[
    Path | None,
    typer.Option("--run", metavar="FOLDER", help="Where the run is kept. One that is there is gone on with."),
]


def open_run(path: Path | None, which: Which) -> tuple[RunFolder, Which]:
    """The run at `path`, gone on with where it is there already, with the daemon that it was begun with where none is
    named; else a new one, beside the others where none is named. Raises RunError."""
    if path is not None and (path / "run.json").exists():
        folder = RunFolder.open(path)
        return folder, which if which.named else which.remembered(folder.daemon)
    served = which.target or Path(which.settings().model.path or "nano").name
    label = re.sub(r"[^A-Za-z0-9.]+", "-", served).strip("-")
    folder = RunFolder.create(path or _RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{label}", daemon=which.memory())
    return folder, which


def by_stage(prompts: Mapping[Stage, Mapping[str, str]]) -> dict[str, str]:
    """The checksum of each group's prompts by stage: two stages may ask other prompts of a group."""
    return {f"{stage}.{group}": checksum for stage, groups in prompts.items() for group, checksum in groups.items()}


def begin(daemon: Measured, folder: RunFolder, prompts: Mapping[Stage, Mapping[str, str]]) -> Session:
    """Freezes what is measured. Raises RunError where what matters is no longer what the run began with.

    `prompts` is the checksum of each group's prompts.
    """
    from draftd.acceptance.session import Session

    manifest = take_manifest(daemon.client, by_stage(prompts))
    for number, earlier in folder.manifests().items():
        for one in differences(earlier, manifest):
            if one.matters:
                allowed = f"{one.left!r}, as in session {number}; measure what has changed in a run of its own"
                raise RunError(f"{folder.path}: {one.field}", one.right, allowed)
    return Session(daemon.client, folder, folder.begin_session(manifest))


@contextlib.contextmanager
def at_work(command: str, folder: RunFolder, which: Which, *, block_length: int) -> Iterator[tuple[Measured, Progress]]:
    """The daemon, and whom to tell of the progress. Where it is stopped, `draftd command` goes on.

    `block_length` is the longest that will be asked for.
    """
    try:
        with measured(which, block_length=block_length) as daemon, progress() as say:
            yield daemon, say
    except KeyboardInterrupt:
        terminal.complain(f"stopped; what was measured is kept: go on with draftd {command} --run {folder.path}")
        raise
