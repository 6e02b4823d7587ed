"""The daemon that a command measures, the run that keeps the results, and the progress that it shows."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from draftd.cli import options, output
from draftd.cli.own_daemon import measured_daemon
from draftd.client.client import DraftdClient
from draftd.client.prompts import Prompt
from draftd.client.signals import handle_signals
from draftd_acceptance.cost import CostRates
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.manifest import differences, take_manifest
from draftd_acceptance.options import Options, SweepOptions
from draftd_acceptance.quality import quality_complete, quality_prompts, run_quality
from draftd_acceptance.session import Advance, Progress, Session, hold_ladder
from draftd_acceptance.soak import run_soak, soak_complete
from draftd_acceptance.sweep.plan import checksums, chosen_prompts, run_sweep, sweep_complete
from draftd_acceptance.ticks import Stage

_KEPT = ("target", "model", "draft_model", "config", "assignments")
_RUNS = Path("draftd-runs")
_READY_SECONDS = 60.0
_EXACTNESS_SECONDS = 60.0  # the longest wait for a daemon's measurement
_LOOK_SECONDS = 0.2
_REPORT_SECONDS = 30.0  # between two lines of progress where there is no terminal

Run = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="FOLDER",
        help="Folder of the run. An existing run continues with its own options. Unset: a new folder in draftd-runs.",
    ),
]


def option(name: str, metavar: str, text: str, panel: str | None = None) -> Any:
    """Returns an option that is None if it is not given: then the run's option holds, or the default in the help."""
    return typer.Option(None, name, metavar=metavar, help=text, rich_help_panel=panel, show_default=False)


stage_option = partial(option, panel="What to measure")


@dataclass(frozen=True)
class DaemonChoice(options.ServeOptions):
    """The daemon to measure: a running one at `target`, or one of its own from the same settings as `draftd serve`."""

    target: Annotated[
        str | None,
        options.which_daemon(
            "--target",
            envvar="DRAFTD_TARGET",
            help="host:port of a running daemon to measure. Unset: a daemon is started for the run.",
        ),
    ] = None
    token: options.Token = field(default=None, repr=False)
    tls_ca: options.TlsCa = None

    @property
    def named(self) -> bool:
        return any(getattr(self, name) for name in _KEPT)

    def memory(self) -> dict[str, Any]:
        """Returns the choice for run.json, without the token."""
        return {name: getattr(self, name) for name in _KEPT} | {"config": self.config and str(self.config)}

    def recall(self, memory: Mapping[str, Any]) -> DaemonChoice:
        """Returns this choice with the daemon that a run was begun with."""
        config = memory.get("config")
        return replace(self, **{name: memory.get(name) for name in _KEPT} | {"config": config and Path(config)})


@contextlib.contextmanager
def measured_client(which: DaemonChoice, *, block_length: int = 0) -> Iterator[DraftdClient]:
    """Yields a client of a daemon that is ready to serve. `block_length` is the longest that will be requested; a
    daemon started for the run allows it."""
    with contextlib.ExitStack() as stack:
        # SIGTERM ends a run as Ctrl-C does, so that its daemon is not left running. SIGINT is set too: a shell that
        # starts the command in the background makes it ignored.
        stack.enter_context(handle_signals(dict.fromkeys((signal.SIGTERM, signal.SIGINT), signal.default_int_handler)))
        if which.target is None:
            daemon = options.DaemonOptions(stack.enter_context(measured_daemon(which.settings(), block_length)).address)
        else:
            daemon = options.DaemonOptions(which.target, which.token, which.tls_ca)
        client = stack.enter_context(daemon.connect())
        client.wait_until_loaded(_READY_SECONDS)  # waits while it loads; no daemon is an error at once
        if which.target is not None:
            stack.enter_context(hold_ladder(client))
        else:
            _wait_for_exactness(client)
        yield client


def _wait_for_exactness(client: DraftdClient) -> None:
    """Waits until an idle daemon has measured its model's exactness: the manifest then has it, and no measurement of
    the daemon's own runs between the requests of a stage."""
    deadline = time.monotonic() + _EXACTNESS_SECONDS
    with output.stderr().status("waiting until the daemon has measured its exactness"):
        while time.monotonic() < deadline:
            status = client.status()
            if status.HasField("exactness") or status.HasField("group"):  # several ranks are not measured
                return
            time.sleep(_LOOK_SECONDS)


def prices(which: DaemonChoice) -> CostRates | None:
    """Returns the machine's costs from the settings; None if they name none."""
    costs = {f"cost.{name}": str(value) for name, value in which.settings().cost if value is not None}
    return CostRates.from_settings(costs)


def open_run(path: Path | None, which: DaemonChoice) -> tuple[RunFolder, DaemonChoice]:
    """Opens the run at `path`, or creates one, by default in draftd-runs. An existing run that is continued without a
    named daemon uses the one it was begun with. Raises RunError."""
    if path is not None and (path / "run.json").exists():
        folder = RunFolder.open(path)
        return folder, which if which.named else which.recall(folder.daemon)
    served = which.target or Path(which.settings().model.path or "nano").name
    label = re.sub(r"[^A-Za-z0-9.]+", "-", served).strip("-")
    folder = RunFolder.create(path or _RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{label}", daemon=which.memory())
    return folder, which


def measure_stage(kind: type[Options], options: Mapping[str, Any], path: Path | None, which: DaemonChoice) -> RunFolder:
    """Measures one stage of the run at `path`, or of a new run if `path` is None."""
    kind.resume(None, **options)  # wrong options leave no folder behind
    folder, which = open_run(path, which)
    measure(kind.stage, folder, which, kind.resume(folder.plan(kind.stage), **options))
    return folder


def checksums_by_stage(prompts: Mapping[Stage, Sequence[Prompt]]) -> dict[str, str]:
    """Returns checksums of prompts by "STAGE.GROUP": two stages may use different prompts of a group."""
    return {
        f"{stage}.{group}": checksum
        for stage, frozen in prompts.items()
        for group, checksum in checksums(frozen).items()
    }


def begin(client: DraftdClient, folder: RunFolder, prompts: Mapping[Stage, Sequence[Prompt]]) -> Session:
    """Begins a session with a manifest of the daemon and of each stage's prompts. Raises RunError if a relevant field
    differs from an earlier session's."""
    manifest = take_manifest(client, checksums_by_stage(prompts))
    for number, earlier in folder.manifests().items():
        for difference in differences(earlier, manifest):
            if difference.matters:
                allowed = f"{difference.left!r}, as in session {number}; use a new run after a change"
                raise RunError(f"{folder.path}: {difference.field}", difference.right, allowed)
    return Session(client, folder, folder.begin_session(manifest))


_STAGES: Mapping[Stage, tuple[Callable[..., Any], ...]] = {
    Stage.SWEEP: (chosen_prompts, sweep_complete, run_sweep),
    Stage.SOAK: (lambda options, model: chosen_prompts(SweepOptions(), model), soak_complete, run_soak),
    Stage.QUALITY: (lambda options, model: quality_prompts(options.schemas), quality_complete, run_quality),
}
"""By stage: choose the prompts, by options and model; test whether the run is complete; measure."""


def measure(
    command: str,
    folder: RunFolder,
    which: DaemonChoice,
    *wanted: Options,
    settle: Callable[[Options], Options] = lambda options: options,
) -> None:
    """Measures the missing parts of these stages in turn; starts no daemon if nothing is missing. `settle` adjusts a
    stage's options just before the stage runs. After Ctrl-C the message names `draftd command` to continue."""
    if all(_complete(folder, options) for options in wanted):
        return
    swept = next((one for one in wanted if isinstance(one, SweepOptions)), None)
    # A daemon started for the run allows the sweep's longest block, so that all stages use one and the same.
    longest = (swept or SweepOptions.resume(folder.plan(Stage.SWEEP))).longest_block
    longest = max(longest, *(getattr(one, "block_length", None) or 0 for one in wanted))
    try:
        with measured_client(which, block_length=longest) as client, progress() as advance:
            model = client.model()
            prompts = {one.stage: _STAGES[one.stage][0](one, model) for one in wanted}
            session = begin(client, folder, prompts)
            for options in wanted:
                _STAGES[options.stage][2](session, settle(options), model, advance)
    except KeyboardInterrupt:
        output.complain(f"stopped; what was measured is kept: continue with draftd {command} --run {folder.path}")
        raise


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Shows progress as a bar on a terminal, elsewhere as a line every 30 seconds."""
    console, reported = output.stderr(), dict[Stage, float]()
    columns = (TextColumn("{task.fields[stage]}"), BarColumn(), TextColumn("{task.description}"))
    hidden = not console.is_terminal
    with Bar(*columns, console=console, transient=True, auto_refresh=False, disable=hidden) as bar:
        task = bar.add_task("", stage="")

        def tell(advance: Advance) -> None:
            left, now = time_left(advance.remaining), time.monotonic()
            if not hidden:
                line, done, total = escape(f"{left} · {advance.doing}"), advance.done, advance.total
                bar.update(task, completed=done, total=total, stage=advance.stage, description=line, refresh=True)
            elif now - reported.get(advance.stage, -_REPORT_SECONDS) >= _REPORT_SECONDS:
                reported[advance.stage] = now
                share = advance.done / advance.total if advance.total else 1.0
                console.print(f"{advance.stage}: {share:.0%}, {left}", markup=False)

        yield tell


def time_left(seconds: float | None) -> str:
    """Returns the remaining time for people, such as "about 20 s left", or that it is not known yet (None)."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5)):.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


def _complete(folder: RunFolder, options: Options) -> bool:
    """Whether the stage is measured already, with the same options."""
    plan, done = folder.plan(options.stage), _STAGES[options.stage][1]
    return plan is not None and done(folder) and type(options).from_plan(plan) == options
