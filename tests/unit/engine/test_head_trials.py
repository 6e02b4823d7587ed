"""The result of a head's trial is kept until one of the model's files changes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from draftd.engine import head_forms, head_loading
from draftd.engine.cache.model_layers import states_of
from draftd.engine.head_trials import HeadTrial, KeptTrials
from draftd.engine.pair import load_models
from draftd.model_info import HeadInfo
from tests.heads.targets import EAGLE_HEAD, NANO

Trials = list[HeadTrial]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The embedded target with its head, in a folder of its own."""
    folder = tmp_path / "model"
    shutil.copytree(NANO / "target", folder)
    return folder


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Trials:
    """The trials that were made, rather than read from the file."""
    trials, try_forms = Trials(), head_forms.try_forms

    def recorded(*args: Any) -> HeadTrial:
        trials.append(try_forms(*args))
        return trials[-1]

    monkeypatch.setattr(head_loading, "try_forms", recorded)
    return trials


def head_of(model: Path, trials: Path) -> HeadInfo:
    info = load_models(str(model), trials=trials, progress=lambda line: None).info.head
    assert info is not None
    return info


def test_second_load_takes_the_form_that_the_first_trial_found(model: Path, tmp_path: Path, tried: Trials) -> None:
    file = tmp_path / "state" / "trials.json"
    first, second = head_of(model, file), head_of(model, file)
    assert first == second
    assert not first.refusal
    assert len(tried) == 1


def test_changed_file_of_the_target_is_tried_anew(model: Path, tmp_path: Path, tried: Trials) -> None:
    file = tmp_path / "trials.json"
    head_of(model, file)
    os.utime(model / "model.safetensors", ns=(1, 1))
    head_of(model, file)
    assert len(tried) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"a": {"form": {}}}'], ids=["empty", "a list", "incomplete"])
def test_damaged_file_of_trials_is_replaced(content: str, model: Path, tmp_path: Path, tried: Trials) -> None:
    file = tmp_path / "trials.json"
    file.write_text(content)
    assert not head_of(model, file).refusal
    kept = KeptTrials(file)
    assert [kept.get(key) for key in json.loads(file.read_text())] == tried


def test_refusal_is_kept_with_its_figures(model: Path, tmp_path: Path, tried: Trials) -> None:
    shuffle(model / "mtp.safetensors")
    file = tmp_path / "trials.json"
    first, second = head_of(model, file), head_of(model, file)
    assert "better than chance" in first.refusal
    assert first == second
    assert len(tried) == 1


def test_trial_ends_when_one_form_leads_clearly_and_goes_on_otherwise(model: Path, tmp_path: Path) -> None:
    clear = head_of(model, tmp_path / "trials.json")
    assert 31 <= clear.positions < 255
    shuffle(model / "mtp.safetensors")
    assert head_of(model, tmp_path / "others.json").positions == 255


def test_target_of_refused_head_records_no_hidden_states(model: Path, tmp_path: Path) -> None:
    shuffle(model / "mtp.safetensors")
    target = load_models(str(model), trials=tmp_path / "trials.json", progress=lambda line: None).target
    _, states = states_of(target, lambda: target(mx.array([[1]])))
    assert states is None


def shuffle(file: Path) -> None:
    """Rewrites a head with the rows of each matrix in a random order."""
    mx.random.seed(3)
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    shuffled = {name: mx.random.permutation(w) if w.ndim == 2 else w for name, w in weights.items()}
    mx.save_safetensors(str(file), shuffled, {"format": "mlx"})


def test_trial_keeps_the_configured_taps_of_an_eagle_head_unless_others_lead_clearly() -> None:
    """The inputs of the layers above are accepted more often on the trial's text, by chance."""
    models = load_models(str(NANO / "target"), str(EAGLE_HEAD), progress=lambda line: None)
    assert models.info.head is not None
    assert not models.info.head.refusal
    assert models.head.form.taps == (1, 6, 11)
