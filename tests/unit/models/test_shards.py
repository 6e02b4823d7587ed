"""Only the weight files that the index names are a model's: what lies beside them is not read, and said to be there."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import mlx.core as mx
import pytest

from draftd.cli.findings import Severity
from draftd.engine.pair import load_models
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import ModelFolder, parameters
from draftd.models.shards import INDEX, surplus
from draftd.settings import load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.unit.models.checkpoints import sharded

OWN = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
LEFT = "model-00000-of-00045.safetensors", "model-00006-of-00045.safetensors", "model.safetensors"


@pytest.fixture
def folder(nano_pair: NanoPair, tmp_path: Path) -> Path:
    """Two shards with an index, and files that other downloads have left, before them and after them in any order."""
    sharded(nano_pair.draft, tmp_path / "model")
    weights = {
        name: mx.zeros_like(one) for file in OWN for name, one in mx.load(str(tmp_path / "model" / file)).items()
    }
    for name in LEFT:
        mx.save_safetensors(str(tmp_path / "model" / name), weights, metadata={"format": "mlx"})
    return tmp_path / "model"


def test_weight_files_outside_index_change_no_weights_or_fingerprint(folder: Path, nano_pair: NanoPair) -> None:
    found, _ = ModelFolder(str(folder)).open()
    expected, _ = ModelFolder(nano_pair.draft).open()
    assert all(mx.array_equal(*pair).item() for pair in zip(parameters(found), parameters(expected), strict=True))
    assert [one.name for one in Fingerprints().of(folder).files if one.kind == "weights"] == [*OWN]


def test_broken_weight_file_outside_index_does_not_prevent_loading(folder: Path) -> None:
    (folder / LEFT[1]).write_bytes(b"\0" * 100)
    ModelFolder(str(folder)).open()


def test_weight_files_outside_index_are_named_in_log_and_by_doctor(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"files that {INDEX} does not name are not read: {', '.join(LEFT)}"
    with caplog.at_level(logging.WARNING, "draftd"):
        load_models(str(folder), progress=lambda line: None)
    assert f"model: {folder}: {said}" in caplog.messages
    notes = [one for one in check_models(load_settings(None, {"model.path": str(folder)}, {})) if one.text == said]
    assert [one.verdict for one in notes] == [Severity.NOTE]
    assert notes[0].mend


@pytest.mark.parametrize(
    ("named", "there", "left_out"),
    [
        ({"a": OWN[0]}, [*OWN, "model.safetensors"], {OWN[1], "model.safetensors"}),
        ({"a": OWN[0], "b": OWN[1]}, [*OWN], set()),
        ({"a": OWN[0]}, ["model.safetensors", "model-2.safetensors"], set()),  # which were converted from others
        ({"a": "consolidated.safetensors"}, ["model.safetensors"], set()),
        ({"a": OWN[0]}, [OWN[0], "model-MTP.safetensors", "model_nextn.safetensors"], set()),  # heads
        ({"a": OWN[0], "mtp.fc.weight": OWN[1]}, [*OWN, "model.safetensors"], {"model.safetensors"}),
        ([], [*OWN], set()),
    ],
)
def test_weight_index_excludes_files_only_if_its_own_files_are_present(
    named: object, there: list[str], left_out: set[str], tmp_path: Path
) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": named}))
    assert surplus(tmp_path, there) == left_out
