"""A run judged from the command line: the verdict kept in the run, written for CI systems, and shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.gate import shown
from draftd.acceptance.gate.document import to_json
from draftd.acceptance.gate.gating import judge_run, not_judged
from draftd.acceptance.gate.junit import to_junit
from draftd.acceptance.gate.spec import SpecError, load_spec, shipped
from draftd.acceptance.gate.verdict import Decision, Outcome, Verdict
from draftd.cli import terminal
from draftd.errors import FieldError

__all__ = ["judge", "shipped", "show", "to_json"]

_COLUMNS = ("criterion", "measured", "wanted", "samples", "outcome")
_STYLES = {
    Outcome.PASSED: "green",
    Outcome.EXCUSED: "yellow",
    Outcome.TOO_FEW_SAMPLES: "yellow",
    Outcome.NOT_MEASURED: "yellow",
    Outcome.FAILED: "bold red",
}
_COLOURS = {Decision.PROMOTED: "bold green", Decision.NOT_PROMOTED: "bold red", Decision.NOT_JUDGED: "bold yellow"}


def judge(
    run: Path,
    spec: Path | None = None,
    *,
    baseline: Path | None = None,
    may_differ: Sequence[str] = (),
    junit: Path | None = None,
) -> Verdict:
    """Without a spec by the one that is shipped. Raises FieldError where `junit` cannot be written."""
    try:
        verdict = judge_run(run, load_spec(spec), baseline=baseline, may_differ=may_differ)
    except SpecError as error:
        verdict = not_judged(error.message, run=run.resolve().name)
    _keep(run, verdict)
    if junit is not None:
        try:
            junit.write_text(to_junit(verdict), encoding="utf-8")
        except OSError as error:
            raise FieldError("--junit", str(junit), f"a file that can be written ({error.strerror})") from None
    return verdict


def show(verdict: Verdict) -> None:
    """A table, what is to be said of its lines, and the verdict last."""
    out = terminal.stdout()
    if verdict.judgements:
        drawn = terminal.table(out, _COLUMNS, ())
        drawn.columns[-1].justify = "left"
        for one in verdict.judgements:
            outcome = f"[{_STYLES[one.outcome]}]{shown.outcome(one)}[/]"
            figures = (shown.measured(one), shown.wanted(one.criterion), str(one.reading.samples))
            drawn.add_row(escape(one.criterion.name), *figures, outcome)
        out.print(drawn)
    for one in verdict.judgements:
        if one.reason:
            out.print(f"{one.criterion.name}: {one.reason}", markup=False, soft_wrap=True)
    for line in (*verdict.notes, *(verdict.reasons if len(verdict.reasons) > 1 else ())):
        out.print(line, markup=False, soft_wrap=True)
    out.print(verdict.sentence, style=_COLOURS[verdict.decision], markup=False, soft_wrap=True)


def _keep(run: Path, verdict: Verdict) -> None:
    """In the run, in the place of an earlier verdict. A folder that takes no file keeps nobody from the verdict."""
    if not (run / "run.json").is_file():
        return
    try:
        RunFolder(run).write("gate.json", to_json(verdict, indent=2) + "\n")
    except OSError as error:
        terminal.complain(f"{run / 'gate.json'} was not written: {error.strerror}")
