"""Describes a published layout: its name, the place of its head, and the function that writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.heads.layouts.files import MODEL_FILE

Writer = Callable[[Path], None]  # writes config.json and safetensors below a folder


@dataclass(frozen=True)
class StoredHead:
    """Where a layout has the head's tensors, and in what form."""

    file: str  # relative to the folder that is written
    prefix: str  # of the head's names in that file
    norms_shifted: bool  # 1 + w is stored
    other_prefixes: tuple[str, ...] = ()  # if there are several heads

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Returns the beginnings of the names of all heads."""
        return (self.prefix, *self.other_prefixes)


RAW_IN_MODEL = StoredHead(MODEL_FILE, "mtp.", norms_shifted=False)
CONVERTED_IN_MODEL = StoredHead(MODEL_FILE, "mtp.", norms_shifted=True)
RAW_SIDECAR = StoredHead("mtp.safetensors", "mtp.", norms_shifted=False)
CONVERTED_SIDECAR = StoredHead("mtp/weights.safetensors", "mtp.", norms_shifted=True)
DRAFTER = StoredHead(f"drafter/{MODEL_FILE}", "", norms_shifted=True)


@dataclass(frozen=True)
class Layout:
    """A published layout. `target` names the target's weights, which layouts share. `taps`: the layers whose inputs the
    head takes, in order; input 0 is the embedding, input n of n layers is the last layer's output before the final
    norm. A head without taps takes the last states."""

    name: str
    target: str
    head: StoredHead
    writer: Writer
    taps: tuple[int, ...] = ()

    @property
    def states_of(self) -> str:
        """Returns the name of the states that the head takes: layouts with the same one are fed the same."""
        return "_".join([self.target, *map(str, self.taps)])

    @property
    def is_drafter(self) -> bool:
        """Returns whether the head is a repository of its own, in `drafter`, and the target in `target`."""
        return self.head.file.startswith("drafter/")

    def write(self, folder: Path) -> None:
        """Writes config.json and safetensors below `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.writer(folder)

    def target_folder(self, folder: Path) -> Path:
        """Returns the target's folder within a written `folder`."""
        return folder / "target" if self.is_drafter else folder

    def head_folder(self, folder: Path) -> Path:
        """Returns the folder of the head's repository within a written `folder`: the target's own, or the drafter's."""
        return folder / "drafter" if self.is_drafter else folder
