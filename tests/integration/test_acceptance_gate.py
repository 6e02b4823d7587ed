"""Gates seen to fail: a damaged draft, a slowed first token, a run of which half is of another draft."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from draftd.client.client import DraftdClient
from draftd.core import DRAFT_MODEL
from draftd.engine.pair import LoadedModels, assemble
from draftd.engine.prefilling import Prefilling
from draftd.engine.sequence import DecodeSequence
from draftd.models.folder import ModelFiles, PairFiles
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.gate.spec import shipped_text
from draftd_acceptance.manifest import take_manifest
from draftd_acceptance.options import SweepOptions
from draftd_acceptance.session import Advance, Session
from draftd_acceptance.sweep.plan import run_sweep
from tests.in_process_daemon import Served, serving
from tests.scripted import ScriptedModel, scripted_models
from tests.stack.scripted_pair import load
from tests.unit.cli.conftest import Ran, in_process

pytestmark = pytest.mark.slow

SWEEP = SweepOptions(
    block_lengths=(0, 4),
    drafters=(DRAFT_MODEL,),
    temperatures=(),
    concurrency=(),
    groups=("short_control", "code"),
    each=8,  # one or two answers may come in a single message, which has no rate
    repetitions=2,
    max_tokens=10,
    cool_down=0.0,
)
FEW = SWEEP.model_copy(update={"groups": ("short_control",), "repetitions": 1, "max_tokens": 4})
PAYS, ACCEPTED = "decode throughput", "median acceptance at block length 4"
FIRST_TOKEN = "time to first token, short prompts"
SLOW_SECONDS = 0.06


class Interrupted(Exception):
    """As by Ctrl-C."""


def sweep(client: DraftdClient, folder: RunFolder, options: SweepOptions, until: float = 1.0) -> None:
    """A session of its own, whatever the run has of others, until that share of the sweep is measured."""

    def watch(advance: Advance) -> None:
        if until < 1 and advance.done >= until * advance.total:
            raise Interrupted

    session = Session(client, folder, folder.begin_session(take_manifest(client)))
    with contextlib.suppress(Interrupted):
        run_sweep(session, options, client.model(), watch)


def only(folder: Path, *names: str) -> Path:
    """The shipped spec, less the other criteria."""
    head, *blocks = re.split(r"(?m)^(?=\[\[criterion\]\])", shipped_text())
    kept = [block for block in blocks for name in names if f'name = "{name}"' in block]
    assert len(kept) == len(names)
    path = folder / "spec.toml"
    path.write_text("".join([head, *kept]), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Gate:
    """Runs `draftd gate`."""

    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, run: Path, spec: Path, *further: str) -> tuple[Ran, dict[str, Any]]:
        arguments = ["gate", "--run", str(run), "--spec", str(spec), "--json", *further]
        ran = in_process(arguments, self.patch, self.capsys)
        return ran, json.loads(ran.out)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gate:
    return Gate(monkeypatch, capsys)


def serve(folder: Path, acceptance: str) -> AbstractContextManager[Served]:
    """A daemon on a scripted pair that lies in that folder. What speculation saves does not depend on who else uses the
    machine: the target sleeps."""
    for role in ("target", "draft"):
        (folder / role).mkdir(exist_ok=True)
        (folder / role / "model.safetensors").write_text(acceptance if role == "draft" else "")
    files = PairFiles(ModelFiles.of(folder / "target"), {DRAFT_MODEL: ModelFiles.of(folder / "draft")})
    return serving(folder, lambda: replace(load(folder / "draft" / "model.safetensors"), files=files))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three: `good`, `damaged`, and `mixed`, whose sessions had the one draft and the other."""
    folder = tmp_path_factory.mktemp("runs")
    mixed = RunFolder.create(folder / "mixed")
    with serve(folder, "0.9") as served:
        sweep(served.client, RunFolder.create(folder / "good"), SWEEP)
        sweep(served.client, mixed, FEW, until=0.5)
    with serve(folder, "0.1") as served:
        sweep(served.client, RunFolder.create(folder / "damaged"), SWEEP)
        sweep(served.client, mixed, FEW)
    return folder


def test_acceptance_gate_passes_a_good_draft(runs: Path, tmp_path: Path, gate: Gate) -> None:
    ran, verdict = gate(runs / "good", only(tmp_path, PAYS, ACCEPTED))
    assert (ran.code, verdict["decision"]) == (0, "promoted"), verdict
    assert all(one["samples"] >= 30 for one in verdict["criteria"])


def test_acceptance_gate_fails_a_damaged_draft_on_acceptance_and_throughput(
    runs: Path, tmp_path: Path, gate: Gate
) -> None:
    ran, verdict = gate(runs / "damaged", only(tmp_path, PAYS, ACCEPTED))
    assert (ran.code, verdict["decision"]) == (1, "not_promoted")
    assert {one["name"]: one["outcome"] for one in verdict["criteria"]} == {PAYS: "failed", ACCEPTED: "failed"}
    assert verdict["candidate"] == "k4"
    assert "does not pay" in verdict["notes"][0]


def test_acceptance_gate_does_not_judge_a_run_with_two_different_drafts(runs: Path, tmp_path: Path, gate: Gate) -> None:
    ran, verdict = gate(runs / "mixed", only(tmp_path, PAYS, ACCEPTED))
    assert (ran.code, verdict["decision"]) == (2, "not_judged")
    (reason,) = verdict["reasons"]
    assert re.match(r"models\.draft\.files\.model\.safetensors\.sha256 is [0-9a-f]{64} in session 1 ", reason)
    assert re.search(r" and [0-9a-f]{64} in session 2$", reason)
    assert verdict["criteria"] == []


def test_acceptance_gate_compares_different_drafts_only_if_allowed(runs: Path, tmp_path: Path, gate: Gate) -> None:
    spec = only(tmp_path, ACCEPTED)
    spec.write_text(spec.read_text().replace("threshold = 0.55", 'threshold = 1.0\nagainst = "baseline"'))
    against = ("--baseline", str(runs / "good"))
    ran, verdict = gate(runs / "damaged", spec, *against)
    assert ran.code == 2
    assert verdict["reasons"][0].startswith("models.draft.files.model.safetensors.sha256 is ")
    ran, verdict = gate(runs / "damaged", spec, *against, "--may-differ", "models.draft")
    assert (ran.code, verdict["criteria"][0]["outcome"]) == (1, "failed")
    assert verdict["notes"][-1].startswith("allowed: models.draft.files.model.safetensors.sha256 is ")


class SlowReader(ScriptedModel):
    """Takes 60 ms longer over a prompt than it has to."""

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        if inputs.shape[1] > 16:
            time.sleep(SLOW_SECONDS)
        return super().__call__(inputs, cache)


def slow_draft() -> LoadedModels:
    """The target takes a tenth of a second a step: what a busy machine adds to that is little."""
    scripted = scripted_models(0.9, step_seconds=0.1)
    draft = SlowReader(256, 100, 0.0, 255, None)
    names = {"model": "scripted", "draft_model": "slow", "backend": "scripted"}
    return assemble(scripted.target, draft, scripted.tokenizer, context_length=4096, **names)


def first_tokens(folder: Path) -> Path:
    """A run on such a daemon."""
    with serving(folder, slow_draft) as served:
        sweep(
            served.client, RunFolder.create(folder / "run"), FEW.model_copy(update={"repetitions": 2, "max_tokens": 2})
        )
    return folder / "run"


def test_slow_draft_prefill_does_not_delay_the_first_token(tmp_path: Path, gate: Gate) -> None:
    """The target's first token is sent before the draft reads the prompt."""
    ran, verdict = gate(first_tokens(tmp_path), only(tmp_path, FIRST_TOKEN))
    assert (ran.code, verdict["criteria"][0]["outcome"]) == (0, "passed"), verdict


def test_acceptance_gate_fails_a_first_token_that_waits_for_the_draft(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an engine that has the draft read the prompt first."""
    begin = Prefilling._open

    def late(self: Prefilling, sequence: DecodeSequence) -> int:
        if sequence.drafter is not None:
            time.sleep(SLOW_SECONDS)
        return begin(self, sequence)

    monkeypatch.setattr(Prefilling, "_open", late)
    ran, verdict = gate(first_tokens(tmp_path), only(tmp_path, FIRST_TOKEN))
    assert (ran.code, verdict["criteria"][0]["outcome"]) == (1, "failed"), verdict
