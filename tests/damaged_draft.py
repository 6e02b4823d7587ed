"""A draft that goes bad and is mended, on disk: its files are replaced in one step, as a person who deploys would."""

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
    """The embedded pair's draft and a lighter quantisation of it: `heavy` and `light` are what is served."""

    folder: Path

    @property
    def heavy(self) -> Path:
        return self.folder / "heavy"

    @property
    def light(self) -> Path:
        return self.folder / "light"

    @classmethod
    def copied(cls, folder: Path) -> Draft:
        """A copy of one's own, good, and a damaged one in store."""
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
    """Each weight changes place with another of its row: the same shapes and sizes, and next to no sense."""
    import mlx.core as mx

    with mx.stream(mx.cpu):
        mx.random.seed(0)
        good = mx.load(str(file), format="safetensors")
        bad = {name: array[..., mx.random.permutation(array.shape[-1])] for name, array in good.items()}
        mx.save_safetensors(str(file.with_name("scrambled.safetensors")), bad, metadata={"format": "mlx"})
    os.replace(file.with_name("scrambled.safetensors"), file)
