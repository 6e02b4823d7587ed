"""Which files a model was read from, and whether they still are what lies there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from draftd.core import DrafterKind

TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "*.tiktoken")

# Those that mlx-lm reads. The first kind that a name fits is its own.
_KINDS = (
    ("weights", ("model*.safetensors",)),
    ("config", ("config.json", "generation_config.json", "hf_quant_config.json")),
    ("chat_template", ("chat_template.*",)),
    ("tokenizer", TOKENIZER_FILES),
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Enough of a file to notice that it is another, without reading it."""

    bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises OSError."""
        found = path.stat()
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies. `stamps`: its files by name when it was read; None where it is not in memory."""

    folder: Path
    stamps: Mapping[str, Stamp] | None = None

    @classmethod
    def noted(cls, folder: Path) -> Self:
        """As they are now. Note them before they are read: one that changes meanwhile is then seen to have."""
        return cls(folder, _stamps(folder))

    @property
    def changed(self) -> bool:
        """Whether what lies there is no longer what was read. Looks at the disk."""
        return self.stamps is not None and self.stamps != _stamps(self.folder)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Of all models that are configured. One that was made in memory has none."""

    target: ModelFiles | None = None
    drafts: Mapping[DrafterKind, ModelFiles] = field(default_factory=dict)


def model_files(folder: Path) -> list[tuple[Path, str]]:
    """The files that a model is read from, by name, each with its kind: weights, config, chat_template, tokenizer."""
    try:
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(folder / name, kind) for name in names if (kind := _kind(name))]


def _kind(name: str) -> str:
    return next((kind for kind, patterns in _KINDS if any(fnmatchcase(name, one) for one in patterns)), "")


def _stamps(folder: Path) -> dict[str, Stamp]:
    found = {}
    for file, _ in model_files(folder):
        with contextlib.suppress(FileNotFoundError):  # it went since the folder was listed
            found[file.name] = Stamp.of(file)
    return found
