"""A short training of the embedded target's head, with the environment that `make train-head` makes."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import mlx.core as mx
import pytest

from draftd.engine import head_forms
from draftd.engine.pair import load_models

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "training" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs PyTorch (5 GB on Linux): run `make build/training/.ready`"),
]


def train(work: Path, *options: str, target: str = "embedded") -> str:
    """Trains in `work`, writes the head to its folder `model`, and returns what was printed."""
    command = [
        str(PYTHON),
        "-m",
        "training.heads",
        "--target",
        target,
        "--work",
        str(work),
        "--out",
        str(work / "model"),
    ]
    command += ["--tokens", "8000", "--rows", "32", "--without-overlap", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


GRADIENTS = """
import math
import torch
from training.heads.head import HybridLoss

torch.manual_seed(0)
states, embedding = torch.randn(5, 8, requires_grad=True), torch.randn(20, 8)
p, eta = torch.softmax(2 * torch.randn(5, 20), dim=-1), 3.0
HybridLoss.apply(states, embedding, p, eta).backward()
given, states.grad = states.grad, None
log_q = torch.log_softmax(states @ embedding.T, dim=-1)
accepted = torch.minimum(p, log_q.exp()).sum()
share = math.exp(-eta * accepted.item() / 5)
(-share * (p * log_q).sum() + (1 - share) * (5 - accepted)).backward()
assert 0.05 < share < 0.95
torch.testing.assert_close(given, states.grad, rtol=1e-4, atol=1e-5)
"""


def test_gradient_of_hybrid_loss_is_that_of_its_formula() -> None:
    done = subprocess.run(
        [str(PYTHON), "-c", GRADIENTS], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


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
    monkeypatch.setattr(head_forms, "_PIECES", ())  # so that the trial reads its whole text
    head = load_models(str(model), progress=lambda line: None).info.head
    assert head is not None
    assert not head.refusal
    assert head.positions == 255
    assert head.accepted > 2 * head.chance


def test_short_training_gives_an_eagle_head_that_the_target_accepts(tmp_path: Path) -> None:
    train(tmp_path, "--steps", "150", target="embedded-eagle3")
    target = str(files("draftd.models") / "nano" / "target")
    head = load_models(target, str(tmp_path / "model"), progress=lambda line: None).info.head
    assert head is not None
    assert not head.refusal
    assert head.accepted > 1.5 * head.chance
