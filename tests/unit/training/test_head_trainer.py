"""A short training of the embedded target's head, with the environment that `make train-head` makes."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import pytest

from draftd.engine import head_loading
from draftd.engine.pair import load_models

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "training" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs PyTorch (5 GB on Linux): run `make build/training/.ready`"),
]


def train(work: Path, *options: str) -> str:
    """Trains in `work`, writes the head beside a copy of the target there, and returns what was printed."""
    command = [
        str(PYTHON),
        "-m",
        "training.heads",
        "--target",
        "embedded",
        "--work",
        str(work),
        "--out",
        str(work / "model"),
    ]
    command += ["--tokens", "8000", "--rows", "32", "--without-overlap", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights(model: Path) -> dict[str, mx.array]:
    arrays = mx.load(str(model / "mtp.safetensors"))
    assert isinstance(arrays, dict)
    return arrays


def test_fifty_steps_give_a_head_that_the_target_accepts_and_a_rerun_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in Path(str(files("draftd.models") / "nano" / "target")).iterdir():
        if file.suffix != ".md":
            (model / file.name).symlink_to(file)
    train(tmp_path, "--steps", "25")
    card = (model / "MODEL_CARD.md").read_text()
    assert "dropped" in train(tmp_path, "--steps", "50")
    trained = weights(model)
    assert (model / "MODEL_CARD.md").read_text() != card
    train(tmp_path, "--steps", "50")
    again = weights(model)
    assert again.keys() == trained.keys()
    assert all(mx.array_equal(again[name], array) for name, array in trained.items())
    monkeypatch.setattr(head_loading, "_PIECES", ())  # so that the trial reads its whole text
    head = load_models(str(model), progress=lambda line: None).info.head
    assert head is not None
    assert not head.refusal
    assert head.positions == 255
    assert head.accepted > 2 * head.chance
