"""`draftd doctor --exactness`: loads the target, and measures whether a token's results depend on what is computed with
it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

from draftd.cli import output
from draftd.cli.commands.doctor_head import head_folder, judge_head
from draftd.cli.figures import NOTHING
from draftd.cli.findings import Finding, Severity, bad, note, ok
from draftd.cli.persistent_state import paths_of
from draftd.errors import ConfigError, ModelLoadError, in_one_line
from draftd.exactness import Exactness, OperationExactness, OperationKind
from draftd.model_info import HeadInfo
from draftd.settings import Settings

_SUBJECT = "exactness"
_BE_EXACT = (
    "this is normal; engine.exact = true makes a text the same at every depth and batch size, and drafts and batches "
    "then gain less speed: see `draftd docs architecture`"
)
_COLUMNS = (
    "operation",
    "kind",
    "first at\ntokens",
    "first at\nsequences",
    "unequal\nlengths",
    "first at\nslice of",
    "largest\ndifference",
)
_LEGEND = (
    "An operation differs if a token's result is not bit for bit the result of that token computed alone. The columns",
    "give the smallest size at which it differs: tokens in a call, sequences in a call, tokens of a prompt slice.",
    f"{NOTHING}: it did not differ at any size tried. The difference is in standard deviations of the results.",
)
_LEGEND_EXACT = (
    "With engine.exact these operations are computed in smaller calls; the last line shows the forward pass that",
    "results.",
)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExactnessCheck:
    """The finding on a model's exactness. `measured`: its figures; None if it was not measured. `head`: the finding on
    its draft head, which was tried when the model was loaded; None without one."""

    finding: Finding
    measured: Exactness | None = None
    head: Finding | None = None

    @property
    def findings(self) -> list[Finding]:
        return [self.finding] if self.head is None else [self.head, self.finding]

    def show_table(self) -> None:
        """Prints the operations that differ and the whole forward pass, if anything differs."""
        measured = self.measured
        if measured is None or not (measured.operations or measured.forward.differs):
            return
        output.say("")
        output.print_table(_COLUMNS, [_row(operation) for operation in (*measured.operations, measured.forward)])
        output.say("")
        for line in (*_LEGEND, *(_LEGEND_EXACT if measured.exact else ())):
            output.say(line, style=output.DIM)


def refuse_ranks(load: Callable[[], Settings]) -> None:
    """Raises ConfigError if several ranks are to share the target: they are not measured. Other faults of the settings
    are left to the other checks."""
    try:
        shared = load().distributed
    except ConfigError:
        return
    several = {"hostfile": shared.hostfile, "ranks": shared.ranks if shared.ranks > 1 else None}
    for name, value in several.items():
        if value is not None:
            raise ConfigError(f"distributed.{name}", value, "unset with --exactness, which measures one process")


def check_exactness(load: Callable[[], Settings], others: Sequence[Finding]) -> ExactnessCheck:
    """Measures the target of the settings as `serve` would load it, and draws the progress on stderr. `others`: the
    doctor's other findings; if the model or the settings are faulty, nothing is measured."""
    if why := _why_not(others):
        return ExactnessCheck(note(_SUBJECT, f"not measured: {why}"))
    settings = load()
    try:
        with closing(output.WaitingBar()) as progress:
            measured, head = measure_target(settings, progress.hear_loading)
    except ModelLoadError as error:
        return ExactnessCheck(bad(_SUBJECT, error.what, error.cure))
    except Exception as error:
        worst = bad if settings.engine.exact else note  # the setting needs the measurement
        return ExactnessCheck(worst(_SUBJECT, f"the model could not be measured: {in_one_line(error)}"))
    return ExactnessCheck(judge(measured), measured, None if head is None else judge_head(head))


def _why_not(findings: Sequence[Finding]) -> str:
    """Returns why the model cannot be measured; empty if it can."""
    verdicts = {finding.subject: finding.verdict for finding in reversed(findings)}  # the first of a subject counts
    if verdicts.get("settings") is not Severity.OK:
        return "the settings are not valid"
    if verdicts.get("model") is not Severity.OK:
        return "the model could not be opened"
    if verdicts.get("memory") is Severity.BAD:
        return "the weights need more memory than is free"
    return ""


def measure_target(settings: Settings, report: Report) -> tuple[Exactness, HeadInfo | None]:
    """Loads the target and its draft head without other drafts, and measures the target with the sizes that the
    settings allow. Makes it exact first if engine.exact is set. Also returns what the head's trial found; None without
    a head. `report` takes a line for people. Raises ModelLoadError."""
    from draftd.engine.exactness.setup import exact_models, measurement
    from draftd.engine.pair import load_models
    from draftd.fallback.probe_requests import probe_prompts
    from draftd.models.folder import ModelFolder

    path, draft = paths_of(settings.model)
    files = ModelFolder(path, adapter=settings.model.adapter_path, offline=True).files()
    apart = head_folder(draft)
    head = None if apart is None else str(apart.files().folder)
    models = load_models(str(files.folder), head, adapter=files.adapter, progress=report)
    limits = settings.engine.limits()
    models, exact = exact_models(models, limits, report)
    begin = measurement(models, limits, probe_prompts, exact)
    assert begin is not None
    return _finish(begin(models.target), report), models.info.head


def _finish(pieces: Generator[str, None, Exactness], report: Report) -> Exactness:
    while True:
        try:
            report(f"measuring {next(pieces)}")
        except StopIteration as end:
            measured: Exactness = end.value
            return measured


def judge(measured: Exactness) -> Finding:
    """Returns the finding on a measured model, with all figures."""
    text, figures = measured.in_words(), asdict(measured)
    if not measured.forward.differs:
        return ok(_SUBJECT, text, figures=figures)
    if measured.exact:
        return bad(_SUBJECT, text, "report this as a bug in draftd, with the model's name", figures=figures)
    estimated = f"{text} (estimated from {measured.positions} logit gaps)"
    return note(_SUBJECT, estimated, _BE_EXACT, figures=figures)


def _row(operation: OperationExactness) -> tuple[str, ...]:
    sizes = (operation.width, operation.batch, operation.slice_width)
    width, batch, slice_width = (NOTHING if size is None else str(size) for size in sizes)
    unequal = "differ" if operation.padding else NOTHING
    difference = f"{operation.difference:.1g}" if operation.differs else NOTHING
    kind = NOTHING if operation.kind is OperationKind.FORWARD else operation.kind.value
    return operation.name, kind, width, batch, unequal, slice_width, difference
