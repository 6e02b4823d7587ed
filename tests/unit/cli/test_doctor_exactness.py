"""`draftd doctor --exactness`, on a model with a planted difference: any others depend on the machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from draftd.cli.commands.doctor_exactness import ExactnessCheck, check_exactness, judge
from draftd.cli.findings import Finding, Severity, bad, note, ok
from draftd.engine import pair
from draftd.exactness import Exactness, OperationExactness, OperationKind
from draftd.settings import Settings, load_settings
from tests.conftest import NanoPair
from tests.unit.cli.conftest import Ran, in_process
from tests.unit.models.checkpoints import reweigh

PLANTED = "model.layers.0.mlp.down_proj"
IN_ORDER = [ok("settings", ""), ok("model", ""), ok("memory", "")]
SMALL = ("engine.max_batch=2", "engine.max_draft_tokens=1")  # few sizes to measure

Run = Callable[..., Ran]


def settings(model: str, **engine: object) -> Settings:
    small = dict(assignment.split("=") for assignment in SMALL)
    named = {f"engine.{name}": value for name, value in engine.items()}
    return load_settings(None, {"model.path": model, **small, **named}, {})


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes one layer of each loaded model depend on the number of rows, as no BLAS does."""
    whole = pair.load_models

    def load(*arguments: Any, **named: Any) -> pair.LoadedModels:
        models = whole(*arguments, **named)
        layer = dict(models.target.named_modules())[PLANTED]
        kind: Any = type(layer)

        def call(self: Any, x: mx.array) -> mx.array:
            together = x.size > x.shape[-1]
            result: mx.array = kind.__call__(self, x)
            return result * 1.001 if together else result

        layer.__class__ = type("Planted", (kind,), {"__call__": call})
        return models

    monkeypatch.setattr(pair, "load_models", load)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nano_pair: NanoPair) -> Run:
    """Returns a function that runs `draftd doctor --exactness` on the embedded draft, the smaller model."""

    def run_doctor(*arguments: str) -> Ran:
        small = [f"--set={assignment}" for assignment in SMALL]
        command = ["doctor", "--exactness", "--model", nano_pair.draft, *small, *arguments]
        return in_process(command, monkeypatch, capsys)

    return run_doctor


def exactness_in(output: str) -> dict[str, Any]:
    """Returns the finding on the exactness in a JSON output."""
    (finding,) = (entry for entry in json.loads(output) if entry["subject"] == "exactness")
    return dict(finding)


@pytest.mark.usefixtures("planted")
def test_doctor_names_an_operation_that_depends_on_the_rows_of_a_call(run: Run) -> None:
    lines = run().out.splitlines()
    (finding,) = (line for line in lines if " exactness " in line)
    assert finding.startswith(
        "note exactness    logits are not the same at every size: first at 2 tokens, 2 sequences, "
    )
    assert " of 1,000 greedy tokens would change (estimated from " in finding
    assert "engine.exact = true" in lines[lines.index(finding) + 1]
    (row,) = (line.split() for line in lines if line.startswith(f"{PLANTED} "))
    assert row[1:4] == ["linear", "2", "2"]
    assert any(line.startswith("whole forward ") for line in lines)


@pytest.mark.usefixtures("planted")
def test_doctor_json_has_the_figures_of_each_operation_that_differs(run: Run) -> None:
    finding = exactness_in(run("--json").out)
    figures = finding["figures"]
    assert (finding["verdict"], figures["exact"]) == ("note", False)
    (operation,) = (entry for entry in figures["operations"] if entry["name"] == PLANTED)
    assert (operation["kind"], operation["width"], operation["batch"]) == ("linear", 2, 2)
    assert figures["forward"]["difference"] > 1e-5
    assert figures["positions"] > 0


@pytest.mark.usefixtures("planted")
def test_doctor_finds_no_difference_in_a_model_that_engine_exact_computes(run: Run) -> None:
    finding = exactness_in(run("--json", "--set=engine.exact=true").out)
    assert (finding["verdict"], finding["mend"]) == ("ok", "")
    assert finding["found"].startswith("exact: ")
    assert PLANTED in [operation["name"] for operation in finding["figures"]["operations"]]
    forward = finding["figures"]["forward"]
    assert [forward[name] for name in ("width", "batch", "padding", "slice_width")] == [None, None, False, None]


def test_doctor_prints_no_table_for_a_model_that_differs_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    measured = Exactness(False, False, OperationExactness("whole forward", OperationKind.FORWARD))
    finding = judge(measured)
    assert (finding.verdict, finding.mend) == (Severity.OK, "")
    ExactnessCheck(finding, measured).show_table()
    assert capsys.readouterr().out == ""


def test_doctor_reports_an_exact_model_that_differs_as_bad() -> None:
    forward = OperationExactness("whole forward", OperationKind.FORWARD, width=2, difference=1e-6)
    assert judge(Exactness(True, False, forward)).verdict is Severity.BAD


def test_doctor_reports_weights_that_are_not_finite_as_bad(nano_pair: NanoPair, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(nano_pair.draft, tmp_path / "broken"))
    reweigh(folder, lambda weights: {name: array * float("nan") for name, array in weights.items()})
    check = check_exactness(lambda: settings(str(folder)), IN_ORDER)
    assert (check.finding.verdict, check.measured) == (Severity.BAD, None)
    assert str(folder) in check.finding.text
    assert check.finding.mend


def test_failed_measurement_is_bad_only_if_engine_exact_needs_it(
    monkeypatch: pytest.MonkeyPatch, nano_pair: NanoPair
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(pair, "load_models", fail)
    for exact, verdict in ((False, Severity.NOTE), (True, Severity.BAD)):
        check = check_exactness(partial(settings, nano_pair.draft, exact=exact), IN_ORDER)
        assert check.finding.verdict is verdict
        assert check.finding.text == "the model could not be measured: RuntimeError: no such kernel"


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([bad("settings", "")], "the settings are not valid"),
        ([ok("settings", ""), bad("model", "")], "the model could not be opened"),
        ([ok("settings", ""), note("model", "a hub id")], "the model could not be opened"),
        ([*IN_ORDER[:2], bad("memory", "")], "the weights need more memory than is free"),
    ],
)
def test_doctor_says_why_a_faulty_model_is_not_measured(others: Sequence[Finding], why: str) -> None:
    check = check_exactness(Settings, others)
    assert (check.finding.verdict, check.finding.text) == (Severity.NOTE, f"not measured: {why}")


@pytest.mark.parametrize("option", ["--hostfile={}", "--set=distributed.hostfile={}", "--set=distributed.ranks=2"])
def test_doctor_refuses_exactness_with_several_ranks_by_name(run: Run, tmp_path: Path, option: str) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text("[]")
    result = run(option.format(hosts))
    assert result.code == 2
    assert result.out == ""
    assert "distributed." in result.err
    assert "--exactness" in result.err
