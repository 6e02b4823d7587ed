"""`draftd accept`, `draftd gate`, `draftd report`: is this pair, on this machine, fit for production, and why?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from draftd.cli import options, output
from draftd.cli.failures import explain
from draftd.errors import DraftdError, FieldError
from draftd_acceptance.commands import runs
from draftd_acceptance.folder import RunFolder, to_json
from draftd_acceptance.gate import output as shown
from draftd_acceptance.gate.judge import CriterionOutcome, Decision, GateDecision, judge_run, not_judged
from draftd_acceptance.gate.output import document, to_junit
from draftd_acceptance.gate.spec import SpecError, load_spec, shipped_text
from draftd_acceptance.options import Options, QualityOptions, SoakOptions, SweepOptions
from draftd_acceptance.sweep.result import swept_knee
from draftd_acceptance.ticks import Stage

_COLUMNS = ("criterion", "measured", "wanted", "samples", "outcome")
_STYLES = {CriterionOutcome.PASSED: "green", CriterionOutcome.FAILED: "bold red"}  # the others are yellow
_COLOURS = {Decision.PROMOTED: "bold green", Decision.NOT_PROMOTED: "bold red", Decision.NOT_JUDGED: "bold yellow"}


Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Also write the verdict to this file, as JUnit XML.")
]


@dataclass(frozen=True)
class Criteria:
    """The criteria that a run is judged by, and the run that it is compared with."""

    spec: Path | None = runs.option(
        "--spec", "FILE", "TOML file with criteria. Default: those of draftd for production."
    )
    baseline: Path | None = runs.option(
        "--baseline", "FOLDER", "Folder of another run, for criteria that compare with it."
    )
    may_differ: list[str] | None = runs.option(
        "--may-differ",
        "FIELD",
        "Manifest field that may differ from the baseline's, such as models.draft. May be repeated.",
    )


@options.with_options(
    "draftd accept",
    "draftd accept --model ./Qwen3-8B-4bit --draft-model ./Qwen3-0.6B-4bit",
    "draftd accept --target 127.0.0.1:50551 --junit accept.xml",
    "draftd accept --run draftd-runs/20260131-120000-nano",
)
def accept(
    criteria: Criteria,
    which: runs.DaemonChoice,
    repeat: int | None = runs.stage_option("--repeat", "COUNT", "How often the sweep asks each prompt. Default: 3."),
    duration: float | None = runs.stage_option("--duration", "SECONDS", "Length of the soak. Default: 600."),
    junit: Junit = None,
    run: runs.Run = None,
    json: options.Json = False,
) -> None:
    """Judge whether a daemon is fit for production: freeze, sweep, soak, quality, gate and report in turn. Exit code 0:
    promoted; 1: not promoted; 2: not judged.

    Takes about 25 minutes with the embedded pair, an hour or more with large models, and shows the time left. Ctrl-C
    loses nothing that was measured: draftd accept --run FOLDER continues.
    """
    # Fail now and not in an hour: the report's package may be missing, or the spec wrong.
    import_module("draftd_acceptance.report.charts")
    try:
        load_spec(criteria.spec)
        folder, which = runs.open_run(run, which)
        measure(folder, which, {"repetitions": repeat}, {"duration": duration})
        verdict = judge(folder.path, criteria, junit)
        page, _ = _write_report(folder.path, verdict, which)
    except FieldError:
        raise
    except (DraftdError, TimeoutError) as error:
        failure = explain(error)
        output.complain(f"not judged: {failure.message if failure else error}")
        raise typer.Exit(Decision.NOT_JUDGED.exit_code) from None
    if json:
        output.print_json({"run": str(folder.path), "report": str(page)} | document(verdict))
    else:
        show(verdict)
        output.say(str(page))
    raise typer.Exit(verdict.decision.exit_code)


@options.with_options(
    "draftd gate --run draftd-runs/tonight",
    "draftd gate --run draftd-runs/tonight --spec ours.toml --junit gate.xml",
    "draftd gate --run draftd-runs/new --spec ours.toml --baseline draftd-runs/old --may-differ models.draft",
)
def gate(
    criteria: Criteria,
    run: Path | None = runs.option("--run", "FOLDER", "Folder of the run to judge."),
    junit: Junit = None,
    json: options.Json = False,
    print_spec: Annotated[
        bool, typer.Option("--print-spec", help="Print draftd's own criteria, as a start for yours, and exit.")
    ] = False,
) -> None:
    """Judge a run by criteria. Exit code 0: promoted; 1: not promoted; 2: not judged.

    Each criterion passes, fails, has too few samples, was not measured, or is excused, if the machine cannot measure it
    and the criteria allow that. A run whose manifests differ in a relevant field is not judged. Writes gate.json.
    """
    if print_spec:
        print(shipped_text(), end="")
        return
    verdict = judge(_require_run(run), criteria, junit)
    if json:
        output.print_json(document(verdict))
    else:
        show(verdict)
    raise typer.Exit(verdict.decision.exit_code)


@options.with_options(
    "draftd report --run draftd-runs/tonight",
    "draftd report --run draftd-runs/new --against draftd-runs/old",
)
def report(
    criteria: Criteria,
    run: Path | None = runs.option("--run", "FOLDER", "Folder of the run to report on."),
    against: Path | None = runs.option("--against", "FOLDER", "Folder of another run to compare with."),
    config: options.Config = None,
    json: options.Json = False,
) -> None:
    """Write a run's report.html and report.md: the verdict and its reasons, computed from the run's raw measurements.

    The page is one file, without scripts, and fetches nothing. It says what was not measured. Prices are from the
    daemon's settings ([bold]cost.per_hour[/], or [bold]cost.watts[/] and [bold]cost.tariff[/]), or else from --config
    and the environment.
    """
    folder = _require_run(run)
    verdict = judge_run(
        folder, load_spec(criteria.spec), baseline=criteria.baseline, may_differ=criteria.may_differ or ()
    )
    html, markdown = map(str, _write_report(folder, verdict, runs.DaemonChoice(config=config), against))
    if json:
        output.print_json({"html": html, "markdown": markdown, "verdict": document(verdict)})
        return
    for line in (verdict.sentence, html, markdown):
        output.say(line)


def measure(folder: RunFolder, which: runs.DaemonChoice, sweep: Mapping[str, Any], soak: Mapping[str, Any]) -> None:
    """Measures the missing parts of sweep, soak and quality; starts no daemon if nothing is missing. `sweep` and `soak`
    hold the options that the user gave; None keeps the run's own option, or the default."""
    swept = SweepOptions.resume(folder.plan(Stage.SWEEP), **sweep)
    soaked = SoakOptions.resume(folder.plan(Stage.SOAK), **soak)
    examined = QualityOptions.resume(folder.plan(Stage.QUALITY))

    def with_candidate_block(options: Options) -> Options:
        """Returns the options with the candidate's block length: the knee, the shortest that may be as fast as the
        fastest (see `Knee`). If the knee is unknown, or is autoregressive decoding, it is the sweep's base length."""
        if options is swept:
            return swept
        best = swept_knee(folder.ticks(Stage.SWEEP))
        block = best.block_length if best is not None and best.block_length else swept.block_length
        return type(options).resume(options.plan(), block_length=block)

    runs.measure("accept", folder, which, swept, soaked, examined, settle=with_candidate_block)


def judge(run: Path, criteria: Criteria, junit: Path | None) -> GateDecision:
    """Returns the verdict, after keeping it in the run and writing it as JUnit XML. Without a spec the shipped one is
    used. Raises FieldError if `junit` cannot be written."""
    try:
        spec = load_spec(criteria.spec)
        verdict = judge_run(run, spec, baseline=criteria.baseline, may_differ=criteria.may_differ or ())
    except SpecError as error:
        verdict = not_judged(error.message, run=run.resolve().name)
    _keep_verdict(run, verdict)
    if junit is not None:
        try:
            junit.write_text(to_junit(verdict), encoding="utf-8")
        except OSError as error:
            raise FieldError("--junit", str(junit), f"a file that can be written ({error.strerror})") from None
    return verdict


def show(verdict: GateDecision) -> None:
    """Prints a table of the criteria, the reasons and notes, and the verdict last."""
    out = output.stdout()
    if verdict.judgements:
        drawn = output.table(out, _COLUMNS, ())
        drawn.columns[-1].justify = "left"
        for judgement in verdict.judgements:
            outcome = f"[{_STYLES.get(judgement.outcome, 'yellow')}]{judgement.outcome.replace('_', ' ')}[/]"
            figures = (
                shown.measured_text(judgement),
                shown.wanted_text(judgement.criterion),
                str(judgement.reading.samples),
            )
            drawn.add_row(escape(judgement.criterion.name), *figures, outcome)
        out.print(drawn)
    for judgement in verdict.judgements:
        if judgement.reason:
            output.say(f"{judgement.criterion.name}: {judgement.reason}")
    for line in (*verdict.notes, *(verdict.reasons if len(verdict.reasons) > 1 else ())):
        output.say(line)
    output.say(verdict.sentence, style=_COLOURS[verdict.decision])


def _keep_verdict(run: Path, verdict: GateDecision) -> None:
    """Writes the verdict into the run, over an earlier one. A folder that cannot be written to does not change the
    verdict."""
    if not (run / "run.json").is_file():
        return
    try:
        RunFolder(run).write("gate.json", to_json(document(verdict)))
    except OSError as error:
        output.complain(f"{run / 'gate.json'} was not written: {error.strerror}")


def _write_report(
    run: Path, verdict: GateDecision, which: runs.DaemonChoice, against: Path | None = None
) -> tuple[Path, Path]:
    from draftd_acceptance.report.render import write_report  # draws: slow to load for a gate

    return write_report(run, verdict, against=against, prices=runs.prices(which))


def _require_run(run: Path | None) -> Path:
    if run is None:
        raise FieldError("--run", None, "the folder of a run, as draftd sweep, soak, quality and accept write it")
    return run
