"""A draft on disk that a test damages and repairs. Its files are replaced in one step, as a deployment would."""

from __future__ import annotations

import importlib.resources
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from draftd.models.blas import load_blas
from tests.unit.engine.drafts import quantised

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Draft:
    """The embedded pair's draft (`heavy`) and a lighter quantisation of it (`light`), which the daemon serves."""

    folder: Path

    @property
    def heavy(self) -> Path:
        return self.folder / "heavy"

    @property
    def light(self) -> Path:
        return self.folder / "light"

    @classmethod
    def copied(cls, folder: Path) -> Draft:
        """Copies the draft to `folder`, and prepares a damaged version."""
        load_blas()
        shutil.copytree(str(importlib.resources.files("draftd.models.nano") / "draft"), folder / "good-heavy")
        shutil.copytree(folder / "good-heavy", folder / "bad-heavy")
        _scramble(folder / "bad-heavy" / _WEIGHTS)
        for kind in ("good", "bad"):
            quantised(str(folder / f"{kind}-heavy"), folder / f"{kind}-light", bits=4)
        for name in ("heavy", "light"):
            shutil.copytree(folder / f"good-{name}", folder / name)
        return cls(folder)

    def damage(self) -> None:
        self._serve("bad")

    def mend(self) -> None:
        self._serve("good")

    def _serve(self, kind: str) -> None:
        for name in ("heavy", "light"):
            fresh = self.folder / name / "fresh"
            shutil.copyfile(self.folder / f"{kind}-{name}" / _WEIGHTS, fresh)
            os.replace(fresh, self.folder / name / _WEIGHTS)


def _scramble(file: Path) -> None:
    """Shuffles the weights within each row: shapes and sizes stay, and the model is useless."""
    import mlx.core as mx

    with mx.stream(mx.cpu):
        mx.random.seed(0)
        good = mx.load(str(file), format="safetensors")
        bad = {name: array[..., mx.random.permutation(array.shape[-1])] for name, array in good.items()}
        mx.save_safetensors(str(file.with_name("scrambled.safetensors")), bad, metadata={"format": "mlx"})
    os.replace(file.with_name("scrambled.safetensors"), file)
