"""`draftd doctor` on a model with a draft head: what is found, what does not fit, and what the trial says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from draftd.cli.commands.doctor_exactness import check_exactness
from draftd.cli.commands.doctor_head import judge_head
from draftd.cli.findings import Finding, Severity, ok
from draftd.model_info import HeadInfo
from draftd.settings import Settings, load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.heads.layouts import LAYOUTS

INSIDE, DRAFTER = "qwen3_5_mlx_sidecar_raw", next(layout.name for layout in LAYOUTS if layout.is_drafter)
FAMILY = "MTP head of the Qwen3-Next and Qwen3.5 form"


@pytest.fixture
def written(nano_pair: NanoPair, tmp_path: Path) -> dict[str, str]:
    """The settings of models with a head beside them, and with one in a repository of its own; by layout."""
    paths = dict[str, str]()
    for name in (INSIDE, DRAFTER):
        layout = next(layout for layout in LAYOUTS if layout.name == name)
        layout.write(tmp_path / name)
        target = layout.target_folder(tmp_path / name)
        for file in Path(nano_pair.draft).glob("tokenizer*"):
            shutil.copy(file, target)
        paths[name] = str(target)
    paths["drafter"] = str(tmp_path / DRAFTER / "drafter")
    return paths


def settings(model: str, draft: str | None = None, **named: object) -> Settings:
    paths = {"model.path": model, "model.draft_path": draft}
    return load_settings(None, paths | {name.replace("__", "."): value for name, value in named.items()}, {})


def texts(findings: list[Finding], subject: str) -> list[str]:
    return [finding.text for finding in findings if finding.subject == subject]


def test_doctor_names_the_draft_head_beside_a_model_and_asks_for_no_draft_model(written: dict[str, str]) -> None:
    findings = check_models(settings(written[INSIDE]))
    (text,) = texts(findings, "draft head")
    assert text.startswith(f"{FAMILY}, ")
    assert "it reads the model's last hidden states, a trial when the weights are loaded decides" in text
    assert texts(findings, "draft model") == []
    assert texts(findings, "speculation") == ["up to 4 draft tokens at a time"]
    assert not [line for line in texts(findings, "refused") if "draft" in line]


def test_doctor_accepts_a_head_repository_as_the_draft_model(written: dict[str, str]) -> None:
    findings = check_models(settings(written[DRAFTER], written["drafter"]))
    assert [finding.verdict for finding in findings if finding.subject == "draft head"] == [Severity.OK]
    assert texts(findings, "draft model") == texts(findings, "pair") == []


def test_doctor_notes_a_refused_draft_head_and_advises_on_a_draft_model(written: dict[str, str]) -> None:
    findings = check_models(settings(written[INSIDE], distributed__ranks=2))
    (finding,) = (finding for finding in findings if finding.subject == "draft head")
    assert finding.verdict is Severity.NOTE
    assert finding.text.endswith(
        "refused: it needs the target's hidden states, which several ranks do not give yet; the model is served "
        "without it"
    )
    assert len(texts(findings, "draft model")) == 1


def test_doctor_with_exactness_reports_the_trial_of_the_loaded_draft_head(written: dict[str, str]) -> None:
    small = settings(written[INSIDE], engine__max_batch=2, engine__max_draft_tokens=1)
    check = check_exactness(lambda: small, [ok("settings", ""), ok("model", ""), ok("memory", "")])
    (finding,) = (finding for finding in check.findings if finding.subject == "draft head")
    assert "accepted" in finding.text
    assert check.findings[-1].subject == "exactness"


def test_finding_on_a_tried_head_gives_its_form_and_acceptance() -> None:
    form = "embedding, hidden; states before the norm; norms + 0"
    finding = judge_head(HeadInfo("mtp", FAMILY, ("mtp.safetensors",), 9_000, 9_000, form, 0.5, 0.1, 127))
    assert finding.text == f"{FAMILY}, 9 KB in mtp.safetensors; 50% of 127 tokens accepted in the trial; {form}"
